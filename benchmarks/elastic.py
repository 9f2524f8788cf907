"""What the loss of a worker costs: seconds from a kill to the next step, and goodput.

    python benchmarks/elastic.py                       # about seven minutes on two cores
    python benchmarks/elastic.py --rounds 1 --minutes 0

A dense network on four workers of `launch --workers 1:4`, with a checkpoint every 10 steps. Loss: a
worker is killed, another one in each round, and the time counts from then to the end of the next
step, with three workers; beside it stands the cold start, from the start of the launch to the end
of its first step. Goodput: a worker is killed every minute and comes back after 20 s; the steps
that count, over all that were made, and over those of the same time without kills.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Generator
from pathlib import Path

NUM_WORKERS = 4
KILL_EVERY_SECS = 60.0
# In the order in which they come; each is named by what ends with it.
PARTS = ("python", "import", "join", "build", "begin", "step")

PROGRAM = """
import json, os, sys, time


def note(what, **known):
    known |= {"attempt": int(os.environ["KERASDIST_RESTART_COUNT"]), "pid": os.getpid()}
    task = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    with open(sys.argv[1], "a") as file:  # One write, which no other task cuts in two.
        file.write(json.dumps({"what": what, "task": task, "at": time.time(), **known}) + "\\n")


note("python")
import keras
import numpy as np
import tensorflow as tf

import kerasdist

tf.data, keras.Model, kerasdist.callbacks  # Each of them loads its modules when it is asked.
note("import")


class Note(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        note("begin")

    def on_train_batch_end(self, batch, logs=None):
        note("step", step=int(self.model.optimizer.iterations))


keras.utils.set_random_seed(1)
with kerasdist.make_strategy().scope():
    note("join")
    layers = [keras.layers.Dense(256, "relu") for _ in range(4)]
    model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(1)])
    model.compile("adam", "mse")
note("build")
x = np.random.default_rng(0).normal(size=(6400, 64)).astype("float32")
checkpoint = kerasdist.callbacks.Checkpoint(sys.argv[2], every_steps=10)
callbacks = [checkpoint, *([Note()] if kerasdist.is_chief() else [])]
model.fit(x, x[:, :1], batch_size=64, epochs=100_000, verbose=0, callbacks=callbacks)
"""


def main() -> None:
    """Parses the flags, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4, help="losses that are timed")
    parser.add_argument("--minutes", type=float, default=4.0, help="of the goodput; 0: none")
    flags = parser.parse_args()
    report_loss(flags.rounds)
    if flags.minutes:
        report_goodput(60 * flags.minutes)


def report_loss(rounds: int) -> None:
    """Times losses, each in a launch of its own, and prints medians and their parts."""
    colds, losses = [], []
    for number in range(rounds):
        with launch("--resize-secs=600") as run:
            run.wait_until(lambda events: steps_of(events, 0) >= 25)
            killed_at = run.kill(number % NUM_WORKERS)
            run.wait_until(lambda events: steps_of(events, 1) >= 1)
            colds.append(parts_of(run.events(), run.started_at, attempt=0))
            losses.append(parts_of(run.events(), killed_at, attempt=1))
    for title, found in (("Cold start", colds), ("After a kill", losses)):
        medians = {part: statistics.median(each[part] for each in found) for part in PARTS}
        total = statistics.median(sum(each.values()) for each in found)
        parts = ", ".join(f"{part} {secs:.1f}" for part, secs in medians.items())
        print(f"{title}: {total:.1f} s to the end of the first step ({parts})")
    ratios = [
        sum(loss.values()) / sum(cold.values()) for loss, cold in zip(losses, colds, strict=True)
    ]
    print(f"After a kill over cold start: {statistics.median(ratios):.2f}")


def report_goodput(secs: float) -> None:
    """Trains for a time, with kills and without, and prints which share of the steps counts."""
    useful, made = train(secs, kills=True)
    undisturbed, _ = train(secs, kills=False)
    print(
        f"A kill every {KILL_EVERY_SECS:g} s, for {secs:g} s: {useful:,} of {made:,} steps count "
        f"({useful / made:.1%}), {useful / undisturbed:.1%} of those without kills."
    )


def train(secs: float, *, kills: bool) -> tuple[int, int]:
    """Returns the steps that count after a time, and all that were made."""
    draw = random.Random(0)
    with launch("--resize-secs=20") as run:
        run.wait_until(lambda events: steps_of(events, 0) >= 1)
        end = time.time() + secs
        while kills and time.time() + KILL_EVERY_SECS < end:
            time.sleep(KILL_EVERY_SECS)
            run.kill(draw.choice(sorted(run.running())))
        time.sleep(max(0.0, end - time.time()))
        steps = [each["step"] for each in run.events() if each["what"] == "step"]
    return max(steps), len(steps)


class Run:
    """A launch that runs.

    Args:
        process: That of the launcher.
        notes: The file with what its tasks have noted.
    """

    def __init__(self, process: subprocess.Popen, notes: Path):
        self.started_at = time.time()
        self._process, self._notes = process, notes

    def events(self) -> list[dict]:
        """Returns what the tasks have noted so far."""
        with contextlib.suppress(FileNotFoundError):
            return [json.loads(line) for line in self._notes.read_text().splitlines()]
        return []

    def running(self) -> dict[int, int]:
        """Returns the process ids of the tasks of the newest attempt, by their number."""
        events = self.events()
        newest = max(each["attempt"] for each in events)
        return {each["task"]: each["pid"] for each in events if each["attempt"] == newest}

    def kill(self, task: int) -> float:
        """Kills a task, and returns when."""
        pid = self.running()[task]
        killed_at = time.time()
        with contextlib.suppress(ProcessLookupError):  # It is just ending, with the others.
            os.kill(pid, signal.SIGKILL)
        return killed_at

    def wait_until(self, is_reached: Callable[[list[dict]], bool], timeout_secs: float = 300.0):
        """Waits until the tasks have noted something."""
        end = time.monotonic() + timeout_secs
        while not is_reached(self.events()):
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"The launch does not get there: {self.events()[-3:]}")
            time.sleep(0.05)


@contextlib.contextmanager
def launch(*options: str) -> Generator[Run]:
    """Starts the program on four workers, and ends it."""
    with tempfile.TemporaryDirectory() as folder:
        script, notes = Path(folder, "train.py"), Path(folder, "notes")
        script.write_text(textwrap.dedent(PROGRAM))
        command = [sys.executable, "-m", "kerasdist", "launch", f"--workers=1:{NUM_WORKERS}"]
        command += [*options, f"--log-dir={folder}/logs", "--", sys.executable, str(script)]
        process = subprocess.Popen(
            [*command, str(notes), f"{folder}/run"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        try:
            yield Run(process, notes)
        finally:
            process.terminate()
            process.wait()


def steps_of(events: list[dict], attempt: int) -> int:
    """Returns how many steps an attempt has made."""
    return sum(each["what"] == "step" and each["attempt"] == attempt for each in events)


def parts_of(events: list[dict], start: float, *, attempt: int) -> dict[str, float]:
    """Returns the seconds of each part of a start, until the last task is through with it."""
    ends = [start]
    for part in PARTS:
        found = [each for each in events if (each["what"], each["attempt"]) == (part, attempt)]
        tasks = {each["task"]: each["at"] for each in reversed(found)}  # The first of each.
        ends.append(max(ends[-1], *tasks.values()))
    return {
        part: after - before for part, before, after in zip(PARTS, ends, ends[1:], strict=False)
    }


if __name__ == "__main__":
    main()
