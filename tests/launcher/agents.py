"""Agents as real processes: one `launch` each, which meet at an address of this machine."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.launcher.programs import launched_processes, python, wait_until
from tests.launcher.test_elastic import TRAINING
from tests.test_preflight import free_addresses

# Trains until there is a file "enough".
PROGRAM = python(
    TRAINING
    + """
wait_for_all()
others = [f"worker {index} of attempt {attempt}" for index in range(num_workers)]
pids = [int(open(other).read() or os.getpid()) for other in others]
while not os.path.exists("enough"):
    time.sleep(0.02)
    os.path.exists("no checkpoints") or save(newest() + 1)
    for pid in pids:
        status = open(f"/proc/{pid}/stat").read() if os.path.exists(f"/proc/{pid}") else ") Z"
        if status.rpartition(") ")[2][0] in "ZX" and not os.path.exists("enough"):
            sys.exit(138)
"""
)
# Ten seconds of silence are long for a test.
_COMMAND = """
import sys
from kerasdist import __main__ as command
from kerasdist.messages import heartbeat
heartbeat.SILENCE_SECS = 3.0
sys.exit(command.main())
"""


class Agent:
    """One of them, and what its console shows."""

    def __init__(self, name: str, command: list[str], environ: dict[str, str]):
        self._output = Path(f"console of {name}")
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environ},
            )

    @property
    def console(self) -> str:
        return self._output.read_text()

    def wait_for(self, pattern: str, *, timeout_secs: float = 30) -> None:
        def is_there():
            assert self.process.poll() is None or re.search(pattern, self.console), self.console
            return re.search(pattern, self.console)

        wait_until(is_there, timeout_secs=timeout_secs)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, *, timeout_secs: float = 30) -> int:
        return self.process.wait(timeout_secs)


class Job:
    """All agents that meet at one address."""

    def __init__(self):
        (self.address,) = free_addresses(1)
        self._agents: list[Agent] = []

    def start(
        self,
        workers: str = "1:3",
        *flags: str,
        program: list[str] = PROGRAM,
        rendezvous: str = "",
        **environ: str,
    ) -> Agent:
        command = [sys.executable, "-c", _COMMAND, "launch", "--workers", workers, "--rendezvous"]
        command += [rendezvous or self.address, "--resize-secs=1", "--grace-secs=3", *flags, "--"]
        agent = Agent(str(len(self._agents)), [*command, *program], environ)
        self._agents.append(agent)
        return agent

    def start_all(self, number: int, workers: str) -> list[Agent]:
        """Starts agents such that the first leads."""
        leader = self.start(workers)
        leader.wait_for("leads this job")
        agents = [leader, *(self.start(workers) for _ in range(number - 1))]
        for agent in agents:
            agent.wait_for("Launch\n")
        return agents

    def close(self) -> None:
        for agent in self._agents:
            if agent.process.poll() is None:
                agent.send(signal.SIGCONT)
                agent.process.kill()
            agent.process.wait(10)
        # The guards of those that were killed.
        wait_until(lambda: not launched_processes() and not os.listdir(tempfile.gettempdir()))
