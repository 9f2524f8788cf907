"""The state of each task, scraped while `fit` runs, as the parser of Prometheus reads it."""

import json
import socket

import pytest

from tests import fork_server
from tests.libraries.examples import needs

pytestmark = needs("prometheus_client")

# The chief asks all tasks in the second epoch, as a scraper does.
PROGRAM = """
import json
import time
import urllib.error
import urllib.request

import keras
import numpy as np

import kerasdist

strategy = kerasdist.make_strategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = np.random.default_rng(0).normal(size=(256, 4))


def ask(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Scraper(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        paths = ("metrics", "healthz", "readyz") if epoch == 2 else ("readyz",)
        if epoch in (0, 2):
            answers = {port: {path: ask(port, path) for path in paths} for port in PORTS}
            print("Scraped:", json.dumps(answers), flush=True)


callbacks = [kerasdist.callbacks.Checkpoint("run")]
if kerasdist.is_chief():
    callbacks.append(Scraper())
model.fit(x, x.sum(axis=1), batch_size=16, epochs=3, verbose=0, callbacks=callbacks)
"""


def free_ports(count):
    """Returns the first of so many ports in a row that are free now."""
    for first in range(28000, 30000, count):
        try:
            for port in range(first, first + count):
                socket.create_server(("", port)).close()
        except OSError:
            continue
        return range(first, first + count)
    raise AssertionError("no free ports")


def scraped(monkeypatch, folder, count, **deployment):
    """Returns what the chief was told by each of so many tasks, in its first and third epoch."""
    ports = free_ports(count)
    monkeypatch.setenv("KERASDIST_STATUS_PORT", str(ports[0]))
    monkeypatch.setenv("KERASDIST_STATUS_FILE", str(folder / "state.jsonl"))
    program = PROGRAM.replace("PORTS", repr(list(ports)))
    outputs = fork_server.run_cluster(program, timeout_secs=240, **deployment)
    for output in outputs:
        assert output.exit_code == 0, f"{output.task}\n{output.output[-4000:]}"
    lines = [line for output in outputs for line in output.output.splitlines()]
    found = [json.loads(line[9:]) for line in lines if line.startswith("Scraped: ")]
    return [list(answers.values()) for answers in found]


def parsed(answer):
    """Returns the numbers of an answer, by name and the labels that tell them apart."""
    parser = pytest.importorskip("prometheus_client.parser")
    code, text = answer
    assert code == 200
    numbers, tasks = {}, set()
    for family in parser.text_string_to_metric_families(text):
        assert family.documentation
        assert family.type in ("counter", "gauge")
        for sample in family.samples:
            labels = dict(sample.labels)
            tasks.add((labels.pop("task_type"), labels.pop("task_index"), labels.pop("run_id")))
            numbers[sample.name.removeprefix("kerasdist_"), *labels.values()] = sample.value
    ((job, index, run_id),) = tasks
    assert run_id
    return f"{job} {index}", numbers


def test_two_workers_are_scraped_while_they_train(monkeypatch, folder):
    first, third = scraped(monkeypatch, folder, 2, num_workers=2)

    assert [answers["readyz"][0] for answers in first] == [503, 503]
    assert [answers[path][0] for answers in third for path in ("healthz", "readyz")] == [200] * 4
    (task, numbers), (other_task, others) = (parsed(answers["metrics"]) for answers in third)
    assert (task, other_task) == ("worker 0", "worker 1")
    for each in (numbers, others):
        assert (each["workers",], each["replicas",], each["restarts_total",]) == (2, 2, 0)
        assert each["state", "training"] == 1
        assert each["step_seconds",] > 0
        assert each["examples_per_second",] > 0
        assert 0 <= each["input_wait_ratio",] <= 1
        assert each["log", "loss"] > 0
    # The third epoch has not begun for all callbacks, and the other worker may be ahead.
    assert (numbers["step",], numbers["examples_total",], numbers["epoch",]) == (32, 512, 2)
    assert abs(others["steps_total",] - 32) <= 1
    assert numbers["progress_ratio",] == pytest.approx(2 / 3)
    assert numbers["checkpoint_step",] in (16, 32)
    assert numbers["checkpoint_duration_seconds",] > 0
    last = json.loads((folder / "state.worker-1.jsonl").read_text().splitlines()[-1])
    assert (last["state"], last["step"]) == ("ended", 48)


def test_the_chief_of_parameter_servers_knows_of_its_workers(monkeypatch, folder):
    first, third = scraped(monkeypatch, folder, 3, num_workers=1, num_ps=1)

    assert [answers["readyz"][0] for answers in first] == [503, 200, 200]
    assert {answers[path][0] for answers in third for path in ("healthz", "readyz")} == {200}
    (chief, numbers), *servants = (parsed(answers["metrics"]) for answers in third)
    assert [chief, *(task for task, _ in servants)] == ["chief 0", "worker 0", "ps 0"]
    assert (numbers["step",], numbers["examples_total",]) == (32, 512)
    assert numbers["lost_workers",] == 0
    assert numbers["staleness_updates", "0"] >= 0
    assert numbers["worker_steps_per_second", "0"] > 0
    for _, each in servants:
        assert each["state", "serving"] == 1
        assert ("step",) not in each
