"""The settings of a launch: which tasks, and when to stop or restart them."""

import math
import os
from dataclasses import dataclass
from typing import TypedDict

from kerasdist.config import check_num_clones
from kerasdist.messages.address import check_address, split_address
from kerasdist.support.checks import (
    check_bool,
    check_choice,
    check_int,
    check_secs,
    checked_folder,
    is_int,
)
from kerasdist.support.remote_path import is_remote

NETWORKS = ("isolated", "host")
_EVERY_INTERFACE = ("0.0.0.0", "::")
_RESTARTS_OF_RANGE = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The arguments of `kerasdist.launch`, checked; they are described there.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: A number is out of range, `log_dir` is not a folder, or `network` is unknown.
    """

    num_workers: int | tuple[int, int] = 2
    num_ps: int = 0
    chief: bool = False
    evaluator: bool = False
    num_clones: int = 1
    num_backup_workers: int | None = None
    max_restarts: int | None = None
    grace_secs: float = 10.0
    timeout_secs: float | None = None
    start_timeout_secs: float = 300.0
    resize_secs: float = 60.0
    frozen_timeout_secs: float = 60.0
    log_dir: str | os.PathLike[str] | None = None
    network: str | None = None
    rendezvous: str | None = None

    def __post_init__(self) -> None:
        _check_workers(self)
        check_int("num_ps", self.num_ps, at_least=0)
        check_bool("chief", self.chief)
        check_bool("evaluator", self.evaluator)
        check_num_clones(self.num_clones)
        _check_backup_workers(self)
        if self.max_restarts is not None:
            check_int("max_restarts", self.max_restarts, at_least=0)
        check_secs("grace_secs", self.grace_secs)
        check_secs("timeout_secs", math.inf if self.timeout_secs is None else self.timeout_secs)
        check_secs("start_timeout_secs", self.start_timeout_secs)
        check_secs("resize_secs", self.resize_secs)
        check_secs("frozen_timeout_secs", self.frozen_timeout_secs)
        if self.log_dir is not None and is_remote(checked_folder("log_dir", self.log_dir)):
            raise ValueError(
                "`log_dir` must be a folder on this machine. Received: "
                f"log_dir={self.log_dir!r}. Mount the storage, or copy the logs there afterwards."
            )
        if self.network is not None:
            check_choice("network", self.network, NETWORKS)
        if self.rendezvous is not None:
            _check_rendezvous(self)

    @property
    def has_chief(self) -> bool:
        """Whether there is a chief; with parameter servers there always is one."""
        return self.chief or self.num_ps > 0

    @property
    def is_isolated(self) -> bool:
        """Whether the tasks should have a network of their own."""
        return (self.network or ("host" if self.rendezvous else "isolated")) == "isolated"

    @property
    def is_elastic(self) -> bool:
        """Whether the number of workers is a range."""
        return isinstance(self.num_workers, tuple)

    @property
    def fewest_workers(self) -> int:
        """Without so many, the job waits."""
        return self.num_workers[0] if isinstance(self.num_workers, tuple) else self.num_workers

    @property
    def most_workers(self) -> int:
        """Never more than so many run."""
        return self.num_workers[1] if isinstance(self.num_workers, tuple) else self.num_workers

    @property
    def most_restarts(self) -> int:
        """`max_restarts`, or what it is by default."""
        if self.max_restarts is None:
            return _RESTARTS_OF_RANGE if self.is_elastic else 0
        return self.max_restarts


def _check_rendezvous(settings: Settings) -> None:
    check_address("`rendezvous`", settings.rendezvous)
    received = f"Received: rendezvous={settings.rendezvous!r}"
    host, _ = split_address(str(settings.rendezvous))
    if host in _EVERY_INTERFACE:
        raise ValueError(
            f"`rendezvous` needs the name of one machine, which the others call. {received}."
        )
    if settings.has_chief or settings.evaluator:
        raise ValueError(
            "`rendezvous` is for workers alone: each agent runs one. "
            f"{received}, num_ps={settings.num_ps}, chief={settings.chief}, "
            f"evaluator={settings.evaluator}."
        )
    if settings.network == "isolated":
        raise ValueError(
            "`rendezvous` needs the network of the machines. "
            f"{received}, network={settings.network!r}. Leave the network out."
        )


def _check_workers(settings: Settings) -> None:
    number = settings.num_workers
    if not isinstance(number, tuple):
        check_int("num_workers", number, at_least=1)
        return
    if len(number) != 2 or not all(is_int(each) for each in number):
        raise TypeError(
            "`num_workers` must be an int, or a range of two: (1, 4) for 1 to 4 workers. Received: "
            f"num_workers={number!r}."
        )
    fewest, most = number
    if not 1 <= fewest <= most:
        raise ValueError(
            "`num_workers` must be a range from the fewest, at least 1, to the most. Received: "
            f"num_workers={number!r}. Give num_workers={max(1, min(number)), max(1, *number)}."
        )
    if settings.has_chief:
        received = f"num_ps={settings.num_ps}" if settings.num_ps else "chief=True"
        raise ValueError(
            "`num_workers` cannot be a range with a chief: with parameter servers, the job goes on "
            "without a lost worker anyway, and otherwise worker 0 is the chief. Received: "
            f"num_workers={number!r}, {received}. Give one number of workers, or leave it out."
        )


def _check_backup_workers(settings: Settings) -> None:
    number = settings.num_backup_workers
    if number is None:
        return
    check_int("num_backup_workers", number, at_least=0)
    if not settings.num_ps:
        raise ValueError(
            "`num_backup_workers` needs parameter servers: without them, no worker can be left "
            f"out. Received: num_backup_workers={number}, num_ps=0. Give num_ps=1, or leave it out."
        )
    if number >= settings.fewest_workers:
        raise ValueError(
            "`num_backup_workers` must be less than `num_workers`: those that are left make the "
            f"update. Received: num_backup_workers={number}, num_workers={settings.num_workers}."
        )


class SettingsOfLaunch(TypedDict, total=False):
    """The keyword arguments of `kerasdist.launch`, for type checkers."""

    num_workers: int | tuple[int, int]
    num_ps: int
    chief: bool
    evaluator: bool
    num_clones: int
    num_backup_workers: int | None
    max_restarts: int | None
    grace_secs: float
    timeout_secs: float | None
    start_timeout_secs: float
    resize_secs: float
    frozen_timeout_secs: float
    log_dir: str | os.PathLike[str] | None
    network: str | None
    rendezvous: str | None


# The command takes its defaults from here; `launch` and `run_cluster` have the same ones.
DEFAULTS = Settings()
