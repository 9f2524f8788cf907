"""The rendezvous of agents: one `launch` on each machine, and the one that can listen there leads.

    python -m kerasdist launch --workers 1:4 --rendezvous node1:29400 -- python train.py

The leader is the agent on whose machine the address is. It watches the whole job, and so its loss
ends it; the others may come and go.
"""

import dataclasses
import shlex
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from kerasdist.cluster import Task
from kerasdist.launcher import reports
from kerasdist.launcher.agent import Agent
from kerasdist.launcher.agent_messages import Greeting
from kerasdist.launcher.gathering import Gathering
from kerasdist.launcher.leader import Leader
from kerasdist.launcher.leader_search import LeaderSearch, NobodyThereError, Welcome
from kerasdist.launcher.local_machine import LocalMachine
from kerasdist.messages.address import is_loopback, split_address
from kerasdist.messages.addresses import own_host
from kerasdist.messages.connections import Connections
from kerasdist.messages.shared_key import from_env
from kerasdist.processes.console import Console
from kerasdist.processes.guard import Guard
from kerasdist.processes.result import LaunchResult
from kerasdist.processes.settings import Settings
from kerasdist.processes.task_environment import run_id_of, tasks_of
from kerasdist.support.exit_codes import PEER_FAILED

_OPEN_PORTS = (
    "warning: With --rendezvous, the workers use the network of their machines. TensorFlow's "
    "servers listen on every interface, without authentication, on ports from 15000 to 29999: "
    "whoever connects can run programs as you. Let a firewall admit the machines of the job alone "
    "(docs/clusters.md)."
)


def run_at_rendezvous(
    program: Sequence[str], settings: Settings, *, guard: Guard, stream: TextIO | None
) -> LaunchResult:
    """Runs the workers of this machine in a job whose agents meet at `settings.rendezvous`.

    Args:
        program: The command and its arguments.
        settings: Those of the launch, with a rendezvous.
        guard: It must outlive this.
        stream: Where the outcome and the output of this machine's worker are written, if anywhere.

    Raises:
        UsageError: This agent does not fit to the leader: another secret, version, range or
            program; or its logs cannot be written.
    """
    if settings.log_dir is not None:  # Agents may share a disk, and each has its own logs.
        settings = dataclasses.replace(settings, log_dir=Path(settings.log_dir) / guard.run_id)
    if settings.network is None:
        print(_OPEN_PORTS, file=sys.stderr)
    return _Launch(program, settings, guard, Console(stream, tasks_of(settings))).run()


class _Launch:
    def __init__(self, program: Sequence[str], settings: Settings, guard: Guard, console: Console):
        self._program, self._settings, self._guard = program, settings, guard
        self._console = console
        assert settings.rendezvous is not None
        self._address = settings.rendezvous
        self._greeting = Greeting.of_this_process(program, settings)

    def run(self) -> LaunchResult:
        with Connections(None, clock=time.monotonic, shared_key=from_env()) as connections:
            search = LeaderSearch(
                self._address,
                self._greeting,
                connections,
                timeout_secs=self._settings.start_timeout_secs,
                say=self._console.say,
            )
            try:
                found = search.find()
            except NobodyThereError as error:
                return self._in_vain(str(error))
            if isinstance(found, Welcome):
                return self._follow(found, connections)
        return self._lead(found)

    def _in_vain(self, reason: str) -> LaunchResult:
        self._console.say(reason)
        return LaunchResult(
            exit_code=PEER_FAILED, tasks=(), root_cause=None, reason=reason, num_restarts=0
        )

    def _follow(self, welcome: Welcome, connections: Connections) -> LaunchResult:
        host = own_host(welcome.connection.own_host)
        with self._machine(welcome.name, host=host, run_id=welcome.run_id) as machine:
            self._console.say(
                f"{welcome.leader} leads this job, at {self._address}. Logs of this machine, "
                f"{welcome.name}: {machine.log_dir}"
            )
            agent = Agent(machine, welcome.connection, connections, console=self._console)
            return agent.run()

    def _lead(self, listener: socket.socket) -> LaunchResult:
        run_id, name = run_id_of(self._guard.run_id), self._greeting.machine
        host = own_host(split_address(self._address)[0])
        with (
            listener,
            self._machine(name, host=host, run_id=run_id) as machine,
            Gathering(
                listener,
                machine,
                self._greeting,
                run_id=run_id,
                most_workers=self._settings.most_workers,
                grace_secs=self._settings.grace_secs,
                console=self._console,
            ) as gathering,
        ):
            local = " on this machine alone" if is_loopback(split_address(self._address)[0]) else ""
            self._console.say(f"{name} leads this job: others meet it{local} at {self._address}.")

            def plan(tasks: Sequence[Task], addresses: Mapping[Task, str]) -> str:
                return reports.describe_plan(
                    shlex.join(self._program),
                    self._settings,
                    tasks,
                    addresses,
                    network=f"that of the machines: {reports.ports(addresses)} open, no password",
                    log_dir=f"{machine.log_dir} on {name}",
                )

            leader = Leader(self._settings, gathering.machines, say=gathering.say, plan=plan)
            try:
                result = leader.run()
            except BaseException:
                gathering.let_go(None, f"The leader, {name}, ended before the job was done.")
                raise
            gathering.let_go(result.exit_code, result.reason)
            return result

    def _machine(self, name: str, *, host: str, run_id: str) -> LocalMachine:
        return LocalMachine(
            self._program,
            self._settings,
            tasks_of(self._settings),
            guard=self._guard,
            console=self._console,
            run_id=run_id,
            num_places=1,
            name=name,
            host=host,
        )
