"""Options of a cluster: how long tasks wait for each other, and how they work."""

from dataclasses import dataclass
from typing import Any

from kerasdist.support.checks import check_bool, check_choice, check_int, check_positive, check_text

# The arguments that only one strategy has a use for.
_OWNERS = {
    "communication_options": "MultiWorkerMirroredStrategy",
    "allreduce_dtype": "MultiWorkerMirroredStrategy",
    "wait_for_chief": "ParameterServerStrategy",
    "steps_per_call": "ParameterServerStrategy",
    "variable_partitioner": "ParameterServerStrategy",
}
_PURPOSES = {
    "MultiWorkerMirroredStrategy": "several workers without parameter servers",
    "ParameterServerStrategy": "parameter servers",
}


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
    allreduce_dtype: str | None
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
        _check_communication_options(self.communication_options)
        if self.allreduce_dtype is not None:
            check_text("allreduce_dtype", self.allreduce_dtype)
            check_choice("allreduce_dtype", self.allreduce_dtype, ("float16", "bfloat16"))
        if not (self.variable_partitioner is None or callable(self.variable_partitioner)):
            raise TypeError(
                "`variable_partitioner` must be a function, such as one of "
                "tf.distribute.experimental.partitioners. Received: variable_partitioner="
                f"{self.variable_partitioner!r}."
            )

    def without_effect(self, strategy: str) -> dict[str, str]:
        """Returns what was given and has no effect: the names, and what each of them is for.

        Args:
            strategy: The name of the strategy that was chosen.
        """
        given = [name for name in _OWNERS if getattr(self, name)]
        return {name: _PURPOSES[_OWNERS[name]] for name in given if _OWNERS[name] != strategy}


def _check_communication_options(options: Any) -> None:
    if options is None:
        return
    import tensorflow as tf

    # What TensorFlow's public name makes is not of the class that has this name.
    if not isinstance(options, type(tf.distribute.experimental.CommunicationOptions())):
        raise TypeError(
            "`communication_options` must be a tf.distribute.experimental.CommunicationOptions. "
            f"Received: communication_options={options!r}."
        )
