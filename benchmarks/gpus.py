"""Everything that GPUs are to be asked, in one command, as a table to paste into an issue.

    make test-gpu                               # at most ten minutes
    python benchmarks/gpus.py --part scaling    # one part of it
    python benchmarks/gpus.py --cpus 2          # the same on logical CPUs

Parity compares weights with plain Keras; `fit` is timed against plain Keras with XLA on and off;
scaling trains three networks on 1 to all devices; memory and profile are those of one `fit`. What
the machine lacks is skipped, and the table says so. Each part is a process of its own, which has
its share of the time: a part that takes longer is ended, and the table says that, too.
"""

import argparse
import contextlib
import functools
import io
import itertools
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

NETWORKS = ("dense", "convolutional", "attention")
# Examples of a batch for each device, by whether it is a GPU.
BATCH_SIZES = {True: 256, False: 16}
UNITS = {True: 2048, False: 64}
FILTERS = {True: 64, False: 4}
WIDTH = {True: 512, False: 32}
XLA = {False: "no XLA", True: "XLA"}
ROUNDS = 4
SECS = 0.5  # About so long is a run that is timed.
NO_GPU = "skipped: TensorFlow sees no GPU (`pip install '.[gpu]'`, or --cpus 2)"
ROW = "row "


def main() -> None:
    """Parses the flags, and prints the table; or measures a part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, help="default: all")
    parser.add_argument("--cpus", type=int, default=0, help="logical CPUs in place of GPUs")
    parser.add_argument("--seconds", type=float, default=600, help="the most that it takes")
    parser.add_argument("--is_task", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.is_task:
        rows, _ = PARTS[flags.part]
        is_there = flags.cpus or _num_gpus() or flags.part == "machine"
        for title, value in rows(flags.cpus) if is_there else [(flags.part, NO_GPU)]:
            print(f"{ROW}{json.dumps([title, value])}", flush=True)
        return
    print("| what | measured |\n|---|---|", flush=True)
    for part in [flags.part] if flags.part else PARTS:
        _, share = PARTS[part]
        for title, value in rows_of(part, flags.cpus, flags.seconds * share):
            print(f"| {title} | {value} |", flush=True)


def rows_of(part: str, num_cpus: int, seconds: float) -> Iterator[list[str]]:
    """Yields the rows of a part, and one that says how it failed if it did."""
    command = [sys.executable, __file__, "--is_task", "--part", part, "--cpus", str(num_cpus)]
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"} if num_cpus else None
    with tempfile.TemporaryFile("w+") as output:
        failure = ""
        try:
            code = subprocess.run(
                command,
                env=environ,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            failure = f"ended after {seconds:g} s"
        else:
            failure = f"exit code {code}" if code else ""
        output.seek(0)
        lines = output.read().splitlines()
    yield from (json.loads(line.removeprefix(ROW)) for line in lines if line.startswith(ROW))
    if failure:
        said = next((line for line in reversed(lines) if line and not line.startswith(ROW)), "")
        yield [part, f"FAILED: {failure}. {said[:200]}".replace("|", "/")]


def machine(num_cpus: int) -> Iterator[tuple[str, str]]:
    """Yields what is measured on."""
    import keras
    import tensorflow as tf

    import kerasdist

    yield (
        "versions",
        f"kerasdist {kerasdist.__version__}, TensorFlow {tf.__version__}, Keras "
        f"{keras.__version__}, Python {platform.python_version()}, CUDA "
        f"{tf.sysconfig.get_build_info().get('cuda_version', 'none')}",
    )
    if num_cpus:
        yield "devices", f"{num_cpus} logical CPUs of {os.cpu_count()} cores"
        return
    gpus = tf.config.list_physical_devices("GPU")
    names = [tf.config.experimental.get_device_details(gpu).get("device_name", "?") for gpu in gpus]
    found = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    yield "devices", found or NO_GPU


def parity(_: int) -> Iterator[tuple[str, str]]:
    """Yields how many rows of the parity table equal plain Keras."""
    from kerasdist.doctor import table

    with contextlib.redirect_stdout(io.StringIO()) as output:
        table.examine(is_quick=True)
    found = re.search(r"\d+ of \d+ rows of kerasdist equal one device", output.getvalue())
    assert found
    place = "GPUs" if _num_gpus() > 1 else "logical CPUs"
    yield "parity on two replicas (`doctor --quick`)", f"{found[0]}; on {place}"


def fit(num_cpus: int) -> Iterator[tuple[str, str]]:
    """Yields the time of `fit` over that of plain Keras, with XLA and without."""
    import interleaved

    is_gpu = _begin(num_cpus)
    strategy = _strategy(1, num_cpus)
    for network, jit in itertools.product(NETWORKS, XLA):
        arms = {
            "plain": _fit_of(_Plain(), network, is_gpu, 1, jit_compile=jit),
            "ours": _fit_of(strategy, network, is_gpu, 1, jit_compile=jit),
        }
        long = max(map(_length, arms.values()))
        short = max(long // 10, 1)
        (_, ours), _ = interleaved.compare(arms, rounds=ROUNDS, short=short, long=long)
        yield (
            f"fit / plain Keras, {network}, {XLA[jit]}",
            f"{ours.median:.2f} [{ours.low:.2f}, {ours.high:.2f}], "
            f"{ours.microsecs_per_step / 1e3:.2f} ms",
        )


def scaling(num_cpus: int) -> Iterator[tuple[str, str]]:
    """Yields examples per second on 1 to all devices."""
    is_gpu = _begin(num_cpus)
    num_devices = num_cpus or _num_gpus()
    if num_devices < 2:
        yield "scaling", "skipped: one device"
        return
    numbers = sorted({1, num_devices, *(n for n in (2, 4, 8) if n < num_devices)})
    for network, jit in itertools.product(NETWORKS, XLA):
        rates = {
            number: BATCH_SIZES[is_gpu]
            * number
            / _secs_of_step(
                _fit_of(_strategy(number, num_cpus), network, is_gpu, number, jit_compile=jit)
            )
            for number in numbers
        }
        text = ", ".join(
            f"{number}: {rate:,.0f} ({rate / rates[1] / number:.2f})"
            for number, rate in rates.items()
        )
        yield f"examples/s by devices (efficiency), {network}, {XLA[jit]}", text


def memory(num_cpus: int) -> Iterator[tuple[str, str]]:
    """Yields the peak memory of the first device, beside plain Keras."""
    is_gpu = _begin(num_cpus)
    if not is_gpu:
        yield "peak memory of a device", "skipped: TensorFlow tells that of GPUs alone"
        return
    import tensorflow as tf

    peaks = {}
    for name, place in (("plain", _Plain()), ("ours", _strategy(1, num_cpus))):
        tf.config.experimental.reset_memory_stats("GPU:0")
        _fit_of(place, "convolutional", is_gpu, 1)(10)
        peaks[name] = tf.config.experimental.get_memory_info("GPU:0")["peak"]
    yield (
        "peak memory of a device / plain Keras, convolutional",
        f"{peaks['ours'] / peaks['plain']:.2f}, {peaks['ours'] / 2**20:.0f} MiB",
    )


def profile(num_cpus: int) -> Iterator[tuple[str, str]]:
    """Yields for how much of its time each device is busy, from a trace of three steps."""
    is_gpu = _begin(num_cpus)
    from kerasdist.callbacks import ProfilerTrace

    number = num_cpus or _num_gpus()
    with tempfile.TemporaryDirectory() as folder:
        trace = ProfilerTrace(folder, at_steps=[5], num_steps=3)
        run = _fit_of(_strategy(number, num_cpus), "convolutional", is_gpu, number)
        run(10, callbacks=[trace])
        report = subprocess.run(
            [sys.executable, "-m", "kerasdist", "trace", str(Path(trace.files[0]))],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    busy = re.findall(r"^(\S.*?)\s{2,}[\d.]+\s+(\d[\d.]* ?%)\s*$", report, re.MULTILINE)
    text = ", ".join(f"{place} {share}" for place, share in busy)
    yield "devices busy in three steps, convolutional", text or report.splitlines()[0]


# The rows of a part, and its share of the time.
PARTS: dict[str, tuple[Callable[[int], Iterator[tuple[str, str]]], float]] = {
    "machine": (machine, 0.05),
    "parity": (parity, 0.20),
    "fit": (fit, 0.25),
    "scaling": (scaling, 0.33),
    "memory": (memory, 0.07),
    "profile": (profile, 0.10),
}


class _Plain:
    """Stands for a strategy where there is none."""

    def scope(self) -> contextlib.AbstractContextManager:
        """Returns a context without any effect."""
        return contextlib.nullcontext()


def _begin(num_cpus: int) -> bool:
    """Makes the logical CPUs that are asked for; returns whether GPUs are used."""
    if num_cpus:
        _strategy(num_cpus, num_cpus)
    return _num_gpus() > 0


def _num_gpus() -> int:
    import tensorflow as tf

    return len(tf.config.list_physical_devices("GPU"))


def _strategy(num_devices: int, num_cpus: int):
    import kerasdist

    config = kerasdist.DeploymentConfig(num_clones=num_devices, clone_on_cpu=num_cpus > 0)
    return kerasdist.make_strategy(config, cluster=kerasdist.Cluster.local())


def _layers(network: str, is_gpu: bool) -> tuple[list, tuple]:
    """Returns the layers of a network and the shape of its input."""
    import keras
    import networks

    if network == "dense":
        return networks.dense(UNITS[is_gpu]), networks.FEATURES
    if network == "convolutional":
        return networks.convolutional(FILTERS[is_gpu]), networks.IMAGE
    inputs = x = keras.Input((64, WIDTH[is_gpu]))
    for _ in range(3):
        normal = keras.layers.LayerNormalization()(x)
        x += keras.layers.MultiHeadAttention(8, WIDTH[is_gpu] // 8)(normal, normal)
        x += keras.layers.Dense(WIDTH[is_gpu])(
            keras.layers.Dense(4 * WIDTH[is_gpu], "gelu")(keras.layers.LayerNormalization()(x))
        )
    outputs = keras.layers.Dense(10)(keras.layers.GlobalAveragePooling1D()(x))
    return [keras.Model(inputs, outputs)], inputs.shape[1:]


def _fit_of(place, network: str, is_gpu: bool, num_devices: int, **compile_arguments) -> Callable:
    """Returns a function that runs so many steps of `fit`, with a batch for each device."""
    import networks

    with place.scope():
        layers, shape = _layers(network, is_gpu)
    model = networks.make_model(place, layers, **compile_arguments)
    data = networks.dataset(BATCH_SIZES[is_gpu] * num_devices, shape)
    fit = functools.partial(model.fit, data, verbose=0, shuffle=False)
    return lambda num_steps, **arguments: fit(steps_per_epoch=num_steps, **arguments)


def _length(run: Callable[[int], None]) -> int:
    """Returns how many steps take about `SECS`; the first ones, which are traced, are made here."""
    run(2)
    start = time.perf_counter()
    run(10)
    return min(max(round(10 * SECS / (time.perf_counter() - start)), 10), 1000)


def _secs_of_step(run: Callable[[int], None]) -> float:
    """Returns the median seconds of a step, in runs with their start.

    The difference of a long run and a short one, which has none, may be below 0.
    """
    num_steps = _length(run)
    secs = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run(num_steps)
        secs.append((time.perf_counter() - start) / num_steps)
    return statistics.median(secs)


if __name__ == "__main__":
    main()
