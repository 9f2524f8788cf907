"""The numbers of a `fit` that others read while it runs."""

import keras
import numpy as np
import pytest

from kerasdist.callbacks import Checkpoint
from kerasdist.status import task_status
from kerasdist.status.number import to_json
from kerasdist.support import memory
from kerasdist.training.context import running_call
from tests import strategies

X = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")


class Reader(keras.callbacks.Callback):
    """Reads after some steps, as another thread does."""

    def __init__(self, *steps):
        super().__init__()
        self.steps, self.found = steps, []
        self.num_steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.num_steps += 1
        if self.num_steps in self.steps:
            self.found.append(to_json(task_status.of_process().numbers()))


@pytest.fixture
def status():
    found = task_status.of_process()
    found.add_reader()
    found.measures_time = True
    return found


def make_model(name="one device"):
    with strategies.get(name).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return model


def fit(model, *callbacks, epochs=2, **arguments):
    settings = {"batch_size": 8, "verbose": 0, "callbacks": [*callbacks], "epochs": epochs}
    return model.fit(X, X.sum(axis=1), **settings | arguments).history


@pytest.mark.parametrize("name", ["one device", "2 replicas"])
def test_steps_examples_and_progress_are_those_of_the_moment(status, name):
    reader = Reader(7)
    fit(make_model(name), reader)
    (numbers,) = reader.found

    assert (numbers["step"], numbers["steps_total"], numbers["examples_total"]) == (7, 7, 56)
    assert (numbers["epoch"], numbers["epochs"], numbers["progress_ratio"]) == (2, 2, 0.7)
    assert numbers["remaining_seconds"] > 0
    assert numbers["state"]["training"] == 1


def test_rates_are_those_of_the_steps_that_count(status):
    reader = Reader(7)
    fit(make_model(), reader)
    (numbers,) = reader.found

    rate = 8 / numbers["step_seconds"]  # The first step is compiled, and is none of them.
    np.testing.assert_allclose(numbers["examples_per_second"], rate, rtol=1e-6)
    assert 0 <= numbers["input_wait_ratio"] <= 1
    np.testing.assert_allclose(
        numbers["training_seconds_total"], 6 * numbers["step_seconds"], rtol=1e-6
    )


def test_the_logs_in_an_epoch_are_read_for_who_has_read_before(status):
    reader = Reader(3, 4, 5)
    fit(make_model(), reader)
    first, second, third = (numbers.get("log", {}) for numbers in reader.found)

    assert first == {}
    assert set(second) == set(third) == {"loss"}
    assert second != third


def test_after_a_fit_its_last_numbers_and_logs_are_known(status):
    model = make_model()
    losses = fit(model, validation_split=0.2)
    fit(model, epochs=1)
    numbers = to_json(status.numbers())

    assert losses["val_loss"]
    assert (numbers["steps_total"], numbers["examples_total"]) == (8 + 5, 64 + 40)
    assert numbers["progress_ratio"] == 1
    assert numbers["state"]["joined"] == 1


def test_the_logs_of_an_epoch_are_those_of_its_history(status):
    losses = fit(make_model(), validation_split=0.2)

    expected = {name: values[-1] for name, values in losses.items()}
    assert to_json(status.numbers())["log"] == expected


def test_a_fit_inside_of_another_one_is_not_read(status):
    class Inner(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            fit(make_model(), epochs=1)

    reader = Reader(10)
    fit(make_model(), Inner(), reader)

    assert reader.found[0]["steps_total"] == 10
    assert status.state == task_status.JOINED


def test_after_an_error_the_next_fit_is_read(status):
    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise OSError("of the program")

    model = make_model()
    with pytest.raises(OSError, match="of the program"):
        fit(model, Fails())
    fit(model)

    assert to_json(status.numbers())["steps_total"] == 1 + 10


def test_a_model_that_is_compiled_anew_is_read_on(status):
    class Compiles(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.compile("sgd", "mae")
            self.model.make_train_function()

    reader = Reader(3, 7, 9)
    fit(make_model(), Compiles(), reader)

    assert reader.found[-1]["steps_total"] == 9
    assert reader.found[-1]["step_seconds"] > 0


def test_what_is_read_changes_no_weight():
    def weights():
        keras.utils.set_random_seed(3)
        model = make_model("2 replicas")
        fit(model, Reader(*range(10)))
        return model.get_weights()

    unread = weights()
    status = task_status.of_process()
    status.measures_time = True
    status.add_reader()

    np.testing.assert_array_equal(weights()[0], unread[0])


def test_where_nobody_reads_nothing_is_measured():
    status = task_status.of_process()
    model = make_model()
    fit(model)

    assert status.state == task_status.STARTING
    assert not model.train_function.times._is_on
    assert status.describe_not_ready()


def test_the_newest_checkpoint_is_known_also_to_the_process_that_goes_on(tmp_path, monkeypatch):
    fit(make_model(), Checkpoint(tmp_path / "run"))
    written = to_json(task_status.of_process().numbers())
    monkeypatch.setattr(memory.PROCESS, "status", None)  # As in a new process.
    reader = Reader(1)
    fit(make_model(), Checkpoint(tmp_path / "run", every_steps=100), reader, epochs=3)
    (resumed,) = reader.found

    assert (written["checkpoint_step"], resumed["checkpoint_step"]) == (10, 10)
    assert written["checkpoint_duration_seconds"] > 0
    assert "checkpoint_duration_seconds" not in resumed
    assert resumed["checkpoint_age_seconds"] > written["checkpoint_age_seconds"]


def test_a_number_of_epochs_without_an_end_has_no_progress(status):
    class Stops(Reader):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = True

    reader = Stops(4)
    fit(make_model(), reader, epochs=10**10)

    assert not {"epochs", "progress_ratio", "remaining_seconds"} & set(reader.found[0])


def test_steps_that_a_profiler_records_do_not_count(status):
    class Records(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            running_call.set_recorded(self.model, batch == 3)

    reader = Reader(5)
    fit(make_model(), Records(), reader, epochs=1)
    (numbers,) = reader.found

    np.testing.assert_allclose(
        numbers["training_seconds_total"], 3 * numbers["step_seconds"], rtol=1e-6
    )
