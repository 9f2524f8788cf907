"""What a launch is asked for: which tasks, and when to stop or restart them."""

import math
import os
from dataclasses import dataclass

NETWORKS = ("isolated", "host")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The arguments of `kerasdist.launch`, checked; they are described there.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: A number is out of range, or `network` is unknown.
    """

    num_workers: int = 2
    num_ps: int = 0
    chief: bool = False
    evaluator: bool = False
    num_clones: int = 1
    max_restarts: int = 0
    grace_secs: float = 10.0
    timeout_secs: float | None = None
    frozen_timeout_secs: float = 60.0
    log_dir: str | os.PathLike[str] | None = None
    network: str = "isolated"

    def __post_init__(self) -> None:
        _check_count("num_workers", self.num_workers, minimum=1)
        _check_count("num_ps", self.num_ps, minimum=0)
        _check_bool("chief", self.chief)
        _check_bool("evaluator", self.evaluator)
        _check_count("num_clones", self.num_clones, minimum=1)
        _check_count("max_restarts", self.max_restarts, minimum=0)
        _check_secs("grace_secs", self.grace_secs)
        _check_secs("timeout_secs", math.inf if self.timeout_secs is None else self.timeout_secs)
        _check_secs("frozen_timeout_secs", self.frozen_timeout_secs)
        if self.network not in NETWORKS:
            raise ValueError(
                f"`network` must be one of {', '.join(NETWORKS)}. "
                f"Received: network={self.network!r}."
            )

    @property
    def has_chief(self) -> bool:
        """Whether there is a chief; with parameter servers there always is one."""
        return self.chief or self.num_ps > 0


def _check_count(name: str, value: object, *, minimum: int) -> None:
    # True and False are ints to Python; `num_workers=True` is a slip, not one worker.
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"`{name}` must be an int. Received: {name}={value!r}.")
    if value < minimum:
        raise ValueError(f"`{name}` must be at least {minimum}. Received: {name}={value}.")


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"`{name}` must be True or False. Received: {name}={value!r}.")


def _check_secs(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"`{name}` must be a number of seconds. Received: {name}={value!r}.")
    if not value >= 0:  # Also refuses nan.
        raise ValueError(f"`{name}` must not be negative. Received: {name}={value}.")
