"""Outputs that workers compute, in the order of the batches."""

import contextlib
import copy
import pickle
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.context.deployment import Deployment, RemoteWorkers
from kerasdist.training.parameter_servers.predict_function import (
    Output,
    Prediction,
    WorkerPredictFunction,
)
from kerasdist.training.parameter_servers.worker_times import DataWaits


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
    worker: Any = Worker()
    strategy = SimpleNamespace(
        extended=SimpleNamespace(_being_scheduled=False),
        deployment=Deployment(
            remote=RemoteWorkers(coordinator=worker, watch=worker, data_waits=DataWaits())
        ),
        run=lambda function, args: function(*args),
        scope=contextlib.nullcontext,
    )
    model: Any = SimpleNamespace(
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


ARRAY = np.array([[1.5, -2.0], [3.0, 0.5]], "float32")
USES: dict[str, Any] = {
    "shape": lambda output: output.shape.as_list(),
    "dtype": lambda output: output.dtype,
    "an item": lambda output: output[0],
    "a slice": lambda output: output[:, 1:],
    "len": len,
    "iteration": lambda output: list(output),
    "arithmetic": lambda output: -output + 2 * output - 1 / output**2,
    "with an array on the left": lambda output: ARRAY @ output - ARRAY,
    "with itself": lambda output: output * output + abs(output),
    "comparison": lambda output: (output > 0.5, output == 3.0),
    "a number": lambda output: (float(output[0, 0]), int(output[1, 0]), bool(output[0, 0])),
    "functions of numpy": lambda output: (np.argmax(output, axis=1), np.mean(output)),
    "functions of Keras": lambda output: keras.ops.softmax(output),
    "functions of TensorFlow": lambda output: tf.reduce_sum(output, axis=0),
    "text": lambda output: (repr(output), str(output), f"{output}"),
    "deep copy": copy.deepcopy,
    "pickle": lambda output: pickle.loads(pickle.dumps(output)),
}


@pytest.mark.parametrize("use", USES)
def test_an_output_is_used_like_the_tensor_of_plain_keras(use):
    worker = Worker()
    output = Output(Prediction(lambda: worker.schedule(lambda: ARRAY, ()), worker), 0)
    kept = {"outputs": output}
    assert worker.num_fetched == 0

    used, expected = USES[use](kept["outputs"]), USES[use](tf.constant(ARRAY))

    tf.nest.assert_same_structure(used, expected)
    for one, other in zip(tf.nest.flatten(used), tf.nest.flatten(expected), strict=True):
        assert type(one) is type(other)
        assert np.array_equal(one, other)
    assert worker.num_fetched == 1


def test_what_a_worker_has_not_computed_is_not_waited_for_by_a_look_at_its_kind():
    worker = Worker()
    output: Any = Output(Prediction(lambda: worker.schedule(lambda: ARRAY, ()), worker), 0)

    assert {output: 1}[output] == 1
    assert tf.nest.flatten({"outputs": [output]})[0] is output
    assert keras.tree.map_structure(lambda leaf: leaf, output) is output
    assert worker.num_fetched == 0
