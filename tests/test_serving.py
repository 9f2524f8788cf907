"""When a task that serves gives its chief up, by a clock that the test moves."""

import pytest

from kerasdist.cluster import Cluster, Task
from kerasdist.lifetime import serving
from tests.clock import Clock

CLUSTER = Cluster(jobs={"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}, task=Task("worker", 0))


@pytest.mark.parametrize(
    ("is_silent", "given_up_at"),
    [
        (lambda secs: True, 30),
        (lambda secs: secs > 100, 130),
        (lambda secs: secs % 25 or secs > 200, 230),  # It answers now and then.
    ],
)
def test_chief_is_given_up_when_it_has_been_silent_for_long(monkeypatch, is_silent, given_up_at):
    clock = Clock()
    monkeypatch.setattr(
        serving, "find_problem", lambda address: "refused" if is_silent(clock() - 1000) else ""
    )
    cause = serving._watch_chief(CLUSTER, 30, clock, clock.sleep)

    assert cause == "chief 0 (a:1) is gone, for 30 s: refused."
    assert clock() == 1000 + given_up_at
