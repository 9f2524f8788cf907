"""Losses in the logs: that of the last global batch, and their moving average."""

import keras
import numpy as np
import pytest

from kerasdist.callbacks import GradientAccumulation, GradientClipping, LossAverages
from kerasdist.parity import models
from kerasdist.parity.data import examples
from tests import strategies
from tests.callbacks import hand_loop
from tests.strategies import each_kind_of_strategy, each_strategy

pytestmark = pytest.mark.thorough


class Logs(keras.callbacks.Callback):
    """Keeps the logs of every step."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append(dict(logs or {}))

    def all(self, name):
        return [logs[name] for logs in self.steps]


def averages(losses, decay):
    """Returns the mean of the losses up to each, weighted by decay**(age)."""
    weights = [decay ** np.arange(n)[::-1] for n in range(1, len(losses) + 1)]
    return [np.dot(w, losses[: len(w)]) / w.sum() for w in weights]


def assert_close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=0)


@each_strategy
def test_the_logs_of_every_step_are_the_loss_of_its_global_batch_and_the_average(strategy):
    logs = Logs()
    history = hand_loop.fit(hand_loop.make_model(strategy), [LossAverages(0.8), logs])

    losses = hand_loop.train().losses
    assert_close(logs.all("loss (raw)"), losses)
    assert_close(logs.all("loss"), averages(losses, 0.8))
    assert_close(history["loss (raw)"], [losses[6], losses[13]])
    assert_close(history["loss"], [averages(losses, 0.8)[6], averages(losses, 0.8)[13]])


def test_a_replica_without_examples_does_not_count():
    logs = Logs()
    x, y = examples(17)
    model = hand_loop.make_model(strategies.get("4 replicas"))
    hand_loop.fit(model, [logs, LossAverages(0.5)], data=(x, y), epochs=1)

    truth = hand_loop.train(batches=hand_loop.global_batches(num_examples=17, epochs=1))
    assert_close(logs.all("loss (raw)"), truth.losses)


@each_kind_of_strategy
def test_every_step_of_an_execution_counts(strategy):
    logs = Logs()
    model = hand_loop.make_model(strategy, steps_per_execution=3)
    hand_loop.fit(model, [LossAverages(0.8), logs], epochs=1)

    truth = hand_loop.train().losses[:7]
    assert_close(logs.all("loss"), [averages(truth, 0.8)[step] for step in (2, 5, 6)])


@each_kind_of_strategy
def test_a_model_with_several_outputs_logs_each_of_their_losses(strategy):
    logs = Logs()
    x, y = examples()
    labels = np.digitize(y[:, 0], [-0.3, 0.3]).astype("int32")
    model = hand_loop.make(strategy, models.two_outputs)
    truth = keras.models.clone_model(model)
    truth.set_weights(model.get_weights())
    truth.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        {"a": "mse", "b": keras.losses.SparseCategoricalCrossentropy(from_logits=True)},
        loss_weights={"a": 0.3, "b": 2.0},
    )
    hand_loop.fit(model, [LossAverages(0.8), logs], data=(x, {"a": y, "b": labels}), epochs=1)

    expected = []
    for start in range(0, 101, 16):
        rows = slice(start, start + 16)
        truth.reset_metrics()
        targets = {"a": y[rows], "b": labels[rows]}
        expected.append(truth.train_on_batch(x[rows], targets, return_dict=True))
    for name in ("loss", "a_loss", "b_loss"):
        losses = [float(step[name]) for step in expected]
        assert_close(logs.all(f"{name} (raw)"), losses)
        assert_close(logs.all(name), averages(losses, 0.8))


def test_the_other_logs_stay_as_they_are():
    history = []
    for callbacks in ([], [LossAverages()]):
        model = hand_loop.make_model(strategies.get("2 replicas"), metrics=["mae"])
        data = examples(37)
        history.append(hand_loop.fit(model, callbacks, validation_data=data))

    plain, averaged = history
    assert set(averaged) == {*plain, "loss (raw)"}
    for name in ("mae", "val_loss", "val_mae"):
        assert_close(averaged[name], plain[name])


def test_every_batch_of_a_group_counts():
    logs = Logs()
    model = hand_loop.make_model(strategies.get("2 replicas"))
    hand_loop.fit(model, [GradientAccumulation(steps=7), LossAverages(0.8), logs], epochs=1)

    # Before the first update all batches meet the first weights.
    truth = hand_loop.train(lambda g, step: hand_loop.multiply(g, [0] * 4)).losses[:7]
    assert_close(logs.all("loss (raw)"), truth)


def test_a_step_that_is_compiled_by_xla():
    logs = Logs()
    model = hand_loop.make_model(strategies.get("one device"), jit_compile=True)
    hand_loop.fit(model, [LossAverages(0.8), logs])

    assert_close(logs.all("loss (raw)"), hand_loop.train().losses)


def test_the_loss_of_a_users_own_train_step():
    logs = Logs()
    model = hand_loop.make_model(strategies.get("2 replicas"), own_train_step=True)
    hand_loop.fit(model, [LossAverages(0.8), logs])

    assert_close(logs.all("my_loss (raw)"), hand_loop.train().losses)


def test_a_callback_that_went_to_another_model_and_back_logs_the_model_it_is_used_on():
    averages, logs = LossAverages(0.0), Logs()
    first, second = (hand_loop.make_model(strategies.get("one device")) for _ in range(2))
    x, y = examples()
    hand_loop.fit(first, [averages], epochs=1)
    hand_loop.fit(second, [averages], epochs=1, data=(x, 5 * y))
    hand_loop.fit(first, [averages, logs], epochs=1)

    assert_close(logs.all("loss (raw)"), hand_loop.train().losses[7:])


def averages_of(num_steps):
    return averages(hand_loop.train().losses, 0.8)[:num_steps]


@each_strategy
def test_averages_go_on_from_a_state(strategy):
    first, restored, logs = LossAverages(0.8), LossAverages(0.8), Logs()
    model = hand_loop.make_model(strategy)
    hand_loop.fit(model, [first], epochs=1)
    restored.set_state(first.get_state())
    assert_close(restored.get_state()["loss"], first.get_state()["loss"])
    hand_loop.fit(model, [restored, logs], epochs=1)

    assert_close(logs.all("loss"), averages_of(14)[7:])


@pytest.mark.exhaustive
@each_kind_of_strategy
def test_averages_go_on_beside_other_callbacks(strategy):
    callback, logs = LossAverages(0.8), Logs()
    model = hand_loop.make_model(strategy)
    hand_loop.fit(model, [callback], epochs=1)
    hand_loop.fit(model, [callback, GradientClipping(norm=1e9), logs], epochs=1)

    assert_close(logs.all("loss"), averages_of(14)[7:])


def test_another_model_goes_on_from_a_state_and_not_from_the_averages_of_the_one_before():
    callback, logs = LossAverages(0.8), Logs()
    first, second, third = (hand_loop.make_model(strategies.get("one device")) for _ in range(3))
    hand_loop.fit(first, [callback], epochs=1)
    hand_loop.fit(second, [callback, logs], epochs=1)
    assert_close(logs.all("loss"), averages_of(7))
    state = callback.get_state()
    callback.set_state(state)
    hand_loop.fit(second, [callback], epochs=1)
    hand_loop.fit(third, [callback, logs], epochs=1)
    assert_close(logs.all("loss")[7:], averages_of(7))

    callback.set_state(state)
    hand_loop.fit(third, [callback, logs], epochs=1)
    assert_close(logs.all("loss")[14:], averages_of(14)[7:])


def test_decay_zero_averages_nothing():
    logs = Logs()
    hand_loop.fit(hand_loop.make_model(strategies.get("one device")), [LossAverages(0), logs])

    assert_close(logs.all("loss"), logs.all("loss (raw)"))


@pytest.mark.parametrize(
    ("decay", "error"),
    [(1.0, ValueError), (-0.1, ValueError), (float("nan"), ValueError), (True, TypeError)],
)
def test_a_decay_out_of_its_range_is_refused_with_its_value(decay, error):
    with pytest.raises(error, match=f"decay={decay}"):
        LossAverages(decay)
