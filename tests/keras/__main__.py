"""Runs Keras' own tests under our deployments and prints what is not as expected.

    python -m tests.keras           # everything: about a quarter of an hour on two cores
    python -m tests.keras --quick   # what `make test` runs

Five runs, of which the first is the truth: plain Keras, which has never seen kerasdist; `routes`,
after a call of `make_strategy` and with nothing in our scopes; `undone`, after `kerasdist.undo`;
`one` and `two`, each test inside the scope of our one device or of two replicas. `--quick` has the
first and the last.

Two more runs of the tests that train: `servers`, inside the scope of two synchronous workers over
parameter servers, and its truth, `joined`: plain Keras, whose `fit` joins two batches into one.
"""

import argparse
import collections
import sys

from tests.keras.deployments import EVERYTHING, OF_SERVERS, PLAIN, QUICK, Selection, run_all
from tests.keras.verdict import Expected, findings, problems, read_expected, stale


def main() -> int:
    """Returns the exit code: 0 where everything is as expected."""
    parser = argparse.ArgumentParser(prog="python -m tests.keras", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only what `make test` runs")
    selections = [QUICK] if parser.parse_args().quick else [EVERYTHING, OF_SERVERS]
    expected = read_expected()
    lines = [line for each in selections for line in _examine(each, expected)]
    print("\n".join(lines) or "Everything is as expected.")
    return 1 if lines else 0


def _examine(selection: Selection, expected: list[Expected]) -> list[str]:
    """Runs tests, and returns what is not as expected, a line each."""
    records = run_all(selection)
    truth, lines = records[selection.truth], []
    tests = list(truth.outcomes)
    for deployment, record in records.items():
        found = findings(deployment, record, truth)
        kinds = collections.Counter(each.kind for each in found.values())
        outcomes = collections.Counter(record.outcomes.values())
        print(
            f"{deployment:7} {outcomes['passed']} passed, {outcomes['failed']} failed, "
            f"{outcomes['skipped']} skipped; unlike {selection.truth}: {kinds['fails']} outcomes, "
            f"{kinds['differs']} results"
        )
        lines += problems(deployment, found, tests, expected)
    if selection.truth == PLAIN and not selection.keywords:
        lines += stale(expected, tests)
    return lines


if __name__ == "__main__":
    sys.exit(main())
