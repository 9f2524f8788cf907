"""What each fault does to a job under `launch`: a table of docs/cluster_details.md.

    python -m tests.cluster.fault_table                 # All of it; some minutes.
    python -m tests.cluster.fault_table ps              # The rows in which a word occurs.

Every job trains 300 steps, and in its 20th step the fault happens.
"""

import dataclasses
import json
import os
import re
import sys
import tempfile
import uuid
from pathlib import Path

import psutil

from tests import fork_server
from tests.cluster import outcomes

NUM_STEPS, BATCH_SIZE = 300, 4
RESTARTS = "--max-restarts=1"

PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import kerasdist

NUM_STEPS, BATCH_SIZE = {num_steps}, {batch_size}
folder = Path({folder!r})
if "TASK" in os.environ:
    me = os.environ["TASK"]
else:
    kind = json.loads(os.environ["TF_CONFIG"])["task"]
    me = f"{{kind['type']}} {{kind['index']}}"
index = int(me.split()[1])
num_restarts = int(os.environ.get("KERASDIST_RESTART_COUNT", "0"))
start_secs, pause_secs = 60, 0.01
(folder / me).write_text(str(os.getpid()))
(folder / f"agent of {{me}}").write_text(str(os.getppid()))
optimizer, callbacks = "sgd", []


def send(task, number):
    os.kill(int((folder / task).read_text()), number)


def checkpointed():
    callbacks.append(kerasdist.callbacks.Checkpoint(folder / "run", every_steps=50))


def acts():
    print(f"acts at {{time.time()}}", flush=True)


class Act(keras.callbacks.Callback):
    num_steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.num_steps += 1
        time.sleep(pause_secs)
        if self.num_steps == 20 and me == {actor!r} and not (folder / "acted").exists():
            (folder / "acted").touch()
            acts()
            act()


def act():
    pass


{source}

strategy = kerasdist.make_strategy(start_timeout_secs=start_secs, step_timeout_secs=14)
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
x, y = (np.ones((BATCH_SIZE * NUM_STEPS, size), "float32") for size in (2, 1))
model.fit(x, y, batch_size=BATCH_SIZE, verbose=0, callbacks=[*callbacks, Act()])
# Of all workers: a metric adds up theirs.
result = int(model.optimizer.iterations.numpy()), float(model.metrics[0].count)
if kerasdist.is_chief():
    print("result", json.dumps(result), flush=True)
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """One row.

    Attributes:
        name: What happens.
        deployment: One of `_OPTIONS`, or of `_STARTERS`.
        source: Python that defines `act()`, or happens before the start.
        actor: The task that calls `act()`.
        code: With what the launch is to end: 0 where the job is to go on.
        culprit: Whom its output is to name, in lines of others.
        options: More for the launcher.
    """

    name: str
    deployment: str
    source: str
    actor: str
    code: int = 0
    culprit: str
    options: tuple[str, ...] = ()

    def __str__(self):
        return f"{self.name}, {self.deployment}"


def _of_one_task(name, source, deployment="one device", **given):
    return Fault(name=name, deployment=deployment, source=source, actor="worker 0", **given)


def _of_workers(name, source, actor="worker 0", **given):
    return Fault(name=name, deployment="2 workers", source=source, actor=actor, **given)


def _of_servers(name, source, **given):
    return Fault(name=name, deployment="2 workers, 2 ps", source=source, actor="chief 0", **given)


def _of_range(name, source, **given):
    return Fault(name=name, deployment="1 to 3 workers", source=source, actor="worker 0", **given)


def _by_agents(name, source, **given):
    return Fault(name=name, deployment="3 agents", source=source, actor="worker 0", **given)


def _by_rank(name, source, deployment="2 workers by rank", actor="worker 0", **given):
    return Fault(name=name, deployment=deployment, source=source, actor=actor, **given)


def _sending(tasks, name, before=""):
    sent = [f"    send({task!r}, signal.{name})" for task in tasks.split(", ")]
    if "agent of worker 0" in tasks:
        sent = ["    time.sleep(0.5)", *sent]  # It shows first when that was.
    return "\n".join([before, "def act():", *sent])


_SAVES = "checkpointed()"
_TERM = "Received SIGTERM{}: checkpoint saved"
_FULL = """
import resource
checkpointed()
resource.setrlimit(resource.RLIMIT_FSIZE, (6000, resource.RLIM_INFINITY))
acts()
"""
_STUCK_STEP = f"""
{outcomes.STUCK_STEP}
keras.Sequential = Stuck
"""

_IN_THREAD = """
import threading

class InThread(keras.Sequential):
    def fit(self, *args, **given):
        thread = threading.Thread(target=super().fit, args=args, kwargs=given)
        thread.start()
        thread.join()

keras.Sequential = InThread

def act():
    raise ValueError("my own bug")
"""
_HALTED_FOR_SECS = """
import threading

def act():
    send("worker 1", signal.SIGSTOP)
    threading.Timer(4, send, ("worker 1", signal.SIGCONT)).start()
"""
_HALTED_GUARD = """
import psutil

def act():
    for each in psutil.Process(os.getppid()).children():
        if "guard.py" in " ".join(each.cmdline()):
            each.suspend()
"""
_HALTED_BEFORE_RESULTS = """
class Halt(keras.callbacks.Callback):
    def on_test_batch_end(self, batch, logs=None):
        if batch == NUM_STEPS - 1:
            acts()
            send("worker 1", signal.SIGSTOP)

class Evaluates(keras.Sequential):
    def fit(self, x, y, **given):
        super().fit(x, y, **given)
        self.evaluate(x, y, batch_size=BATCH_SIZE, verbose=0, callbacks=[Halt()])

keras.Sequential = Evaluates
"""

_COMES_BACK = """
pause_secs = 0.1 if num_restarts == 1 else 0.01
"""
_IS_MISSING = """
start_secs = 10
acts()
if me == {!r}: sys.exit(0)
"""
# The second worker has come to the meeting when the third one kills it.
_KILLED_IN_MEETING = """
start_secs = 20
if me == "worker 2":
    time.sleep(8)
    acts()
    send("worker 1", signal.SIGKILL)
"""
_STARTED_AGAIN = """
def act():
    global pause_secs
    pause_secs = 0.1
    send("worker 1", signal.SIGKILL)
"""

FAULTS = [
    *(
        _of_one_task(
            name,
            _sending("worker 0", f"SIG{name}", _SAVES),
            deployment,
            culprit=culprit,
            options=(RESTARTS,),
        )
        for deployment in ("one device", "2 clones")
        for name, culprit in {
            "KILL": "worker 0",
            "TERM": _TERM.format(""),
            "INT": "worker 0",
            "HUP": "worker 0",
        }.items()
    ),
    _of_one_task("the disk of the checkpoints is full", _FULL, culprit="File too large"),
    _of_workers("KILL of a worker", _sending("worker 1", "SIGKILL"), code=137, culprit="worker 1"),
    _of_workers(
        "KILL of a worker, with checkpoints",
        _sending("worker 1", "SIGKILL", _SAVES),
        culprit="worker 1",
        options=(RESTARTS,),
    ),
    _of_workers(
        "TERM of a worker, with checkpoints",
        _sending("worker 1", "SIGTERM", _SAVES),
        culprit=_TERM.format(" on worker 1"),  # They all leave together.
        options=(RESTARTS,),
    ),
    _of_workers(
        "a worker is halted", _sending("worker 1", "SIGSTOP"), code=137, culprit="worker 1"
    ),
    _of_workers("a worker is halted for 4 s", _HALTED_FOR_SECS, culprit="worker 1"),
    _of_workers("the guard of the launch is halted", _HALTED_GUARD, culprit="The guard"),
    _of_workers(
        "an error on a worker that trains in a thread",
        _IN_THREAD,
        actor="worker 1",
        code=1,
        culprit="worker 1",
    ),
    _of_workers(
        "an error on a worker",
        "def act(): raise ValueError('my own bug')",
        actor="worker 1",
        code=1,
        culprit="worker 1",
    ),
    _of_workers(
        "a worker is stuck in a callback",
        "def act(): time.sleep(1000)",
        actor="worker 1",
        code=1,
        culprit="worker 1",
    ),
    _of_workers(
        "another optimizer on a worker",
        "optimizer = ['sgd', 'adam'][index]\nacts()",
        code=1,
        culprit="worker 1",
    ),
    _of_workers(
        "a worker ends before it joins",
        "acts()\nif index: sys.exit(0)",
        code=1,
        culprit="worker 1",
    ),
    _of_servers("KILL of a worker", _sending("worker 1", "SIGKILL"), culprit="worker 1"),
    _of_servers("TERM of a worker", _sending("worker 1", "SIGTERM"), culprit="worker 1"),
    _of_servers("a worker is halted", _sending("worker 1", "SIGSTOP"), culprit="worker 1"),
    _of_servers(
        "a worker is halted before results are read", _HALTED_BEFORE_RESULTS, culprit="worker 1"
    ),
    _of_servers(
        "a worker is stuck in its step", _STUCK_STEP + "acts()", code=138, culprit=") is late: "
    ),
    _of_servers("KILL of a ps", _sending("ps 1", "SIGKILL"), code=137, culprit="ps 1"),
    _of_servers(
        "KILL of a ps, with checkpoints",
        _sending("ps 1", "SIGKILL", _SAVES),
        culprit="ps 1",
        options=(RESTARTS,),
    ),
    _of_servers("a ps is halted", _sending("ps 1", "SIGSTOP"), code=137, culprit="ps 1"),
    _of_servers("KILL of the chief", _sending("chief 0", "SIGKILL"), code=137, culprit="chief 0"),
    _of_servers("`os._exit(0)` of the chief", "def act(): os._exit(0)", code=1, culprit="chief 0"),
    _of_servers(
        "an error on the chief",
        "def act(): raise ValueError('my own bug')",
        code=1,
        culprit="chief 0",
    ),
    _of_range("KILL of a worker", _sending("worker 1", "SIGKILL", _SAVES), culprit="worker 1"),
    _of_range("KILL of worker 0", _sending("worker 0", "SIGKILL", _SAVES), culprit="worker 0"),
    _of_range(
        "KILL of 2 workers", _sending("worker 1, worker 2", "SIGKILL", _SAVES), culprit="worker 2"
    ),
    _of_range(
        "KILL of all workers",
        _sending("worker 1, worker 2, worker 0", "SIGKILL", _SAVES),
        culprit="worker 2",
    ),
    _of_range(
        "KILL of a worker, which comes back",
        _sending("worker 1", "SIGKILL", _SAVES + _COMES_BACK),
        culprit="3 of 3 workers",
        options=("--resize-secs=5",),
    ),
    _of_range(
        "TERM of a worker",
        _sending("worker 1", "SIGTERM", _SAVES),
        culprit=_TERM.format(" on worker 1"),
    ),
    _of_range("a worker is halted", _sending("worker 1", "SIGSTOP", _SAVES), culprit="worker 1"),
    _of_range(
        "KILL of 2 workers, with 2 needed",
        _sending("worker 1, worker 2", "SIGKILL", _SAVES),
        culprit="2 of 3 workers",
        options=("--workers=2:3",),
    ),
    _of_range(
        "KILL of a worker again and again, without checkpoints",
        "def act(): pass\nif index == 0: acts(); send('worker 0', signal.SIGKILL)",
        code=137,
        culprit="3 restarts in a row",
    ),
    _by_agents(
        "KILL of an agent",
        _sending("agent of worker 1", "SIGKILL", _SAVES),
        culprit="worker 1",
    ),
    _by_agents(
        "the machine of an agent is gone",
        _sending("agent of worker 1, worker 1", "SIGSTOP", _SAVES),
        culprit="worker 1",
    ),
    _by_agents(
        "KILL of an agent, and another one comes",
        _sending("agent of worker 1", "SIGKILL", _SAVES + _COMES_BACK),
        culprit="3 of 3 workers",
        options=("again", "--resize-secs=5"),
    ),
    _by_agents(
        "TERM of an agent",
        _sending("agent of worker 1", "SIGTERM", _SAVES),
        culprit="all save and end",
    ),
    _by_agents(
        "KILL of 2 agents, with 2 needed",
        _sending("agent of worker 1, agent of worker 2", "SIGKILL", _SAVES),
        code=138,
        culprit="1 of at least 2 workers",
        options=("--workers=2:3", "--start-timeout-secs=15"),
    ),
    _by_agents(
        "KILL of the leader",
        _sending("agent of worker 0", "SIGKILL", _SAVES),
        code=138,
        culprit="The leader",
    ),
    _by_agents(
        "the machine of the leader is gone",
        _sending("agent of worker 0, worker 0", "SIGSTOP", _SAVES),
        code=138,
        culprit="The leader",
    ),
    _by_agents(
        "TERM of the leader",
        _sending("agent of worker 0", "SIGTERM", _SAVES),
        code=143,
        culprit="The leader",
    ),
    _by_rank("rank 1 never comes", _IS_MISSING.format("worker 1"), code=138, culprit="rank 1"),
    _by_rank("rank 0 never comes", _IS_MISSING.format("worker 0"), code=138, culprit="rank 0"),
    _by_rank(
        "KILL of a worker that has come, before all are there",
        _KILLED_IN_MEETING,
        "3 workers by rank",
        code=138,
        culprit="rank 1",
    ),
    _by_rank("KILL of a worker", _sending("worker 1", "SIGKILL"), code=138, culprit="worker 1"),
    _by_rank("KILL of rank 0", _sending("worker 0", "SIGKILL"), code=138, culprit="worker 0"),
    _by_rank("a worker is halted", _sending("worker 1", "SIGSTOP"), code=138, culprit="worker 1"),
    _by_rank(
        "KILL of a worker, which is started again",
        _STARTED_AGAIN,
        "2 workers, 1 ps by rank",
        actor="chief 0",
        culprit="worker 1",
    ),
]
_OPTIONS = {
    "one device": ("--workers=1",),
    "2 clones": ("--workers=1", "--clones=2"),
    "2 workers": (),
    "2 workers, 2 ps": ("--ps=2",),
    "1 to 3 workers": ("--workers=1:3",),
}
# What starts the others, and its arguments.
_STARTERS = {
    "2 workers by rank": ("by_rank", "2", "0"),
    "3 workers by rank": ("by_rank", "3", "0"),
    "2 workers, 1 ps by rank": ("by_rank", "4", "1", "again"),
    "3 agents": ("by_agents", "3", "--workers=1:3"),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """What became of a job with a fault.

    Attributes:
        fault: The fault.
        code: The launch's exit code.
        secs: From the fault to the end.
        is_named: Whether the output names the culprit.
        updates: How many the job has made, and `examples` how many it has counted; None where it
            did not go on.
        is_clean: Whether no process and no private file was left.
    """

    fault: Fault
    code: int
    secs: float
    is_named: bool
    updates: int | None
    examples: float | None
    is_clean: bool

    @property
    def is_exact(self) -> bool | None:
        if self.updates is None:
            return None
        return (self.updates, self.examples) == (NUM_STEPS, NUM_STEPS * BATCH_SIZE)

    @property
    def is_as_expected(self) -> bool:
        is_exact = True if self.fault.code == 0 else None
        is_told = self.is_named and self.is_clean
        return self.code == self.fault.code and self.is_exact is is_exact and is_told

    def __str__(self):
        ends = "goes on" if self.code == 0 else "ends"
        words = {True: "yes", False: "NO", None: ""}
        cells = [self.fault.name, self.fault.deployment, ends, f"{self.secs:.0f}", str(self.code)]
        cells += [words[each] for each in (self.is_named, self.is_exact, self.is_clean)]
        return f"| {' | '.join(cells)} |"


HEAD = (
    "| Fault | Deployment | The job | s | Code | Named | Exact | Clean |\n"
    "|---|---|---|---|---|---|---|---|"
)


def row_of(fault: Fault) -> Row:
    """Runs a job with a fault, with files of its own."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as folder:
        own = {"TMPDIR": folder, outcomes.MARK: mark, "TF_CPP_MIN_LOG_LEVEL": "3"}
        before = {name: os.environ.get(name) for name in own}
        os.environ |= own
        fork_server.stop()  # The next one reads these variables.
        try:
            program = PROGRAM.format(
                num_steps=NUM_STEPS,
                batch_size=BATCH_SIZE,
                folder=folder,
                actor=fault.actor,
                source=fault.source,
            )
            if starter := _STARTERS.get(fault.deployment):
                outcome = outcomes.unwatched(program, *starter, *fault.options)
            else:
                outcome = outcomes.launched(program, *_OPTIONS[fault.deployment], *fault.options)
        finally:
            fork_server.stop()
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        left = [each for each in psutil.process_iter() if outcomes.is_marked(each, mark)]
        is_clean = not left and not list(Path(folder).glob("kerasdist-*"))
    [output], [code] = outcome.outputs, outcome.codes
    results = re.findall(r"result (\[.*\])", output)
    updates, examples = json.loads(results[-1]) if results else (None, None)
    named = names(output, fault.culprit)
    return Row(fault, code, outcome.secs, named, updates, examples, is_clean)


def names(output: str, culprit: str) -> bool:
    """Whether a launch says whose fault it was, and not only that this task was there too."""
    for line in output.partition("logs  ")[2].splitlines():  # The plan before names everybody.
        task, _, text = line.rpartition(" | ")
        of_others = text.partition("stopped: ")[0].partition("Full output of ")[0]
        if task.strip() != culprit and culprit in of_others:
            return True
    return False


def main(words: list[str]) -> int:
    """Prints the table; returns 1 where a row is not as it should be."""
    unexpected = []
    print(HEAD)
    for fault in FAULTS:
        if words and not any(word in str(fault) for word in words):
            continue
        row = row_of(fault)
        print(row, flush=True)
        if not row.is_as_expected:
            unexpected.append(row)
    for row in unexpected:
        print(f"Unexpected: {row.fault}: code {row.code}, {row.updates} updates.", file=sys.stderr)
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
