"""`fit` of tf_keras 2.21 over parameter servers, for benchmarks/parameter_server.py.

Runs as every task of a cluster, in a Python that has tensorflow and tf-keras and nothing of ours.
"""

import json
import os
import time

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf
import tf_keras

LENGTHS = {1: (100, 700), 20: (400, 2400)}


def main() -> None:
    """Serves, or trains and prints the steps per second by steps per call."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol="grpc",
        ).join()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    rates = {}
    for steps_per_call, (short, long) in LENGTHS.items():
        model = make_model(strategy, steps_per_call)
        fit(model, short)
        rates[steps_per_call] = long / fit(model, long)
    print("rates", json.dumps(rates), flush=True)
    os._exit(0)


def make_model(strategy, steps_per_call):
    """Returns the network of `dense` in benchmarks/networks.py."""
    with strategy.scope():
        model = tf_keras.Sequential(
            [
                tf_keras.Input((32,)),
                tf_keras.layers.Dense(64, activation="relu"),
                tf_keras.layers.Dense(64, activation="relu"),
                tf_keras.layers.Dense(10),
            ]
        )
        model.compile(
            tf_keras.optimizers.SGD(0.01, momentum=0.9),
            loss=tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            steps_per_execution=steps_per_call,
        )
    return model


def fit(model, num_steps) -> float:
    """Returns the seconds that `fit` takes."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 32)).astype("float32")
    data = tf.data.Dataset.from_tensors((x, rng.integers(0, 10, size=64))).repeat()
    start = time.perf_counter()
    model.fit(data, steps_per_epoch=num_steps, verbose=0)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
