"""Traces of some steps: their files, on every deployment."""

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist import trace
from kerasdist.callbacks import GradientAccumulation, ProfilerTrace, Throughput
from kerasdist.callbacks.trace_windows import Windows
from tests import strategies
from tests.callbacks import hand_loop
from tests.strategies import each_strategy, each_with_parameter_servers


def kinds(path):
    return {span.kind for span in trace.read(path)}


@each_strategy
def test_the_steps_that_are_asked_for_and_the_weights_stay_bit_equal(strategy, tmp_path):
    plain, model = (hand_loop.make_model(strategy) for _ in range(2))
    hand_loop.fit(plain)
    callback = ProfilerTrace(tmp_path, at_steps=[3, 9], num_steps=2)
    hand_loop.fit(model, [callback])

    assert callback.files == [str(tmp_path / f"tf_trace-{step}.json") for step in (3, 9)]
    for ours, theirs in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    events = json.loads(Path(callback.files[0]).read_text())["traceEvents"]
    assert any(event["ph"] == "M" and event["name"] == "process_name" for event in events)
    assert "MatMul" in kinds(tmp_path / "tf_trace-9.json")
    profile = tmp_path / "plugins/profile/step-00000009/host.xplane.pb"
    assert len(trace.read(profile)) == len(trace.read(tmp_path / "tf_trace-9.json"))


def test_one_window_holds_its_steps_and_no_other(tmp_path):
    model = hand_loop.make_model(strategies.get("one device"))
    hand_loop.fit(model, [ProfilerTrace(tmp_path, at_steps=[5]), One(tmp_path)])
    hand_loop.fit(model, [ProfilerTrace(tmp_path, at_steps=[17], num_steps=3)])

    one, three = (
        sum(
            "MatMul" in (span.kind or "") for span in trace.read(tmp_path / f"tf_trace-{step}.json")
        )
        for step in (5, 17)
    )
    assert three == 3 * one > 0


class One(keras.callbacks.Callback):
    """Looks for the file as soon as the step is over."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations.value) == 5:
            assert (self.folder / "tf_trace-5.json").exists()


def test_every_so_many_updates(tmp_path):
    model = hand_loop.make_model(strategies.get("one device"))
    callback = ProfilerTrace(tmp_path, every_steps=3)
    hand_loop.fit(model, [GradientAccumulation(steps=2), callback])

    assert [Path(path).name for path in callback.files] == ["tf_trace-3.json", "tf_trace-6.json"]


def test_a_call_of_several_steps_is_traced_as_a_whole(tmp_path):
    model = hand_loop.make_model(strategies.get("2 replicas"), steps_per_execution=3)
    callback = ProfilerTrace(tmp_path, at_steps=[5])
    hand_loop.fit(model, [callback])

    assert [Path(path).name for path in callback.files] == ["tf_trace-5.json"]


def test_traced_steps_do_not_count_for_the_rate(tmp_path):
    model = hand_loop.make_model(strategies.get("one device"))
    throughput = Throughput(every_steps=14)
    hand_loop.fit(model, [throughput, ProfilerTrace(tmp_path, at_steps=[10], num_steps=2)])

    assert throughput.last is not None
    assert throughput.last.num_steps == 3  # From 12 on.


def test_a_second_trace_at_once_is_left_out_with_a_warning(tmp_path):
    model = hand_loop.make_model(strategies.get("one device"))
    first = ProfilerTrace(tmp_path / "a", at_steps=[3], num_steps=4)
    second = ProfilerTrace(tmp_path / "b", at_steps=[4, 9])

    with pytest.warns(UserWarning, match="Step 4 is not traced because another trace is running"):
        hand_loop.fit(model, [first, second])

    assert [Path(path).name for path in second.files] == ["tf_trace-9.json"]


def test_training_goes_on_where_the_folder_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    model = hand_loop.make_model(strategies.get("one device"))

    with pytest.warns(UserWarning, match="The trace of step 2 cannot be written to"):
        hand_loop.fit(model, [ProfilerTrace(tmp_path / "file", at_steps=[2])])

    hand_loop.assert_same(model, hand_loop.train().weights)


def test_a_run_that_ends_within_a_window_keeps_it_and_says_so(tmp_path, caplog):
    model = hand_loop.make_model(strategies.get("one device"))
    callback = ProfilerTrace(tmp_path, at_steps=[13], num_steps=100)
    hand_loop.fit(model, [callback])

    assert "The trace of step 13 ends at step 14, with `fit`, and not at step 112." in caplog.text
    assert [Path(path).name for path in callback.files] == ["tf_trace-13.json"]
    tf.profiler.experimental.start(str(tmp_path))  # Nothing runs any more.
    tf.profiler.experimental.stop(save=False)


@pytest.mark.parametrize(
    ("arguments", "steps_per_execution", "told"),
    [
        ({"at_steps": [3, 600, 700]}, 1, "600, 700 (`fit` ended after step 14)"),
        ({"at_steps": [2, 3, 4, 6], "num_steps": 3}, 1, "3, 4 (in the trace of step 2)"),
        ({"at_steps": [1, 2, 7, 8]}, 4, "2 (in the trace of step 1)"),
    ],
)
def test_steps_without_a_trace_of_their_own_are_named_once(
    arguments, steps_per_execution, told, tmp_path
):
    strategy = strategies.get("one device")
    model = hand_loop.make_model(strategy, steps_per_execution=steps_per_execution)
    callback = ProfilerTrace(tmp_path, **arguments)

    with pytest.warns(UserWarning, match=re.escape(f"these of `at_steps`: {told}.")):
        hand_loop.fit(model, [callback])
    hand_loop.fit(model, [callback])


def test_steps_before_the_fit_are_named(tmp_path):
    model = hand_loop.make_model(strategies.get("one device"))
    hand_loop.fit(model)

    with pytest.warns(UserWarning, match=re.escape("3 (`fit` began after step 14).")):
        hand_loop.fit(model, [ProfilerTrace(tmp_path, at_steps=[3])])


def test_steps_before_an_interruption_are_not():
    windows = Windows(at_steps=(3, 9), every_steps=None)
    windows.begin_fit(5, is_resumed=True)

    assert windows.left_out(7) == "9 (`fit` ended after step 7)"


def test_steps_may_be_those_of_numpy_and_are_several(tmp_path):
    assert ProfilerTrace(tmp_path, at_steps=np.arange(2, 6, 2)).at_steps == (2, 4)
    with pytest.raises(TypeError, match=r"must be a list of ints. Received: at_steps=5. A single"):
        not_several: Any = 5
        ProfilerTrace(tmp_path, at_steps=not_several)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "Give one of `at_steps` and `every_steps`"),
        ({"at_steps": [1], "every_steps": 2}, "Give one of"),
        ({"every_steps": 0}, "every_steps=0"),
        ({"at_steps": []}, r"at_steps=\[\]"),
        ({"at_steps": [3, 3]}, r"at_steps=\[3, 3\]"),
        ({"at_steps": [0]}, r"at_steps=\[0\]"),
        ({"at_steps": [1], "num_steps": 0}, "num_steps=0"),
        ({"at_steps": [1], "tasks": "ps"}, "tasks='ps'"),
    ],
)
def test_wrong_arguments_are_named(arguments, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        ProfilerTrace(tmp_path, **arguments)


@pytest.mark.processes
def test_each_worker_keeps_its_trace_under_its_name():
    found = strategies.run_on_workers(traces_of_worker, "2 workers")

    for index, files in enumerate(found):
        assert {
            f"worker-{index}/tf_trace-4.json",
            f"plugins/profile/step-00000004/worker-{index}.xplane.pb",
        } == files


@each_with_parameter_servers
def test_the_chief_writes_those_of_all_tasks_beside_parameter_servers(workers):
    (files,) = strategies.run_on_workers(traces_of_worker, workers)

    tasks = ("chief-0", "worker-0", "ps-0")
    assert files == {
        *(f"{task}/tf_trace-4.json" for task in tasks),
        *(f"plugins/profile/step-00000004/{task}.xplane.pb" for task in tasks),
    }


def traces_of_worker(strategy):
    with tempfile.TemporaryDirectory() as folder:
        model = hand_loop.make_model(strategy)
        hand_loop.fit(model, [ProfilerTrace(folder, at_steps=[4], tasks="all")])
        paths = [path for path in Path(folder).rglob("*") if path.is_file()]
        assert all(trace.read(path) for path in paths)
        return {path.relative_to(folder).as_posix() for path in paths}


def test_a_callback_that_changes_the_working_directory_changes_no_path(monkeypatch, tmp_path):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    change = keras.callbacks.LambdaCallback(on_train_begin=lambda _: os.chdir("other"))

    model = hand_loop.make_model(strategies.get("one device"))
    hand_loop.fit(model, [ProfilerTrace("runs/1", at_steps=[3]), change])

    assert not list((tmp_path / "other").iterdir())
    assert (tmp_path / "runs/1/tf_trace-3.json").is_file()
