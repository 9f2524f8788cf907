"""Types, keys and dtypes of what Keras' methods and hooks give are those of plain Keras."""

import contextlib
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.cases import exhaustive
from tests.strategies import each_strategy, on_three_replicas

X = np.random.default_rng(3).normal(size=(10, 3)).astype("float32")
Y = np.tanh(X.sum(axis=1, keepdims=True))
PHASES = ("train", "test", "predict")
HOOKS = [
    *(f"on_{phase}_batch_{end}" for phase in PHASES for end in ("begin", "end")),
    *(f"on_{phase}_{end}" for phase in (*PHASES, "epoch") for end in ("begin", "end")),
]


class HookRecorder(keras.callbacks.Callback):
    """Overrides every hook, and notes what it was given."""

    def __init__(self):
        super().__init__()
        self.seen = []


def _hook(name):
    if "batch" in name or "epoch" in name:

        def hook(self, index, logs="missing"):
            self.seen.append((name, index, describe(logs)))
    else:

        def hook(self, logs="missing"):
            self.seen.append((name, describe(logs)))

    return hook


for _name in HOOKS:
    setattr(HookRecorder, _name, _hook(_name))


def describe(value):
    """Returns types, keys and shapes of a structure."""
    if isinstance(value, dict):
        return {"dict": [(name, describe(each)) for name, each in value.items()]}
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [describe(each) for each in value]
    shape = tuple(value.shape) if hasattr(value, "shape") else None
    dtype = value.dtype.name if hasattr(value, "dtype") else None
    kind = "tensor" if isinstance(value, tf.Tensor) else type(value).__name__
    return kind, shape, dtype


def make_model(strategy, *, takes_dict=False, **arguments):
    keras.utils.set_random_seed(1)
    with strategy.scope() if strategy else contextlib.nullcontext():
        inputs = keras.Input((3,), name="x")
        outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in ("b", "a")}
        model = keras.Model({"x": inputs} if takes_dict else inputs, outputs)
        model.compile("sgd", {"a": "mse", "b": "mae"}, metrics={"a": ["mae"]}, **arguments)
    return model


def run_all(strategy, **arguments):
    model, recorder = make_model(strategy, **arguments), HookRecorder()
    labels = {"a": Y, "b": Y}
    given = {"callbacks": [recorder], "verbose": 0, "batch_size": 4}
    history = model.fit(X, labels, validation_data=(X, labels), epochs=2, **given)
    returned = {
        "fit": history.history,
        "epoch": history.epoch,
        "params": sorted(history.params),
        "evaluate": model.evaluate(X, labels, **given),
        "evaluate as dict": model.evaluate(X, labels, return_dict=True, **given),
        "predict": model.predict(X, **given),
        "train_on_batch": model.train_on_batch(X, labels),
        "train_on_batch as dict": model.train_on_batch(X, labels, return_dict=True),
        "test_on_batch": model.test_on_batch(X, labels),
        "test_on_batch as dict": model.test_on_batch(X, labels, return_dict=True),
        "predict_on_batch": model.predict_on_batch(X),
    }
    return {name: describe(value) for name, value in returned.items()}, recorder.seen


@functools.cache
def truth(is_eager):
    return run_all(None, run_eagerly=is_eager)


@pytest.mark.thorough
@pytest.mark.parametrize("is_eager", [False, *exhaustive(True)], ids=["compiled", "eager"])
@each_strategy
def test_methods_and_hooks_give_the_types_of_plain_keras(strategy, is_eager):
    returned, seen = run_all(strategy, run_eagerly=is_eager)

    assert returned == truth(is_eager)[0]
    assert seen == truth(is_eager)[1]


@pytest.mark.parametrize("is_eager", [False, True], ids=["compiled", "eager"])
@each_strategy
def test_predictions_of_one_batch_in_every_form(strategy, is_eager):
    forms = {"array": X, "dict": {"x": X}, "tensor": tf.constant(X), "doubles": X.astype("float64")}

    def predict(strategy, form):
        takes_dict = isinstance(form, dict)
        model = make_model(strategy, takes_dict=takes_dict, run_eagerly=is_eager)
        return model.predict_on_batch(form)["a"]

    for form in forms.values():
        prediction = predict(strategy, form)
        assert isinstance(prediction, np.ndarray)
        np.testing.assert_allclose(prediction, predict(None, form), atol=1e-6)


class Spread(keras.metrics.Metric):
    """Has a result of three numbers, whose names lie around those of Keras."""

    def __init__(self):
        super().__init__(name="dm")
        self.sum = self.add_weight(name="sum", initializer="zeros")

    def update_state(self, y, predictions, sample_weight=None):
        self.sum.assign_add(keras.ops.sum(predictions))

    def result(self):
        return {"tot": self.sum.value, "avg": self.sum / 10, "cnt": 1 + 0 * self.sum}


class DeepLogs(keras.Model):
    """Returns dicts in a dict from its train_step."""

    def call(self, inputs):
        return keras.ops.sum(inputs, axis=1, keepdims=True)

    def train_step(self, data):
        logs = super().train_step(data)
        return {"z": {"b": {"q": logs["loss"]}, "a": logs["loss"]}, "x": logs["loss"]}


def names_in_order(scope, make_model):
    recorder = HookRecorder()
    with scope:
        model = make_model()
        model.compile("sgd", "mse", metrics=[Spread(), "mae"])
    given = {"batch_size": 4, "verbose": 0, "callbacks": [recorder]}
    history = model.fit(X, Y, validation_data=(X, Y), **given).history
    batch = model.train_on_batch(X, Y, return_dict=True)
    measured = model.evaluate(X, Y, return_dict=True, **given)
    return list(history), list(batch), list(measured), recorder.seen


@pytest.mark.parametrize(
    "make_model", [*exhaustive(lambda: keras.Sequential([keras.layers.Dense(1)])), DeepLogs]
)
@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
@each_strategy
def test_results_that_are_dicts_keep_keras_order(strategy, make_model):
    names = names_in_order(strategy.scope(), make_model)

    assert names == names_in_order(contextlib.nullcontext(), make_model)


class Structured(keras.Model):
    """Predicts a dict with a sparse, a ragged and a dense part."""

    def call(self, inputs):
        return {
            "sparse": tf.sparse.from_dense(tf.nn.relu(inputs)),
            "nested": (tf.RaggedTensor.from_tensor(inputs), [2 * inputs]),
        }


@each_strategy
def test_predictions_that_are_sparse_ragged_and_nested(strategy):
    def predict(scope):
        with scope:
            model = Structured()
        return model.predict(X, batch_size=4, verbose=0)

    predicted, expected = predict(strategy.scope()), predict(contextlib.nullcontext())

    assert isinstance(predicted["sparse"], tf.SparseTensor)
    np.testing.assert_allclose(
        tf.sparse.to_dense(predicted["sparse"]), tf.sparse.to_dense(expected["sparse"])
    )
    np.testing.assert_allclose(
        predicted["nested"][0].to_tensor(), expected["nested"][0].to_tensor()
    )
    np.testing.assert_allclose(predicted["nested"][1][0], expected["nested"][1][0])


@on_three_replicas
def test_variables_are_numbers_in_callbacks(strategy):
    model, seen = make_model(strategy), []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            optimizer = self.model.optimizer
            seen.append((float(optimizer.learning_rate), int(optimizer.iterations)))
            # In the scope of `fit`, and those of TensorFlow.
            seen.append((float(optimizer.learning_rate.value), int(optimizer.iterations.value)))
            assert np.array(optimizer.learning_rate.value).shape == ()

    model.fit(X, {"a": Y, "b": Y}, batch_size=4, verbose=0, callbacks=[Look()])

    kernel = model.weights[0]
    assert seen == [(pytest.approx(0.01), step) for step in (1, 1, 2, 2, 3, 3)]
    assert f"{float(model.optimizer.learning_rate):.3f}" == "0.010"
    with strategy.scope():
        arrays = [np.array(kernel.value), np.asarray(kernel.value, "float64")]
    for array in (*arrays, np.array(kernel), np.asarray(kernel, "float64"), kernel.numpy()):
        assert isinstance(array, np.ndarray)
        np.testing.assert_allclose(array, model.get_weights()[0])
