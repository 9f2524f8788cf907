"""What a process knows before the meeting."""

import dataclasses
import os

from kerasdist.cluster.participant import Participant, facts_of_run
from kerasdist.messages.address import is_loopback, split_address
from kerasdist.messages.addresses import own_host

TICK_SECS = 0.05
# The verdict names everyone, so the others get the time to be part of it, and to hear it.
VERDICT_SECS = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What a process knows before it meets the others.

    Attributes:
        address: "host:port" at which the process of rank 0 listens.
        rank: Which of the processes this one is, from 0.
        num_processes: How many there are.
        num_ps: How many of them are parameter servers: the last ranks.
        port: The port at which TensorFlow will listen in it.
    """

    address: str
    rank: int
    num_processes: int
    num_ps: int
    port: int

    def participant(self, host: str) -> Participant:
        """Returns what this process says of itself, which others know under a host."""
        return Participant(
            rank=self.rank,
            num_processes=self.num_processes,
            num_ps=self.num_ps,
            address=f"{own_host(host)}:{self.port}",
            called=split_address(self.address)[0],
            run=facts_of_run(os.environ),
        )

    def describe_local_address(self) -> str:
        """Returns what to know of an address that each machine has; "" for another one."""
        host, _ = split_address(self.address)
        if not is_loopback(host):
            return ""
        return (
            f" {host} is each machine itself: if the processes are on several, give the name of "
            "the one with rank 0."
        )
