"""The meeting of processes that know one address: each tells its own, and gets those of all.

The process of rank 0 listens at that address. The others call it, and say their rank, how many
processes there are, and where TensorFlow is to reach them.
"""

import time

from kerasdist.cluster.held_port import held_port
from kerasdist.cluster.meeting_guest import Guest
from kerasdist.cluster.meeting_host import Host
from kerasdist.cluster.told import Told
from kerasdist.messages.patience import Patience
from kerasdist.support.terminal import say


def meet(
    address: str, *, rank: int, num_processes: int, num_ps: int, timeout_secs: float
) -> list[str]:
    """Returns "host:port" of every process, by rank, once all have come.

    Args:
        address: "host:port" at which the process of rank 0 listens.
        rank: Which of the processes this one is, from 0.
        num_processes: How many there are.
        num_ps: How many of them are parameter servers: the last ranks.
        timeout_secs: How long to wait for the others.

    Raises:
        ValueError: The secret is none, or KERASDIST_PORT no port.
        ClusterStartError: A process has not come in time; two have the same rank, or were told
            another number; a port is taken. All that have come hear the same message.
    """
    kind = Host if rank == 0 else Guest
    with held_port(address, rank) as port:
        told = Told(
            address=address,
            rank=rank,
            num_processes=num_processes,
            num_ps=num_ps,
            port=port,
        )
        patience = Patience(timeout_secs, report=say, clock=time.monotonic)
        return kind(told, patience, clock=time.monotonic).meet()
