"""Runs Keras' own tests under one deployment, in a process of its own."""

import concurrent.futures
import dataclasses
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.keras import source
from tests.keras.record import Record

# How a test runs: plain, with the routes laid and nothing in our scopes, after `undo`, or inside a
# scope.
PLAIN = "plain"
OURS = ("routes", "undone", "one", "two")
# Two synchronous workers over parameter servers, and their truth: plain Keras, whose `fit` joins
# two batches into one.
JOINED, SERVERS = "joined", "servers"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Which tests run.

    Attributes:
        paths: Files and folders of `keras/src`.
        keywords: As in pytest's `-k`.
        ours: Under which of our deployments.
        truth: Under which they do what they should: plain Keras.
    """

    paths: tuple[str, ...]
    keywords: str = ""
    ours: tuple[str, ...] = OURS
    truth: str = PLAIN


_QUICK_CALLBACKS = ("csv_logger", "reduce_lr_on_plateau", "terminate_on_nan")
# Words in the names of tests that take long, or are much like another one.
_SLOW = (
    *("jit", "steps_per", "scipy", "py_dataset", "predict", "val_split", "without", "backwards"),
    *("same_loss", "list_respect", "internal_only", "fwd_pass", "verbose", "honors", "raise_error"),
    *("multiple_compiles", "nested_inputs", "retracing", "metric_update", "functional", "layer"),
    *("jax", "torch", "grain", "graph_fn", "constraints", "state_reset"),
)

EVERYTHING = Selection(
    # The last one starts TensorFlow anew, and nothing of ours would live after it.
    paths=("trainers", "callbacks", "models", "saving", "distillation", "backend/tensorflow"),
)
# Those that train, in graphs: parameter servers refuse `run_eagerly=True`. One fails in plain Keras
# now and then: its threads go on behind the end of the data.
OF_SERVERS = Selection(
    paths=("trainers/trainer_test.py", "distillation"),
    keywords="not eager and not jit and not multithreading_infinite",
    ours=(SERVERS,),
    truth=JOINED,
)
QUICK = Selection(
    paths=(
        "trainers/epoch_iterator_test.py",
        "trainers/trainer_test.py",
        *(f"callbacks/{name}_test.py" for name in _QUICK_CALLBACKS),
    ),
    keywords=" and ".join(f"not {word}" for word in _SLOW),
    ours=("two",),  # What models outside of a scope and one device give is in between.
)


def run_all(selection: Selection) -> dict[str, Record]:
    """Runs tests under all deployments, the truth first, as many at a time as there are cores."""
    source.fetch()  # Once: the runs below would all do it.
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = {
            each: pool.submit(run, each, selection) for each in (selection.truth, *selection.ours)
        }
        return {each: future.result() for each, future in runs.items()}


def run(deployment: str, selection: Selection) -> Record:
    """Runs tests under a deployment.

    Args:
        deployment: A truth, or one of ours.
        selection: Which tests.

    Raises:
        RuntimeError: The run did not come to its end; shows the last lines of what it printed.
    """
    folder = source.fetch()
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "record"
        command = [sys.executable, "-m", "pytest", "-c", str(Path(__file__).parent / "pytest.ini")]
        command += ["--rootdir", str(folder), "-p", "tests.keras.plugin"]
        command += [f"--deployment={deployment}", f"--record={path}", "-k", selection.keywords]
        command += [str(folder / source.PACKAGE / each) for each in selection.paths]
        if deployment == SERVERS:
            launch = ["-m", "kerasdist", "launch", "--workers=2", "--ps=1", "--backup=0"]
            command = [sys.executable, *launch, f"--log-dir={temporary}", "--", *command]
        environ = {**os.environ, "PYTHONPATH": str(source.ROOT)}
        result = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
        if not path.exists() or result.returncode not in _RETURNCODES_OF_A_WHOLE_RUN:
            raise RuntimeError(
                f"Keras' tests ({deployment}) ended with code {result.returncode}. Last lines:\n"
                + "\n".join((result.stdout + result.stderr).splitlines()[-30:])
            )
        return Record.read(path)


# pytest's: all passed, some failed.
_RETURNCODES_OF_A_WHOLE_RUN = (0, 1)
