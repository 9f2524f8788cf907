"""Synchronous workers of parameter servers train with the batches that one device is given.

Two batches of workers are one of that device.
"""

import traceback
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import strategies

NUM_EXAMPLES = 26  # 4 batches of 8 for one device, or 7 of 4 for workers; each time the last has 2.
X = np.random.default_rng(0).normal(size=(NUM_EXAMPLES, 3)).astype("float32")
Y = np.tanh(X.sum(axis=1, keepdims=True))
EXAMPLES_OF_UPDATE, NUM_WORKERS = 8, 2
ENDED = "Your input ran out of data; interrupting training"
SHORT_EPOCHS = {"epochs": 2, "steps_per_epoch": 3}
CASES = {}


def case(arguments):
    """Keeps a function that returns the arguments of `fit` for a size of batches."""
    CASES[arguments.__name__] = arguments
    return arguments


def examples():
    return tf.data.Dataset.from_tensor_slices((X, Y))


@case
def arrays_over_short_epochs(size):
    return {"x": X, "y": Y, "batch_size": size, "epochs": 5, "steps_per_epoch": 3}


@case
def arrays_of_which_two_updates_end_an_epoch(size):
    return {"x": X, "y": Y, "batch_size": size, "epochs": 5, "steps_per_epoch": 2}


@case
def arrays_shorter_than_an_epoch(size):
    return {"x": X, "y": Y, "batch_size": size, "epochs": 3, "steps_per_epoch": 6}


@case
def shuffled_dataset(size):
    return {"x": examples().shuffle(NUM_EXAMPLES).batch(size), "epochs": 3}


@case
def validated_dataset(size):
    validation = {"validation_data": examples().batch(3), "validation_steps": 2}
    return {"x": examples().batch(size), "epochs": 3, **validation}


@case
def some_epochs_later(size):
    return {"x": examples().shuffle(9).batch(size), "epochs": 4, "initial_epoch": 2}


@case
def several_updates_in_a_call_of_short_epochs(size):
    given = {"x": examples().batch(size), "epochs": 3, "steps_per_epoch": 3}
    return {**given, "steps_per_execution": 2}


def some_examples(x, y):
    return x[0] > -1


@case
def dataset_of_unknown_length(size):
    return {"x": examples().shuffle(NUM_EXAMPLES).filter(some_examples).batch(size), "epochs": 3}


@case
def dataset_of_unknown_length_in_steps(size):
    return {"x": examples().filter(some_examples).batch(size), "epochs": 5, "steps_per_epoch": 2}


@case
def dataset_without_end(size):
    return {"x": examples().repeat().batch(size), "epochs": 3, "steps_per_epoch": 4}


@case
def dataset_that_is_shuffled_twice(size):
    data = examples().shuffle(9).map(lambda x, y: (x * 2, y)).shuffle(9)
    return {"x": data.batch(size), "epochs": 3}


@case
def several_updates_in_a_call_of_unknown_length(size):
    data = examples().filter(some_examples).batch(size)
    return {"x": data, "epochs": 3, "steps_per_execution": 3}


def batches(size):
    for start in range(0, NUM_EXAMPLES, size):
        yield X[start : start + size], Y[start : start + size]


@case
def generator(size):
    whole = list(batches(size))[: 24 // size]
    return {"x": (batch for batch in whole * 2), **SHORT_EPOCHS}


@case
def generator_shorter_than_an_epoch(size):
    return {"x": batches(size), **SHORT_EPOCHS}


@case
def dataset_of_a_generator(size):
    spec = (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 1]))
    data = tf.data.Dataset.from_generator(lambda: batches(size), output_signature=spec)
    return {"x": data, "epochs": 3}


class Batches(keras.utils.PyDataset):
    def __init__(self, size):
        super().__init__()
        self.batches = list(batches(size))

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


@case
def py_dataset(size):
    return {"x": Batches(size), "epochs": 3}


def part_of_worker(context):
    part = examples().take(24).shard(context.num_input_pipelines, context.input_pipeline_id)
    return part.repeat().batch(context.get_per_replica_batch_size(EXAMPLES_OF_UPDATE))


@case
def parts_that_a_function_makes(size):
    return {"x": part_of_worker, "epochs": 3, "steps_per_epoch": 2}


# Of a model: what makes its updates ones that all workers share, or that one computes.
KINDS = {
    "shared": lambda: [],
    "whole": lambda: [keras.layers.BatchNormalization(synchronized=True)],
}
# One of each way to read.
JOINED = [
    *(
        "arrays_over_short_epochs",
        "shuffled_dataset",
        "several_updates_in_a_call_of_unknown_length",
    ),
    *("dataset_without_end", "dataset_of_a_generator", "parts_that_a_function_makes"),
]
RUNS = [*((name, "shared") for name in CASES), *((name, "whole") for name in JOINED)]


def outcome_of(name, kind, strategy, size):
    arguments = CASES[name](size)
    compiled = {"steps_per_execution": arguments.pop("steps_per_execution", 1)}
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = [*KINDS[kind](), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.SGD(0.1), "mse", **compiled)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = model.fit(**arguments, shuffle=False, verbose=0).history
    ended = sum(str(each.message).startswith(ENDED) for each in caught)
    return {
        **history,
        "weights": model.get_weights(),
        "updates": int(model.optimizer.iterations),
        "ended": ended if "steps_per_epoch" in arguments else 0,
    }


def outcomes_of_workers(strategy):
    return {case: _outcome_or_error(*case, strategy) for case in RUNS}


def _outcome_or_error(name, kind, strategy):
    try:
        return outcome_of(name, kind, strategy, EXAMPLES_OF_UPDATE // NUM_WORKERS)
    except Exception:  # The other cases are to be seen as well.
        return traceback.format_exc()


@pytest.fixture(scope="module")
def found():
    """What all cases give in one cluster."""
    (workers,) = strategies.SYNCHRONOUS
    (outcomes,) = strategies.run_on_workers(outcomes_of_workers, workers)
    return outcomes


@pytest.mark.processes
@pytest.mark.timeout(300)  # The first one waits for the cluster to be done.
@pytest.mark.parametrize(("name", "kind"), RUNS)
def test_weights_and_logs_are_those_of_one_device(name, kind, found):
    expected = outcome_of(name, kind, strategies.get("one device"), EXAMPLES_OF_UPDATE)

    assert not isinstance(found[name, kind], str), found[name, kind]
    assert found[name, kind].keys() == expected.keys()
    for key, value in expected.items():
        pairs = zip(*map(tf.nest.flatten, (found[name, kind][key], value)), strict=True)
        for ours, theirs in pairs:
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6, err_msg=key)
