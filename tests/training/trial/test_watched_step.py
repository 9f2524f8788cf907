"""A train function that somebody looks at trains as it does without."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.callbacks import FirstStepProof
from kerasdist.training.trial.watched_step import WatchedStep, slots_of
from tests import strategies
from tests.cases import exhaustive
from tests.strategies import each_strategy

X = np.random.default_rng(2).normal(size=(25, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class Watch(keras.callbacks.Callback):
    """Notes how many examples each call has, and steps."""

    def on_train_begin(self, logs=None):
        self.seen = []
        self.model.train_function = WatchedStep(
            self.model.train_function,
            num_steps=self.model.steps_per_execution,
            watch=self._watch,
            strategy=self.model.distribute_strategy,
        )

    def _watch(self, batches, run):
        logs, num_steps = run()
        self.seen.append((num_steps, None if batches is None else [len(x) for x, _ in batches]))
        return logs


def fit(strategy, data, callbacks=(), **arguments):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", **arguments)
    arguments = {"epochs": 2, "shuffle": False, "verbose": 0, "callbacks": list(callbacks)}
    return model.fit(data(), **arguments).history


def of_unknown_length():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(10).filter(lambda x, y: True)


@each_strategy
@pytest.mark.parametrize(
    ("num_steps", "seen"),
    [
        *exhaustive((1, [(1, [10]), (1, [10]), (1, [5])] * 2)),
        (2, [(2, [10, 10]), (1, [5])] * 2),
    ],
)
def test_data_that_ends_is_seen_and_trained_as_without(strategy, num_steps, seen):
    watch = Watch()

    history = fit(strategy, of_unknown_length, [watch], steps_per_execution=num_steps)

    assert watch.seen == seen
    expected = fit(strategy, of_unknown_length, steps_per_execution=num_steps)
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-6)


def test_slots_are_those_of_all_optimizers_once():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    in_dict, in_list = keras.optimizers.SGD(), keras.optimizers.SGD()
    model.by_name = {"own": in_dict, "same": model.optimizer}
    model.others = [in_list]

    slots = slots_of(model)

    optimizers = (model.optimizer, in_dict, in_list)
    expected = [id(variable) for each in optimizers for variable in each.variables]
    assert sorted(map(id, slots)) == sorted(expected)


def train_on_parts(strategy):
    watch = Watch()

    def data():
        return lambda context: (
            tf.data.Dataset.from_tensor_slices((X, Y))
            .shard(context.num_input_pipelines, context.input_pipeline_id)
            .batch(5)
        )

    fit(strategy, data, [watch])
    fit(strategy, data, [FirstStepProof()])
    return watch.seen


@pytest.mark.processes
def test_steps_with_parts_of_the_workers_are_counted():
    seen = strategies.run_on_workers(train_on_parts, "2 workers")

    assert seen == [[(1, None)] * 6] * 2
