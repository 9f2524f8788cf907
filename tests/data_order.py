"""Ways to hand data to `fit`, and what comes of them in plain Keras.

The truth is Keras without any strategy and with its defaults.
"""

import contextlib
import functools
import random
import warnings

import keras
import numpy as np
import tensorflow as tf

NUM_EXAMPLES, BATCH_SIZE = 37, 4  # 10 batches, the last one with a single example.
X = np.random.default_rng(0).normal(size=(NUM_EXAMPLES, 3)).astype("float32")
Y = np.tanh(X.sum(axis=1, keepdims=True)).astype("float32")
ENDED = "Your input ran out of data; interrupting training"
CASES = {}
# Those in which an epoch ends elsewhere than the data, or begins elsewhere, in one more way, and
# parts of others.
FURTHER = {
    "arrays",
    "arrays_over_short_epochs",
    "arrays_shorter_than_an_epoch",
    "dataset",
    "dataset_cached_in_its_order",
    "dataset_of_unknown_length",
    "dataset_of_unknown_length_in_steps",
    "dataset_over_short_epochs",
    "dataset_that_ends_with_the_epoch",
    "dataset_that_grows",
    "generator",
    "generator_shorter_than_an_epoch",
    "py_dataset",
    "py_dataset_that_grows_is_evaluated_and_predicted",
    "several_steps_per_call_of_short_epochs",
    "several_steps_per_call_of_unknown_length",
    "some_epochs_later",
}


def case(train):
    """Keeps a function of a strategy, or of None for plain Keras, that returns what came out."""
    CASES[train.__name__] = train
    return train


def examples():
    return tf.data.Dataset.from_tensor_slices((X, Y))


def shuffled(**kwargs):
    return examples().shuffle(NUM_EXAMPLES, **kwargs).batch(BATCH_SIZE)


def of_unknown_length():
    return shuffled().filter(lambda x, y: x[0, 0] > -1)


def batches(count):
    for index in range(count):
        rows = slice(index % 9 * BATCH_SIZE, (index % 9 + 1) * BATCH_SIZE)
        yield X[rows], Y[rows]


def from_python(function):
    spec = (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 1]))
    return tf.data.Dataset.from_generator(function, output_signature=spec)


def make_model(strategy, **arguments):
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = keras.Sequential([keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse", **arguments)
    return model


class Calls(keras.callbacks.Callback):
    """Notes which steps it is called for.

    Not used with parameter servers, where no step of a single worker would run ahead of it.
    """

    def __init__(self):
        super().__init__()
        self.steps = []

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append(batch)

    def on_test_batch_end(self, batch, logs=None):
        self.steps.append(-batch)


def fit(strategy, *args, compile_arguments=None, **kwargs) -> dict:
    model, calls = make_model(strategy, **compile_arguments or {}), Calls()
    callbacks = [] if isinstance(strategy, tf.distribute.ParameterServerStrategy) else [calls]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = model.fit(*args, verbose=0, callbacks=callbacks, **kwargs).history
    outcome = {**history, "weights": model.get_weights(), "steps": calls.steps}
    if "steps_per_epoch" in kwargs:  # Without, Keras warns where data of unknown length ends.
        outcome["ended"] = sum(str(each.message).startswith(ENDED) for each in caught)
    return outcome


@case
def arrays(strategy):
    return fit(strategy, X, Y, batch_size=BATCH_SIZE, epochs=3)


@case
def arrays_and_validation_split(strategy):
    return fit(strategy, X, Y, batch_size=BATCH_SIZE, epochs=3, validation_split=0.3)


@case
def arrays_over_short_epochs(strategy):
    return fit(strategy, X, Y, batch_size=BATCH_SIZE, epochs=5, steps_per_epoch=4)


@case
def arrays_shorter_than_an_epoch(strategy):
    return fit(strategy, X, Y, batch_size=BATCH_SIZE, epochs=3, steps_per_epoch=14)


@case
def dataset(strategy):
    return fit(strategy, shuffled(), epochs=4)


@case
def dataset_with_a_seed(strategy):
    return fit(strategy, shuffled(seed=3), epochs=4)


@case
def dataset_cached_in_its_order(strategy):
    return fit(strategy, shuffled().cache(), epochs=4)


@case
def dataset_shuffled_after_a_cache(strategy):
    data = examples().cache().shuffle(NUM_EXAMPLES).batch(BATCH_SIZE)
    return fit(strategy, data, epochs=4)


@case
def dataset_that_was_looked_at(strategy):
    data, model = shuffled(), make_model(strategy)
    next(iter(data.take(1)))
    logs = [model.fit(data, epochs=2, verbose=0, validation_data=data).history["val_loss"]]
    logs += [model.evaluate(data, verbose=0), model.predict(data, verbose=0)]
    logs += [model.fit(data, epochs=2, verbose=0).history["loss"]]
    return {"logs": logs, "weights": model.get_weights()}


@case
def dataset_over_short_epochs(strategy):
    return fit(strategy, shuffled(), epochs=5, steps_per_epoch=4)


@case
def dataset_shorter_than_an_epoch(strategy):
    validation = {"validation_data": shuffled(), "validation_steps": 12}
    return fit(strategy, shuffled(), epochs=3, steps_per_epoch=14, **validation)


@case
def dataset_of_unknown_length(strategy):
    return fit(strategy, of_unknown_length(), epochs=4)


@case
def dataset_of_unknown_length_in_steps(strategy):
    return fit(strategy, of_unknown_length(), epochs=6, steps_per_epoch=4)


@case
def dataset_that_ends_with_the_epoch(strategy):
    data = shuffled().filter(lambda x, y: True)
    return fit(strategy, data, epochs=4, steps_per_epoch=10)


@case
def dataset_that_grows(strategy):
    lengths = iter((3, 7, 2, 5))
    return fit(strategy, from_python(lambda: batches(next(lengths))), epochs=4)


@case
def dataset_that_cannot_begin_anew(strategy):
    lengths = iter((5, 0, 0))
    return fit(strategy, from_python(lambda: batches(next(lengths))), epochs=3)


@case
def empty_dataset(strategy):
    outcome = fit(strategy, shuffled().take(0), epochs=2, validation_data=shuffled().take(0))
    outcome["weights"] = []  # Plain Keras trains one step of nothing, which builds the model.
    return outcome


@case
def generator(strategy):
    return fit(strategy, batches(6), epochs=1)


@case
def generator_shorter_than_an_epoch(strategy):
    return fit(strategy, batches(6), epochs=2, steps_per_epoch=20)


@case
def generator_with_validation(strategy):
    validation = {"validation_data": shuffled(), "validation_steps": 3, "validation_freq": 2}
    return fit(strategy, batches(99), epochs=4, steps_per_epoch=4, **validation)


class Batches(keras.utils.PyDataset):
    """Notes its hooks."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.hooks = []

    def __len__(self):
        return 9

    def __getitem__(self, index):
        return list(batches(9))[index % 9]

    def on_epoch_begin(self):
        self.hooks.append(1)

    def on_epoch_end(self):
        self.hooks.append(2)


@case
def py_dataset(strategy):
    train, validation = Batches(), Batches()
    outcome = fit(strategy, train, epochs=2, validation_data=validation)
    return {**outcome, "hooks": train.hooks + validation.hooks}


class Changing(Batches):
    """Has another length after each epoch."""

    def __init__(self, length, change, **kwargs):
        super().__init__(**kwargs)
        self.length, self.change = length, change

    def __len__(self):
        return self.length

    def on_epoch_end(self):
        super().on_epoch_end()
        self.length += self.change


@case
def py_dataset_that_grows(strategy):
    train, validation, compiled = Changing(4, 1), Changing(2, 3), {"steps_per_execution": 3}
    outcome = fit(strategy, train, epochs=3, validation_data=validation, compile_arguments=compiled)
    return {**outcome, "hooks": train.hooks + validation.hooks}


@case
def py_dataset_that_grows_over_short_epochs(strategy):
    train = Changing(5, 1, workers=2)
    outcome = fit(strategy, train, epochs=4, shuffle=False, steps_per_epoch=4)
    return {**outcome, "hooks": train.hooks}


@case
def py_dataset_that_shrinks(strategy):
    train, compiled = Changing(8, -1, workers=2), {"steps_per_execution": 3}
    outcome = fit(strategy, train, epochs=3, shuffle=False, compile_arguments=compiled)
    return {**outcome, "hooks": train.hooks}


@case
def py_dataset_that_grows_is_evaluated_and_predicted(strategy):
    data, model = Changing(3, 1), make_model(strategy)
    model.fit(data, epochs=1, verbose=0)
    logs = [model.evaluate(data, verbose=0), model.predict(data, verbose=0)]
    return {"logs": logs, "length": len(data)}


@case
def several_steps_per_call(strategy):
    return fit(strategy, shuffled(), epochs=3, compile_arguments={"steps_per_execution": 3})


@case
def several_steps_per_call_of_short_epochs(strategy):
    compile_arguments = {"steps_per_execution": 3}
    return fit(
        strategy, shuffled(), epochs=3, steps_per_epoch=4, compile_arguments=compile_arguments
    )


@case
def several_steps_per_call_of_unknown_length(strategy):
    compile_arguments = {"steps_per_execution": 3}
    return fit(strategy, of_unknown_length(), epochs=3, compile_arguments=compile_arguments)


@case
def eagerly(strategy):
    whole_batches = shuffled().take(9).unbatch().batch(BATCH_SIZE, drop_remainder=True)
    return fit(strategy, whole_batches, epochs=3, compile_arguments={"run_eagerly": True})


@case
def some_epochs_later(strategy):
    return fit(strategy, shuffled(), epochs=4, initial_epoch=2)


@case
def at_most_three_steps(strategy):
    keras.config.set_max_steps_per_epoch(3)
    try:
        return fit(strategy, shuffled(), epochs=3)
    finally:
        keras.config.set_max_steps_per_epoch(None)


@case
def stopped_in_the_middle(strategy):
    def stop(batch, logs):
        model.stop_training = batch == 4

    data, model = shuffled(), make_model(strategy)
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
    model.fit(data, epochs=2, verbose=0, callbacks=[callback])
    return {**model.fit(data, epochs=2, verbose=0).history, "weights": model.get_weights()}


@case
def random_augmentation(strategy):
    data = examples().map(lambda x, y: (x + tf.random.normal(tf.shape(x)), y))
    return fit(strategy, data.shuffle(NUM_EXAMPLES).batch(BATCH_SIZE), epochs=3)


def outcome_of(name, strategy) -> dict:
    keras.utils.set_random_seed(11)
    with warnings.catch_warnings():
        for message in (ENDED, "The data holds no batch", "`shuffle=True` was passed"):
            warnings.filterwarnings("ignore", message)
        return {**CASES[name](strategy), "next numbers": draw()}


def draw() -> list:
    """Returns what the random generators of a program give next."""
    shuffled_numbers = tf.data.Dataset.range(9).shuffle(9).as_numpy_iterator()
    weights = keras.layers.Dense(2)
    weights.build((None, 3))
    return [
        random.random(),
        np.random.random(),
        float(tf.random.uniform([])),
        *map(int, shuffled_numbers),
        *weights.get_weights(),
    ]


@functools.cache
def truth(name) -> dict:
    return outcome_of(name, None)


def check_equal(ours, theirs, atol):
    """Checks two outcomes; to the last bit where `atol` is 0."""
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        if atol:
            ours_flat, theirs_flat = (tf.nest.flatten(each) for each in (ours[name], value))
            for pair in zip(ours_flat, theirs_flat, strict=True):
                np.testing.assert_allclose(*pair, rtol=0, atol=atol, err_msg=name)
        else:
            np.testing.assert_equal(ours[name], value, err_msg=name)
