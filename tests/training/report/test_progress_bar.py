"""The progress bar: examples per second, and no more redraws than a person sees."""

import os
import re
import sys
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from kerasdist.support import terminal
from kerasdist.training.hooks.lazy_logs import LazyLogs
from kerasdist.training.report import progress_bar
from kerasdist.training.report.progress_bar import ProgressBar
from tests import strategies
from tests.strategies import each_kind_of_strategy

X = np.ones((32, 3), "float32")
Y = X[:, :1]


@pytest.fixture
def clock(monkeypatch):
    """The time of the progress bar, in seconds, which a test sets."""
    clock = SimpleNamespace(now=100.0)
    fake = SimpleNamespace(perf_counter=lambda: clock.now)
    monkeypatch.setattr(progress_bar, "time", fake)
    return clock


@pytest.fixture
def file_output(monkeypatch):
    """Standard output as in a job: neither a terminal nor a notebook."""
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)


def make_bar(num_steps, verbose=1):
    bar = ProgressBar()
    bar.set_params({"verbose": verbose, "epochs": 1, "steps": num_steps})
    bar.set_model(SimpleNamespace(train_function=SimpleNamespace(num_examples=0)))
    bar.on_train_begin()
    bar.on_epoch_begin(0)
    return bar


def run_steps(bar, clock, *, num_steps, secs, batch_size=8):
    """Runs steps that take `secs` each; returns how often their logs were read."""
    reads = []
    for step in range(num_steps):
        clock.now += secs
        bar.model.train_function.num_examples += batch_size
        bar.on_train_batch_end(step, LazyLogs(lambda: reads.append(1) or {"loss": 0.5}))
    return len(reads)


@pytest.mark.parametrize(("secs", "num_redraws"), [(0.04, 9), (0.2, 25), (0.001, 1)])
def test_logs_are_read_for_a_redraw_only(clock, secs, num_redraws):
    assert run_steps(make_bar(25), clock, num_steps=25, secs=secs) == num_redraws


def test_the_last_line_shows_what_a_callback_wrote_in_the_last_step(clock, capsys):
    bar = make_bar(2)
    for step, rate in enumerate([0.25, 0.125]):  # The bar is drawn in the first step alone.
        logs = LazyLogs(lambda: {"loss": 0.5})
        logs["rate"] = rate
        bar.on_train_batch_end(step, logs)
    bar.on_epoch_end(0, {"loss": 0.5})

    drawn = capsys.readouterr().out
    assert "rate: 0.2500" in drawn
    assert re.search(r"loss: 0\.5000 - rate: 0\.1250\s*$", drawn)


@pytest.mark.parametrize("verbose", [1, 2])
def test_a_line_in_between_has_a_line_of_its_own(clock, verbose, capsys):
    bar = make_bar(10, verbose=verbose)
    run_steps(bar, clock, num_steps=2, secs=1.0)
    capsys.readouterr()

    for step in (2, 4):
        terminal.say(f"step {step}")
    assert capsys.readouterr() == ("\n" if verbose == 1 else "", "step 2\nstep 4\n")

    run_steps(bar, clock, num_steps=1, secs=1.0)
    bar.on_epoch_end(0, {"loss": 0.5})
    capsys.readouterr()
    terminal.say("step 6")
    assert capsys.readouterr() == ("", "step 6\n")


@pytest.mark.parametrize("verbose", [0, 2])
def test_without_a_bar_no_step_is_read(clock, verbose):
    assert run_steps(make_bar(25, verbose), clock, num_steps=25, secs=1.0) == 0


@pytest.mark.parametrize("verbose", [1, 2])
def test_rate_counts_from_the_end_of_the_first_step(clock, verbose, capsys):
    bar = make_bar(5, verbose)
    run_steps(bar, clock, num_steps=1, secs=60.0)  # TensorFlow compiles.
    run_steps(bar, clock, num_steps=4, secs=0.5, batch_size=32)
    bar.on_epoch_end(0, {"loss": 0.5})

    assert re.search(r" - 64 examples/s - loss: 0\.5000\s*$", capsys.readouterr().out)


def test_the_time_of_validation_does_not_count(clock, capsys):
    bar = make_bar(5, verbose=2)
    run_steps(bar, clock, num_steps=5, secs=0.5, batch_size=32)
    bar.on_test_begin()
    clock.now += 100.0
    bar.on_epoch_end(0, {"loss": 0.5, "examples_per_second": 70.0})

    assert re.search(r" - 64 examples/s - loss: 0\.5000\s*$", capsys.readouterr().out)


def test_epochs_without_end_are_not_counted_down(capsys):
    bar = ProgressBar()
    bar.set_params({"verbose": 2, "epochs": sys.maxsize // 45, "steps": 1})
    bar.on_epoch_begin(1)

    assert capsys.readouterr().out == "Epoch 2/inf\n"


def test_epoch_of_one_step_shows_no_rate(clock, capsys):
    bar = make_bar(1, verbose=2)
    run_steps(bar, clock, num_steps=1, secs=60.0)
    bar.on_epoch_end(0, {"loss": 0.5})

    assert "examples/s" not in capsys.readouterr().out


def test_each_epoch_has_a_rate_of_its_own(clock, capsys):
    bar = make_bar(2, verbose=2)
    for secs in (1.0, 2.0):
        bar.on_epoch_begin(0)
        run_steps(bar, clock, num_steps=2, secs=secs)
        bar.on_epoch_end(0, {"loss": 0.5})

    assert re.findall(r"\d+ examples/s", capsys.readouterr().out) == [
        "8 examples/s",
        "4 examples/s",
    ]


@pytest.mark.parametrize(
    ("is_terminal", "is_notebook", "verbose"),
    [(False, False, 2), (True, False, 1), (False, True, 1)],
)
def test_auto_is_a_bar_where_a_person_looks(
    is_terminal, is_notebook, verbose, monkeypatch, file_output
):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    if is_notebook:
        monkeypatch.setitem(sys.modules, "ipykernel", sys)

    assert make_bar(1, "auto").verbose == verbose


def test_auto_is_a_bar_in_the_log_that_a_launch_shows_in_a_terminal(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    logs = [(tmp_path / name).open("w+") for name in ("shown", "other")]
    monkeypatch.setenv("KERASDIST_TERMINAL", terminal.identity_of(os.fstat(logs[0].fileno())))
    verbose = []
    for log in logs:
        with monkeypatch.context() as patch, log:
            patch.setattr(sys, "stdout", log)
            verbose.append(make_bar(1, "auto").verbose)

    assert verbose == [1, 2]


def test_an_output_that_only_writes_is_no_terminal(monkeypatch):
    class Log:
        write = staticmethod(lambda text: None)

    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "ipykernel", raising=False)
        patch.setattr(sys, "stdout", Log())
        bar = make_bar(1, "auto")
    assert bar.verbose == 2


@each_kind_of_strategy
@pytest.mark.parametrize("verbose", [1, 2])
@pytest.mark.parametrize("hook", ["on_epoch_end", "on_train_batch_end"])
def test_a_callback_may_compile_the_model_when_its_last_step_is_done(
    hook, verbose, strategy, capsys
):
    def compile_anew(step, logs):
        if hook == "on_epoch_end" or step == 3:
            model.compile("sgd", "mae")

    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    compiling = keras.callbacks.LambdaCallback(**{hook: compile_anew})
    model.fit(X, Y, batch_size=8, verbose=verbose, callbacks=[compiling])

    assert re.search(r" - \d+ examples/s - loss: ", capsys.readouterr().out)


@each_kind_of_strategy
def test_a_fit_in_a_callback_leaves_no_rate_below_zero(strategy, capsys):
    def fit_again(batch, logs):
        if batch == 3:
            model.fit(X[:4], Y[:4], verbose=0)

    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    nested = keras.callbacks.LambdaCallback(on_train_batch_end=fit_again)
    model.fit(X, Y, batch_size=8, verbose=2, callbacks=[nested])

    assert not re.search(r"-\d+ examples/s", capsys.readouterr().out)
    assert model.optimizer.iterations.numpy() == 5


def fit(*, data=None, **arguments):
    with strategies.get("2 replicas").scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    inputs = {"x": X, "y": Y, "batch_size": 8} if data is None else {"x": data}
    model.fit(**inputs, shuffle=False, **arguments)


def lines_with_loss(printed):
    return [line for line in printed.out.splitlines() if "loss: " in line]


def test_a_file_gets_one_line_for_each_epoch(capsys, file_output):
    fit(epochs=2)

    lines = lines_with_loss(capsys.readouterr())
    assert len(lines) == 2
    assert all(re.match(r"4/4 - .* \d+ examples/s - loss: \d", line) for line in lines)


def test_a_line_counts_the_steps_of_training_beside_validation(capsys, file_output):
    fit(validation_data=(X[:16], Y[:16]))

    (line,) = lines_with_loss(capsys.readouterr())
    assert line.startswith("4/4 - ")
    assert " - val_loss: " in line


def test_an_epoch_that_was_stopped_says_how_far_it_came(capsys, file_output):
    stop = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: setattr(stop.model, "stop_training", batch == 1)
    )
    fit(callbacks=[stop])

    (line,) = lines_with_loss(capsys.readouterr())
    assert line.startswith("2/4 - ")


@pytest.mark.parametrize("arguments", [{}, {"validation_data": (X[:16], Y[:16])}], ids=["", "val"])
def test_data_of_unknown_length_gets_its_line_too(arguments, capsys, file_output):
    fit(data=((X[:8], Y[:8]) for _ in range(4)), **arguments)

    (line,) = lines_with_loss(capsys.readouterr())
    assert line.startswith("4/4 - ")


def test_verbose_0_prints_nothing(capsys):
    fit(verbose=0)

    assert capsys.readouterr().out == ""


def test_the_users_own_progress_bar_is_the_only_one(capsys):
    fit(verbose=2, callbacks=[keras.callbacks.ProgbarLogger()])

    (line,) = lines_with_loss(capsys.readouterr())
    assert "examples/s" not in line
