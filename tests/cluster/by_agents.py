"""Starts a program by agents, one `launch` for each machine, which all are this one.

    python -m tests.cluster.by_agents AGENTS [again] [--option ...] -- python train.py

"again" starts one that was killed once more. The exit code is that of the first agent, which leads;
of the second one if a signal has ended that.
"""

import subprocess
import sys
import time

from tests.cluster.started import run_all
from tests.test_preflight import free_addresses

_LEAD_SECS = 2  # The first one is there by then.


def main(arguments: list[str], command: list[str]) -> int:
    number, *options = arguments
    meeting = ["--rendezvous", free_addresses(1)[0], "--start-timeout-secs=60", "--grace-secs=20"]
    launch = [sys.executable, "-m", "kerasdist", "launch", *meeting]
    launch += [option for option in options if option != "again"]

    def start(index: int) -> subprocess.Popen:
        time.sleep(_LEAD_SECS if index == 1 else 0)
        return subprocess.Popen(
            [*launch, "--", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    names = [f"agent {index}" for index in range(int(number))]
    codes = run_all(start, names, again="again" in options)
    return next(code for code in codes if code >= 0)


if __name__ == "__main__":
    divider = sys.argv.index("--")
    sys.exit(main(sys.argv[1:divider], sys.argv[divider + 1 :]))
