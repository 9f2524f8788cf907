"""Variables of a strategy read and are updated as training needs it."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.step import variable_creation
from tests import strategies
from tests.strategies import on_workers


def test_step_counters_and_learning_rates_need_no_broadcast():
    with strategies.get("2 replicas").scope():
        optimizer = keras.optimizers.SGD(0.1)

    assert optimizer.iterations.value.aggregation == tf.VariableAggregation.NONE


def test_moving_statistics_read_as_the_mean_over_the_replicas():
    with strategies.get("2 replicas").scope():
        layer = keras.layers.BatchNormalization()
        layer.build((None, 3))

    assert layer.moving_mean.value.synchronization == tf.VariableSynchronization.ON_READ
    assert layer.moving_mean.value.aggregation == tf.VariableAggregation.MEAN
    assert layer.gamma.value.synchronization != tf.VariableSynchronization.ON_READ


@pytest.mark.parametrize(
    "error",
    [
        variable_creation.WorkersDifferError("at a kernel"),
        tf.errors.UnavailableError(None, None, "/task:1 is gone"),
        tf.errors.AbortedError(None, None, "given up"),
    ],
)
def test_errors_of_the_workers_are_told_from_those_of_a_model_that_cannot_be_built_yet(error):
    def build():
        try:
            raise error
        except Exception:
            raise RuntimeError("Unable to build the model")  # noqa: B904 (As Keras does.)

    with pytest.raises(RuntimeError) as caught:
        build()

    assert variable_creation.error_of_workers(caught.value) is error
    assert variable_creation.error_of_workers(RuntimeError("of the model")) is None


def test_workers_that_make_a_variable_while_others_add_up_are_told_what_to_make_alike():
    met = tf.errors.InternalError(None, None, "Collective instance 7 expected type 1 but got 0")

    told = str(variable_creation._as_disagreement(met, "dense/kernel"))

    assert "They part at the variable 'dense/kernel': a variable here, and a sum over" in told
    assert told.endswith("compile with the same optimizer and metrics.")


def train_narrow(strategy=None):
    """Trains with variables of bfloat16 and, in an embedding, slices; then makes some of int8."""
    rows = np.arange(24).reshape(12, 2) % 7
    keras.utils.set_random_seed(1)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = keras.Sequential(
            [
                keras.Input((2,), dtype="int32"),
                keras.layers.Embedding(7, 4, dtype="bfloat16"),
                keras.layers.Flatten(),
                keras.layers.Dense(3, dtype="bfloat16"),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1), "mse")
        losses = model.fit(rows, rows[:, :1] / 7, batch_size=6, epochs=4, verbose=0).history["loss"]
        model.layers[-1].quantize("int8")
    return losses, model.predict(rows, verbose=0)


@on_workers
def test_workers_train_with_dtypes_that_tensorflow_cannot_send(workers):
    (losses, predictions), *others = strategies.run_on_workers(train_narrow, workers)
    expected_losses, expected_predictions = train_narrow()

    # bfloat16 keeps 8 bits.
    np.testing.assert_allclose(losses, expected_losses, rtol=2**-6)
    np.testing.assert_allclose(predictions, expected_predictions, atol=2**-6)
    assert losses[-1] < 0.9 * losses[0]
    for other_losses, other_predictions in others:
        assert other_losses == losses
        np.testing.assert_array_equal(other_predictions, predictions)
