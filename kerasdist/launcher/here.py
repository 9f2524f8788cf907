"""A launch whose tasks all run on this machine."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from kerasdist.cluster import Task
from kerasdist.launcher import reports
from kerasdist.launcher.leader import Leader
from kerasdist.launcher.local_machine import LocalMachine
from kerasdist.processes.console import Console
from kerasdist.processes.guard import ISOLATED, Guard
from kerasdist.processes.result import LaunchResult
from kerasdist.processes.settings import Settings
from kerasdist.processes.task_environment import run_id_of, tasks_of
from kerasdist.support import environment


def run_here(
    program: Sequence[str],
    settings: Settings,
    *,
    guard: Guard,
    stream: TextIO | None,
    title: str = "",
    for_all: bool = False,
) -> tuple[LaunchResult, str]:
    """Runs a program as all tasks of a cluster on this machine, and again if that may help.

    Args:
        program: The command and its arguments.
        settings: Tasks, limits and restarts.
        guard: Has the network; it must outlive this.
        stream: Where the plan, the tasks' output and the outcome are written, if anywhere.
        title: What the plan calls the program; the command by default.
        for_all: Whether a failed task leaves the others running until they end by themselves.

    Returns:
        How it ended, and the lines that were said about it.

    Raises:
        UsageError: The directory of the logs cannot be written, or there are too many tasks.
    """
    tasks = tasks_of(settings)
    console = Console(stream, tasks)
    machine = LocalMachine(
        program,
        settings,
        tasks,
        guard=guard,
        console=console,
        run_id=run_id_of(guard.run_id),
        num_places=settings.most_workers,
        for_all=for_all,
    )

    def plan(tasks: Sequence[Task], addresses: Mapping[Task, str]) -> str:
        if guard.network != ISOLATED and settings.is_isolated:
            print(reports.open_ports_warning(guard.network, addresses), file=sys.stderr)
        if guard.network == ISOLATED and os.environ.get(environment.STATUS_PORT):
            print(reports.unreachable_state_warning(), file=sys.stderr)
        return reports.describe_plan(
            title or shlex.join(program),
            settings,
            tasks,
            addresses,
            network=reports.describe_network(guard.network, addresses),
            log_dir=machine.log_dir,
        )

    with machine:
        leader = Leader(settings, lambda: [machine], say=console.say, plan=plan)
        return leader.run(), leader.end
