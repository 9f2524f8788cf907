"""Outputs that workers compute, in the order of the batches."""

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.training.parameter_servers.predict_function import (
    Output,
    Prediction,
    WorkerPredictFunction,
)


class Worker:
    """Coordinator and watch of one worker, which computes when somebody waits for it."""

    def __init__(self):
        self.num_fetched = 0

    def schedule(self, function, args):
        return SimpleNamespace(get=lambda: function(*args))

    def fetch(self, result, again):
        self.num_fetched += 1
        return result.get()


def test_outputs_are_those_of_the_examples_in_order():
    worker = Worker()
    strategy = SimpleNamespace(
        coordinator=worker,
        watch=worker,
        served_cluster=SimpleNamespace(num_workers=1),
        run=lambda function, args: function(*args),
        scope=contextlib.nullcontext,
    )
    model = SimpleNamespace(
        distribute_strategy=strategy, predict_step=lambda x: {"twice": 2 * x, "next": x + 1}
    )

    outputs = WorkerPredictFunction(model)([np.arange(2), np.arange(2, 5)])

    assert np.asarray(outputs["twice"]).tolist() == [0, 2, 4, 6, 8]
    assert np.asarray(outputs["next"]).tolist() == [1, 2, 3, 4, 5]
    # By the watch, which gives a worker up that is halted.
    assert worker.num_fetched == 2


def test_a_prediction_is_waited_for_when_it_is_read_and_once():
    worker = Worker()
    structure = {"a": np.arange(2), "b": np.arange(3)}
    prediction = Prediction(lambda: worker.schedule(lambda: structure, ()), worker)
    outputs: Any = [Output(prediction, 0), Output(prediction, 1)]
    assert worker.num_fetched == 0

    assert np.asarray(outputs[1], "float32").tolist() == [0, 1, 2]
    assert tf.convert_to_tensor(outputs[0]).numpy().tolist() == [0, 1]
    assert worker.num_fetched == 1
