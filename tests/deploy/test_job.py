"""The Job of deploy/ goes on without a pod, and without its leader: its pods are launches here.

What Kubernetes does is done here by hand, by the rules of the manifest: a pod that has ended is
started again, as long as its exit code does not fail the Job.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.deploy.platforms import processes_of, read
from tests.deploy.test_manifests import JOB, ROOT, outcome_of_job
from tests.launcher.programs import python, wait_until
from tests.test_preflight import free_addresses

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

# A training without TensorFlow: it saves until there is a file "enough".
TASK = python("""
def end(*_):
    leave(f"saved:{step}")
    sys.exit(143)

signal.signal(signal.SIGTERM, end)
step = 0
leave("joined")
start = os.environ["KERASDIST_RUN_ID"], os.environ["KERASDIST_RESTART_COUNT"]
with open("starts", "a") as starts:
    print(*start, len(config["cluster"]["worker"]), flush=True, file=starts)
while not os.path.exists("enough"):
    time.sleep(0.05)
    step += 1
    leave(f"saved:{step}")
""")


class Pods:
    """The pods of the Job."""

    def __init__(self):
        (here,) = free_addresses(1)
        self._commands = []
        self._environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        for process in processes_of(JOB):
            self._environ["KERASDIST_RUN_ID"] = process.environ["KERASDIST_RUN_ID"]
            [end] = [at for at, word in enumerate(process.command) if word == "--"]
            words = [
                f"--rendezvous={here}" if word.startswith("--rendezvous=") else word
                for word in process.command[1 : end + 1]
            ]
            self._commands.append([sys.executable, *words, *TASK])
        self.running = [self._start(0)]
        # All have the address of the leader here.
        wait_until(lambda: "leads this job" in Path("console of 0").read_text(), timeout_secs=60)
        self.running += [self._start(index) for index in range(1, 4)]

    def _start(self, index: int) -> subprocess.Popen:
        with open(f"console of {index}", "a") as console:
            return subprocess.Popen(
                self._commands[index],
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
            )

    def kill(self, index: int) -> None:
        self.running[index].kill()
        self.running[index].wait()

    def start_again(self, *, until) -> list[int]:
        """Starts pods again until something is true, and returns the exit codes of all ends."""
        [_, job] = read(JOB)
        codes = []
        deadline = time.monotonic() + 60
        while not until():
            assert time.monotonic() < deadline, codes
            time.sleep(0.05)
            for index, pod in enumerate(self.running):
                if pod.poll() is not None and not until():
                    code = pod.returncode if pod.returncode >= 0 else 128 - pod.returncode
                    assert outcome_of_job(job["spec"], code) == ("", ""), code
                    codes.append(code)
                    self.running[index] = self._start(index)
        return codes

    def close(self) -> None:
        for pod in self.running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                pod.send_signal(signal.SIGTERM)
                pod.wait(15)
            pod.kill()
            pod.wait()


@pytest.fixture
def pods(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("starts").touch()
    pods = Pods()
    yield pods
    pods.close()


def starts() -> list[tuple[str, int]]:
    """Returns the run and the number of workers of each start of which all tasks are there."""
    lines = Path("starts").read_text().splitlines()
    complete = {line for line in lines if lines.count(line) == int(line.split()[-1])}
    return [(line.split()[0], int(line.split()[-1])) for line in lines if line in complete]


def are_all_there() -> bool:
    return starts()[-1:] != [] and starts()[-1][1] == 4


def test_it_goes_on_without_a_pod_and_then_without_its_leader(pods):
    wait_until(are_all_there, timeout_secs=60)
    [(run, _)] = set(starts())
    assert run == "9b1d02"  # The same to the end, also for a tracker.
    pods.kill(2)
    wait_until(lambda: starts()[-1] == (run, 3), timeout_secs=60)
    codes = pods.start_again(until=are_all_there)
    assert codes == [137]

    pods.kill(0)
    Path("starts").write_text("")
    codes = pods.start_again(until=are_all_there)
    assert set(codes) <= {137, 138, 143}
    assert len(codes) == 4
    assert starts()[-1] == (run, 4)
    Path("enough").touch()
    assert [pod.wait(30) for pod in pods.running] == [0] * 4
