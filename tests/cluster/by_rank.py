"""Starts a program as `mpirun` or Kubernetes would: each process is told its rank, and one address.

    python -m tests.cluster.by_rank PROCESSES PS_TASKS [again] -- python train.py

"again" starts one that was killed once more. The exit code is the highest of those that no signal
has ended.
"""

import os
import subprocess
import sys

from tests.cluster.started import run_all
from tests.test_preflight import free_addresses


def _name(rank: int, num_processes: int, num_ps: int) -> str:
    if rank >= num_processes - num_ps:
        return f"ps {rank - num_processes + num_ps}"
    return f"worker {rank - 1}" if num_ps and rank else "chief 0" if num_ps else f"worker {rank}"


def main(numbers: list[str], command: list[str]) -> int:
    num_processes, num_ps = map(int, numbers[:2])
    names = [_name(rank, num_processes, num_ps) for rank in range(num_processes)]
    told = {
        "KERASDIST_NUM_PROCESSES": str(num_processes),
        "KERASDIST_NUM_PS": str(num_ps),
        "KERASDIST_ADDRESS": free_addresses(1)[0],
    }

    def start(rank: int) -> subprocess.Popen:
        own = {**os.environ, **told, "KERASDIST_RANK": str(rank), "TASK": names[rank]}
        return subprocess.Popen(
            command, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    print("  logs      none", flush=True)
    return max(run_all(start, names, again="again" in numbers))


if __name__ == "__main__":
    divider = sys.argv.index("--")
    sys.exit(main(sys.argv[1:divider], sys.argv[divider + 1 :]))
