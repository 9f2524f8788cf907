"""Gives the tasks of a launch their addresses, and the variables of their environment."""

import itertools
import json
import os
import random
import resource
import socket
from collections.abc import Mapping
from pathlib import Path

from kerasdist.cluster import Task
from kerasdist.processes.settings import Settings
from kerasdist.support import environment
from kerasdist.support.terminal import identity_of
from kerasdist.support.usage_error import UsageError

# Below those that Linux gives to outgoing connections: the tasks make many of these before the
# last of them listens.
_PORTS = range(15000, 30000)
_MOST_TASKS = 1000  # Far more than a machine has cores.
_OTHER_FILES = 50  # Open in the launcher in addition to the log of each task.


def tasks_of(settings: Settings, *, num_workers: int | None = None) -> list[Task]:
    """Returns the tasks in the order chief, workers, ps, evaluator.

    Args:
        settings: Those of the launch.
        num_workers: How many workers; the most that may ever run by default.

    Raises:
        UsageError: They are more than this machine can run.
    """
    counts = {
        "chief": int(settings.has_chief),
        "worker": settings.most_workers if num_workers is None else num_workers,
        "ps": settings.num_ps,
        "evaluator": int(settings.evaluator),
    }
    _check_room(sum(counts.values()))
    return [Task(job, index) for job, count in counts.items() for index in range(count)]


def _check_room(num_tasks: int):
    if num_tasks > _MOST_TASKS:
        raise UsageError(
            f"A launch has at most {_MOST_TASKS:,} tasks, which all run on this machine. "
            f"Received: {num_tasks:,} tasks. Launch fewer."
        )
    most_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most_files != resource.RLIM_INFINITY and num_tasks + _OTHER_FILES > most_files:
        raise UsageError(
            f"{num_tasks:,} tasks need {num_tasks + _OTHER_FILES:,} open files, but this process "
            f"may have {most_files:,}. Allow more (`ulimit -n`), or launch fewer tasks."
        )


def free_addresses(number: int, *, host: str = "127.0.0.1") -> list[str]:
    """Returns so many addresses on this machine, which the other tasks know by that host.

    Raises:
        UsageError: There are fewer free ports.
    """
    return [f"{host}:{port}" for port in _free_ports(number)]


def addresses_of_this_machine() -> list[str]:
    """Returns the addresses at which a server that listens on every interface is reached."""
    import psutil  # Here: `import kerasdist` should stay quick.

    return [
        each.address
        for interface in psutil.net_if_addrs().values()
        for each in interface
        if each.family in (socket.AF_INET, socket.AF_INET6) and "%" not in each.address
    ]


def task_environment(
    task: Task,
    addresses: Mapping[Task, str],
    settings: Settings,
    *,
    run_id: str,
    num_restarts: int,
    note: Path,
    shown_log: Path | None = None,
) -> dict[str, str]:
    """Returns the variables that a task gets in addition to those of the launcher.

    Args:
        task: The task.
        addresses: Those of all tasks.
        settings: Those of the launch.
        run_id: The same for all tasks of the launch.
        num_restarts: How often the cluster was started before.
        note: File in which the task leaves what the launcher should know; see `launch_note`.
        shown_log: Its log, if a terminal shows the progress bar in it.
    """
    cluster: dict[str, list[str]] = {}
    for member, address in addresses.items():
        cluster.setdefault(member.job, []).append(address)
    return {
        "TF_CONFIG": json.dumps(
            {"cluster": cluster, "task": {"type": task.job, "index": task.index}}
        ),
        environment.NUM_CLONES: str(settings.num_clones),
        environment.NUM_BACKUP_WORKERS: (
            "" if settings.num_backup_workers is None else str(settings.num_backup_workers)
        ),
        environment.NUM_TASKS: str(len(addresses) + settings.evaluator),
        environment.WORKERS: (
            f"{settings.fewest_workers}:{settings.most_workers}" if settings.is_elastic else ""
        ),
        environment.RESTART_COUNT: str(num_restarts),
        environment.RUN_ID: run_id,
        environment.NOTE: str(note),
        environment.LAUNCH_FOLDER: str(note.parent),
        "PYTHONUNBUFFERED": "1",  # The last lines before a crash must reach the log.
        **_quiet(settings),
        **({environment.TERMINAL: identity_of(shown_log.stat())} if shown_log else {}),
    }


def run_id_of(launch_id: str, environ: Mapping[str, str] = os.environ) -> str:
    """Returns the value of KERASDIST_RUN_ID for the tasks of a launch.

    It is that of the job, if the launch was given one: then it is the same where a scheduler starts
    the launch again. One that a task of another launch has started is a run of its own.

    Args:
        launch_id: What no other launch has.
        environ: The variables of the launch.
    """
    is_inside = environment.LAUNCH_FOLDER in environ
    return launch_id if is_inside else environ.get(environment.RUN_ID, "").strip() or launch_id


def _quiet(settings: Settings) -> dict[str, str]:
    """Returns what hides the pages that TensorFlow's transport logs when a worker is lost.

    With parameter servers the job goes on then, and says so in a line.
    """
    if not settings.num_ps:
        return {}
    return {"TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3")}


def _free_ports(count: int) -> list[int]:
    # A generator of its own: the user's seed must neither repeat the ports nor be used up.
    numbers = random.Random().sample(_PORTS, len(_PORTS))
    ports = list(itertools.islice(filter(_is_free, numbers), count))
    if len(ports) < count:
        raise UsageError(
            f"{count:,} tasks need as many free ports from {_PORTS.start} to {_PORTS.stop - 1}, "
            f"but this machine has {len(ports):,}. Stop what uses the others "
            "(`ss --listening --tcp --processes`), or launch fewer tasks."
        )
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("", port))  # Every interface, as TensorFlow's server does.
        except OSError:
            return False
    return True
