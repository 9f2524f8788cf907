"""What a program asks of its cluster: how long tasks wait for each other, and how they work."""

from dataclasses import dataclass
from typing import Any

from kerasdist.checks import check_bool, check_int, check_positive


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """The arguments of `make_strategy` for several tasks; each of them is documented there.

    Raises:
        TypeError, ValueError: One of them has the wrong type, or a limit is not positive.
    """

    start_timeout_secs: float
    heartbeat_timeout_secs: float
    step_timeout_secs: float
    chief_timeout_secs: float
    wait_for_chief: bool
    communication_options: Any
    steps_per_call: int | None
    variable_partitioner: Any

    def __post_init__(self):
        check_positive("start_timeout_secs", self.start_timeout_secs, finite=True)
        check_positive("heartbeat_timeout_secs", self.heartbeat_timeout_secs, finite=True)
        check_positive("step_timeout_secs", self.step_timeout_secs)
        check_positive("chief_timeout_secs", self.chief_timeout_secs)
        check_bool("wait_for_chief", self.wait_for_chief)
        if self.steps_per_call is not None:
            check_int("steps_per_call", self.steps_per_call, at_least=1)
