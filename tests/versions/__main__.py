"""Runs the promises on other versions of Keras and TensorFlow, and prints one table.

python -m tests.versions                        # every pair that has a lock in locks/
python -m tests.versions keras-3.12-tensorflow-2.20
python -m tests.versions --next                 # the newest Keras there is, also a nightly
"""

import argparse
import datetime
import sys

from tests.versions import environment
from tests.versions.plugin import PROMISES
from tests.versions.promises import examine


def main() -> int:
    """Returns the exit code: 0 where every promise holds, 1 where one does not."""
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    pairs = environment.locked_pairs()
    parser.add_argument("pairs", nargs="*", metavar="PAIR", help=f"of {', '.join(pairs)}")
    parser.add_argument("--next", action="store_true", help="the newest Keras, also a nightly")
    chosen = parser.parse_args()
    if unknown := set(chosen.pairs) - set(pairs):
        parser.error(f"no lock for {', '.join(sorted(unknown))}; there is one for: {pairs}")
    columns = "Keras, TensorFlow", "run on", *PROMISES
    print(_line(*columns), _line(*["---"] * len(columns)), sep="\n")
    results = []
    for make in _makers(chosen, pairs):
        result = examine(make())
        results.append(result)
        cells = (result.cell(promise) for promise in PROMISES)
        today = datetime.date.today().isoformat()
        print(_line(result.versions, today, *cells), flush=True)
    for result in results:
        print("\n".join(result.details()))
    return 0 if all(result.holds for result in results) else 1


def _makers(chosen, pairs):
    if chosen.next:
        return [environment.make_next]
    return [lambda pair=pair: environment.make(pair) for pair in chosen.pairs or pairs]


def _line(first, *others) -> str:
    return f"| {first:<32} | " + " | ".join(f"{other:<17}" for other in others) + " |"


if __name__ == "__main__":
    sys.exit(main())
