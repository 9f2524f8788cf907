"""Slurm on this machine: its three daemons, started for a test."""

import contextlib
import getpass
import secrets
import socket
import time
from collections.abc import Generator
from pathlib import Path

from tests.schedulers.processes import Processes, Started, needs

needs_slurm = needs(
    *("munged", "slurmctld", "slurmd", "srun", "sbatch"), package="Debian's slurm-wlm and munge"
)
_START_SECS = 60
# One node, which may have more tasks than this machine has cores; its name is what tasks connect
# to. A job that is requeued begins when its credential has expired.
_CONF = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=2
SlurmdParameters=config_overrides
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 CPUs=4
PartitionName=all Nodes=localhost Default=YES State=UP
"""


@contextlib.contextmanager
def running(processes: Processes) -> Generator[None]:
    """Runs munged, slurmctld and slurmd, which all that is started from now on finds.

    Raises:
        TimeoutError: The node does not become idle; the message has the logs.
    """
    folder = processes.folder / "slurm"
    _write(folder)
    processes.variables["SLURM_CONF"] = str(folder / "slurm.conf")
    with contextlib.ExitStack() as stack:
        daemons = [
            stack.enter_context(processes.daemon(*command))
            for command in (
                ["munged", "--foreground", "--force", *_munge_files(folder)],
                ["slurmctld", "-D"],
                ["slurmd", "-D", "-N", "localhost"],
            )
        ]
        _wait_until_idle(processes, daemons)
        yield


def _wait_until_idle(processes: Processes, daemons: list[Started]) -> None:
    end = time.monotonic() + _START_SECS
    while (state := processes.run("sinfo --noheader --format=%T").output.strip()) != "idle":
        if time.monotonic() > end:
            logs = [each.output[-2000:] for each in daemons]
            raise TimeoutError("\n".join([f"Slurm's node is {state!r}.", *logs]))
        time.sleep(0.2)


def finished_job(processes: Processes, job: str, *, timeout_secs: float) -> str:
    """Returns what Slurm says about a job once it has ended for good.

    Raises:
        TimeoutError: It has not ended in time; the message has what Slurm says.
    """
    end = time.monotonic() + timeout_secs
    while time.monotonic() < end:
        said = processes.run(f"scontrol --oneliner show job {job}").output
        if any(f"JobState={state}" in said for state in ("COMPLETED", "FAILED", "TIMEOUT")):
            return said
        time.sleep(0.5)
    raise TimeoutError(said)


def _write(folder: Path) -> None:
    for each in (folder, folder / "state", folder / "spool"):
        each.mkdir()
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o600)
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        controller_port, node_port = (each.getsockname()[1] for each in (one, other))
    content = _CONF.format(
        folder=folder,
        user=getpass.getuser(),
        host=socket.gethostname().partition(".")[0],
        controller_port=controller_port,
        node_port=node_port,
    )
    (folder / "slurm.conf").write_text(content)


def _munge_files(folder: Path) -> list[str]:
    return [f"--{each}-file={folder}/munge.{each}" for each in ("key", "pid", "log", "seed")] + [
        f"--socket={folder}/munge.socket"
    ]
