"""Runs Keras' own tests under our deployments and prints what is not as expected.

    python -m tests.keras           # everything: about a quarter of an hour on two cores
    python -m tests.keras --quick   # what `make test` runs

Four runs, of which the first is the truth: plain Keras, which has never seen kerasdist; `routes`,
after a call of `make_strategy` and with nothing in our scopes; `one` and `two`, each test inside
the scope of our one device or of two replicas. `--quick` leaves out `one`.
"""

import argparse
import collections
import sys

from tests.keras.deployments import EVERYTHING, PLAIN, QUICK, run_all
from tests.keras.verdict import findings, problems, read_expected, stale


def main() -> int:
    """Returns the exit code: 0 where everything is as expected."""
    parser = argparse.ArgumentParser(prog="python -m tests.keras", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only what `make test` runs")
    selection = QUICK if parser.parse_args().quick else EVERYTHING
    records = run_all(selection)
    plain, expected, lines = records[PLAIN], read_expected(), []
    tests = list(plain.outcomes)
    for deployment, record in records.items():
        found = findings(deployment, record, plain)
        kinds = collections.Counter(each.kind for each in found.values())
        outcomes = collections.Counter(record.outcomes.values())
        print(
            f"{deployment:6} {outcomes['passed']} passed, {outcomes['failed']} failed, "
            f"{outcomes['skipped']} skipped; unlike plain Keras: {kinds['fails']} outcomes, "
            f"{kinds['differs']} results"
        )
        lines += problems(deployment, found, tests, expected)
    if not selection.keywords:
        lines += stale(expected, tests)
    print("\n".join(lines) or "Everything is as expected.")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
