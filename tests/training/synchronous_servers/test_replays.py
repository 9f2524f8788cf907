"""Updates of more or fewer batches than there are workers, and of workers that are lost."""

import functools
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import fork_server
from tests.training.synchronous_servers import replays

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


def chief_of(program, folder, **numbers):
    """Returns what a program returns on the chief of a cluster that nobody stops."""
    cluster = {"num_workers": numbers["num_workers"], "num_ps": numbers.get("num_ps", 1)}
    chief, *_ = fork_server.run_cluster(
        functools.partial(program, str(folder), **numbers),
        **cluster,
        timeout_secs=240,
        stop_on_failure=False,
    )
    assert chief.exit_code == 0, chief.output[-4000:]
    return chief.value, chief.output


def train_on_all_data(folder, **numbers):
    strategy = replays.make_strategy(folder, **numbers)
    return {name: replays.trained(strategy, name) for name in replays.DATA}


@pytest.mark.parametrize(("num_workers", "num_to_aggregate"), [(3, 2), (2, 3), (2, 4)])
def test_weights_are_those_of_one_device_with_the_same_updates(
    num_workers, num_to_aggregate, tmp_path
):
    found, _ = chief_of(
        train_on_all_data, tmp_path, num_workers=num_workers, num_to_aggregate=num_to_aggregate
    )

    assert found.keys() == replays.DATA.keys()
    for each in found.values():
        replays.check(each, num_to_aggregate)


def train_without_a_worker(folder, *, number, **numbers):
    strategy = replays.make_strategy(folder, **numbers)
    lose = functools.partial(replays.lose, folder, "worker 1", number)
    found = [replays.trained(strategy, "known", act_after=5, act=lose)]
    return [*found, *(replays.trained(strategy, name) for name in ("known", "by the chief"))]


@pytest.mark.parametrize(
    "numbers",
    [
        {"number": signal.SIGKILL, "num_workers": 2, "num_to_aggregate": 2},
        {"number": signal.SIGSTOP, "num_workers": 3, "num_to_aggregate": 2, "num_ps": 2},
    ],
    ids=["killed", "halted"],
)
def test_training_goes_on_without_a_lost_worker(numbers, tmp_path):
    found, output = chief_of(train_without_a_worker, tmp_path, **numbers)

    assert "worker 1" in output and "its steps go to the others" in output
    for each in found:
        replays.check(each, numbers["num_to_aggregate"])


def train_after_errors(folder, **numbers):
    """Returns the messages of two errors, and what comes of the trainings after each."""
    strategy = replays.make_strategy(folder, **numbers)
    with strategy.scope():
        model = replays.make_model()

    def fail():
        raise RuntimeError("of a callback")

    found = []
    for train in (
        lambda: model.fit(replays.with_an_error(), verbose=0),
        lambda: replays.trained(strategy, "known", act_after=3, act=fail),
    ):
        try:
            train()
        except (tf.errors.InvalidArgumentError, RuntimeError) as error:
            found.append((str(error), replays.trained(strategy, "known")))
    evaluate = functools.partial(evaluate_between_steps, strategy)
    return found, replays.trained(strategy, "known", act_after=3, act=evaluate)


def fit_between_steps(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(replays.known(), epochs=2, verbose=0)
    assert int(model.optimizer.iterations) == replays.NUM_BATCHES  # Of two batches each.


def evaluate_between_steps(strategy):
    fit_between_steps(strategy)
    keras.utils.set_random_seed(1)  # TensorFlow would wait for what runs on workers.
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, "tanh")])
        model.compile(loss="mse")
    loss = model.evaluate(replays.X, replays.Y, verbose=0)
    found = model.predict(replays.X, verbose=0)
    np.testing.assert_allclose(loss, np.mean(np.square(found - replays.Y)), rtol=1e-5)


def test_an_error_ends_one_training_and_not_the_next(tmp_path):
    found, _ = chief_of(train_after_errors, tmp_path, num_workers=2, num_to_aggregate=2)

    errors, evaluated = found
    assert [message for message, _ in errors] == [errors[0][0], "of a callback"]
    assert "too large" in errors[0][0]
    for each in (*(after for _, after in errors), evaluated):
        replays.check(each, 2)
