"""TensorFlow's notes of reductions are hidden for our strategies, and for nobody else."""

import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
    import logging
    import sys

    import keras
    import numpy as np
    import tensorflow as tf

    import kerasdist

    tf.get_logger().handlers = [logging.StreamHandler(sys.stdout)]
    tf.get_logger().setLevel("INFO")

    def reduce(strategy):
        with strategy.scope():
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
            model.compile("adam", "mse")
        model.fit(np.ones((4, 2)), np.ones((4, 1)), batch_size=2, verbose=0)

    assert not tf.get_logger().filters
    config = kerasdist.DeploymentConfig(num_clones=2, clone_on_cpu=True)
    strategy = kerasdist.make_strategy(config)
    reduce(strategy)
    with strategy.scope():
        tf.get_logger().info("Something else")
    print("stock")
    reduce(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
"""


@pytest.mark.processes
def test_notes_of_reductions_are_hidden_for_our_strategies_alone():
    printed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )

    ours, stock = printed.stdout.split("stock\n")
    assert "Reduce to" not in ours
    assert "Something else" in ours
    assert "Reduce to" in stock
