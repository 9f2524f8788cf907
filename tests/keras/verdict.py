"""Compares what our deployments do in Keras' tests with plain Keras and with what we expect."""

import dataclasses
import fnmatch
import itertools
import tomllib
from pathlib import Path

from tests.keras.deployments import JOINED, PLAIN, SERVERS
from tests.keras.record import Record, difference

# How far what is returned may be from plain Keras: the same bits without replicas.
TOLERANCES = {
    **{"routes": 0.0, "undone": 0.0, "one": 0.0, "two": 1e-5},
    **{JOINED: 0.0, SERVERS: 1e-5},
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Where a test does not do what it does in plain Keras.

    Attributes:
        kind: "fails" where the test itself fails, "differs" where it returns something else.
        text: What is seen.
    """

    kind: str
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """Tests that cannot hold; an entry of expected.toml.

    Attributes:
        reason: Why.
        deployments: Where.
        fails: Patterns of the tests that fail.
        differs: Patterns of the tests whose methods return something else than in plain Keras.
        may_differ: As `differs`, of tests where plain Keras is not equal to itself.
    """

    reason: str
    deployments: list[str]
    fails: list[str] = dataclasses.field(default_factory=list)
    differs: list[str] = dataclasses.field(default_factory=list)
    may_differ: list[str] = dataclasses.field(default_factory=list)

    @property
    def patterns(self) -> dict[str, list[str]]:
        """The patterns of tests by what is expected of them."""
        return {"fails": self.fails, "differs": self.differs, "may differ": self.may_differ}

    def kind(self, deployment: str, test: str) -> str | None:
        """Returns what is expected of a test under a deployment, or None."""
        if deployment not in self.deployments:
            return None
        for kind, patterns in self.patterns.items():
            if any(fnmatch.fnmatchcase(test, pattern) for pattern in patterns):
                return kind
        return None


def read_expected() -> list[Expected]:
    """Returns the entries of expected.toml."""
    path = Path(__file__).parent / "expected.toml"
    return [Expected(**entry) for entry in tomllib.loads(path.read_text())["expected"]]


def findings(deployment: str, record: Record, plain: Record) -> dict[str, Finding]:
    """Returns where a run does not do what the truth does, by the name of the test."""
    found = {}
    for test, outcome in plain.outcomes.items():
        if finding := _finding(deployment, test, outcome, record, plain):
            found[test] = finding
    return found


def problems(
    deployment: str, found: dict[str, Finding], tests: list[str], expected: list[Expected]
) -> list[str]:
    """Returns what is not as expected, a line each.

    Args:
        deployment: Where the tests ran.
        found: What came out.
        tests: The tests that ran.
        expected: The entries of expected.toml.
    """
    lines = []
    for test in tests:
        kinds = {kind for each in expected if (kind := each.kind(deployment, test))}
        finding = found.get(test)
        if "may differ" in kinds:
            kinds = {finding.kind} & {"differs"} if finding else set()
        if finding is None and kinds:
            lines.append(f"{deployment}: {test} holds now. Remove it from expected.toml.")
        elif finding is not None and finding.kind not in kinds:
            lines.append(f"{deployment}: {test} {finding.kind}: {finding.text}")
    return lines


def stale(expected: list[Expected], tests: list[str]) -> list[str]:
    """Returns the patterns of expected.toml that no test has, a line each."""
    lists = [patterns for each in expected for patterns in each.patterns.values()]
    return [
        f"expected.toml: no test is called {pattern}"
        for pattern in itertools.chain(*lists)
        if not fnmatch.filter(tests, pattern)
    ]


def _finding(deployment, test, outcome, record, plain) -> Finding | None:
    if deployment == PLAIN:
        failed = outcome == "failed"
        return Finding(kind="fails", text=plain.messages[test]) if failed else None
    ours = record.outcomes.get(test, "not run")
    if ours != outcome:
        text = record.messages.get(test) or f"{ours}, not {outcome}"
        return Finding(kind="fails", text=text)
    calls = plain.calls.get(test, []), record.calls.get(test, [])
    text = difference(*calls, tolerance=TOLERANCES[deployment])
    return Finding(kind="differs", text=text) if text else None
