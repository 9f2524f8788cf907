"""A strategy that stands for others."""

import contextlib
from typing import Any

import pytest

from kerasdist.private import coordinator_adapter
from kerasdist.training.context.deployment import Deployment, RemoteWorkers
from kerasdist.training.hooks import scope_checks
from kerasdist.training.parameter_servers import ledger, worker_times
from tests import strategies


class Worker:
    """Coordinator and watches of a worker in this process, which computes at once."""

    def fetch_once(self, result, attempt):
        return result

    def waiting(self):
        return contextlib.nullcontext()

    def active(self):
        return contextlib.nullcontext()

    def call(self, count_batches, *, is_first):
        return contextlib.nullcontext()

    def expect_trace(self):
        pass


@pytest.fixture
def worker_in_process(monkeypatch):
    """One device, which also stands in the place of parameter servers and a worker."""
    strategy: Any = strategies.get("one device")
    worker: Any = Worker()
    remote = RemoteWorkers(coordinator=worker, watch=worker, data_waits=worker_times.DataWaits())
    monkeypatch.setattr(strategy, "deployment", Deployment(step_watch=worker, remote=remote))
    monkeypatch.setattr(scope_checks, "check_placement", lambda model: None)
    monkeypatch.setattr(ledger, "devices_of", lambda strategy: ["/device:CPU:0"])
    monkeypatch.setattr(coordinator_adapter, "schedule_once", run_once)
    return strategy


def run_once(coordinator, function, args, attempt):
    """Does what is scheduled at once, in this process."""
    attempt.worker = 0
    attempt.begin(attempt.worker)
    result = function(*args)
    attempt.end()
    return result
