"""A strategy that stands for others."""

import contextlib
from typing import Any

import pytest

from kerasdist.training.parameter_servers import sharded_variables
from tests import strategies


class Worker:
    """Coordinator and watch of a worker in this process, which computes at once."""

    def schedule(self, function, args):
        return function(*args)

    def fetch(self, result, again=None):
        return result

    def waiting(self):
        return contextlib.nullcontext()


@pytest.fixture
def worker_in_process(monkeypatch):
    """One device, which also stands in the place of parameter servers and a worker."""
    strategy: Any = strategies.get("one device")
    for name in ("coordinator", "watch"):
        monkeypatch.setattr(strategy, name, Worker(), raising=False)
    monkeypatch.setattr(sharded_variables, "check_placement", lambda model: None)
    return strategy
