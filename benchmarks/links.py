"""How steps of several workers scale over links of 1 and 10 Gb/s, and what 16 bits save there.

    sudo python benchmarks/links.py                    # about ten minutes; Linux, iproute2
    sudo python benchmarks/links.py --gbits 1 --workers 2 --sleep 0 --rounds 8

Each worker is a process in a network namespace of its own, with a link to a switch that `tc` limits
in both directions; the network of the machine is left alone. A step sleeps for as long as a machine
would compute (see sleeping.py), so that two cores can stand for four machines. The model is that of
a ring: 2 (n - 1) messages of a seconds each, and 2 (n - 1) / n of the bytes at B bytes per second.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import interleaved
import numpy as np

from kerasdist.processes.guard import ISOLATED, LAUNCH_FOLDER, Guard

MEGABYTES = (0.001, 1, 16)
DTYPES = ("float32", "float16", "bfloat16")
BURSTS = {1: "128kb", 10: "512kb"}  # A larger one would let small messages pass at once.
PREDICTED = (8, 64)
PORT = 5000
LIMIT_SECS = 600


def main() -> None:
    """Parses the flags, measures, prints and writes; or is a worker."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gbits", type=int, nargs="+", default=[1, 10], choices=BURSTS)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sleep", type=float, default=0.1, help="seconds of computing in a step")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--output", default="links.json")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.folder:
        print("secs", json.dumps(steps_of_worker(flags.folder, flags.sleep, flags.rounds)))
        return
    if sys.platform != "linux" or os.geteuid() != 0:
        parser.error("only root on Linux may make links and limit them; run it with sudo")
    alone = median_of(run(1, 1, flags))
    found = {}
    for gbits in flags.gbits:
        found[gbits] = {}
        for num_workers in flags.workers:
            secs = median_of(run(num_workers, gbits, flags))
            found[gbits][num_workers] = secs
            report(secs, alone, num_workers, gbits)
        predict(found[gbits], alone, gbits)
    interleaved.write(flags.output, alone=alone, secs=found, sleep=flags.sleep)


def median_of(rounds: dict[str, list[float]]) -> dict[str, float]:
    """Returns the median seconds of a step, by what it sends."""
    return {name: statistics.median(secs) for name, secs in rounds.items()}


def report(secs: dict, alone: dict, num_workers: int, gbits: int) -> None:
    """Prints what was measured with some workers."""
    print(f"\n{num_workers} workers, {gbits} Gb/s", flush=True)
    for name, step in secs.items():
        megabytes, dtype = name.split()
        base = secs[f"{megabytes} float32"]
        print(
            f"{megabytes:>6} MB {dtype:<9} step {step * 1e3:7.1f} ms  messages "
            f"{(step - alone[name]) * 1e3:7.1f} ms  efficiency {alone[name] / step:.2f}  "
            f"time / float32 {step / base:.2f}",
            flush=True,
        )


def predict(found: dict[int, dict], alone: dict, gbits: int) -> None:
    """Fits the model to the messages of float32, and prints what it says of more workers."""
    names = [f"{megabytes:g} float32" for megabytes in MEGABYTES]
    rows, measured = [], []
    for num_workers, secs in found.items():
        for megabytes, name in zip(MEGABYTES, names, strict=True):
            rows.append(hops_and_bytes(num_workers, megabytes))
            measured.append(max(secs[name] - alone[name], 1e-6))
    # Relative errors count: a message of 1 kB as much as one of 16 MB.
    weights = 1 / np.array(measured)
    (latency, secs_per_byte), *_ = np.linalg.lstsq(
        np.array(rows) * weights[:, None], np.ones(len(rows)), rcond=None
    )
    print(f"\n{gbits} Gb/s: a = {latency * 1e3:.2f} ms, B = {1e-6 / secs_per_byte:.0f} MB/s")
    for num_workers in (*found, *PREDICTED):
        for megabytes, name in zip(MEGABYTES, names, strict=True):
            hops, size = hops_and_bytes(num_workers, megabytes)
            step = alone[name] + hops * latency + size * secs_per_byte
            text = (
                f"{num_workers:>3} workers {megabytes:>6} MB: efficiency {alone[name] / step:.2f}"
            )
            if num_workers in found:
                text += f", measured {alone[name] / found[num_workers][name]:.2f}"
            print(text, flush=True)


def hops_and_bytes(num_workers: int, megabytes: float) -> tuple[float, float]:
    """Returns the messages that follow one another in a ring, and the bytes that each one sends."""
    hops = 2 * (num_workers - 1)
    return hops, hops / num_workers * megabytes * 1e6


def run(num_workers: int, gbits: int, flags: argparse.Namespace) -> dict[str, list[float]]:
    """Returns the seconds of a step in each round, by what it sends."""
    with network(num_workers, gbits) as guards, tempfile.TemporaryDirectory() as folder:
        workers = [f"10.0.0.{index + 1}:{PORT}" for index in range(num_workers)]
        processes = []
        for index, guard in enumerate(guards):
            task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
            command = ["nsenter", "--target", str(guard.pid), "--net", sys.executable, __file__]
            command += ["--folder", folder, "--sleep", str(flags.sleep)]
            process = subprocess.Popen(
                [*command, "--rounds", str(flags.rounds)],
                env={**os.environ, "TF_CONFIG": json.dumps(task), LAUNCH_FOLDER: str(guard.folder)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            processes.append(process)
        output, _ = processes[0].communicate(timeout=LIMIT_SECS)
        for process in processes[1:]:
            process.communicate(timeout=60)
    for line in output.splitlines():
        if line.startswith("secs "):
            return json.loads(line.removeprefix("secs "))
    raise SystemExit(output[-4000:])


@contextlib.contextmanager
def network(num_workers: int, gbits: int) -> Iterator[list[Guard]]:
    """Makes a switch, and a link to it for each worker; they are gone with their guards."""
    with contextlib.ExitStack() as stack:
        switch, *guards = [stack.enter_context(Guard(isolate=True)) for _ in range(num_workers + 1)]
        if switch.network != ISOLATED:
            raise SystemExit(f"There is no network to limit: {switch.network}.")
        limit = f"root tbf rate {gbits}gbit burst {BURSTS[gbits]} latency 50ms"
        inside(switch, "ip link add switch type bridge")
        inside(switch, "ip link set dev switch up")
        for index, guard in enumerate(guards):
            port = f"port{index}"
            inside(switch, f"ip link add {port} type veth peer name wire netns {guard.pid}")
            inside(switch, f"ip link set dev {port} master switch up")
            inside(guard, f"ip address add 10.0.0.{index + 1}/24 dev wire")
            inside(guard, "ip link set dev wire up")
            inside(switch, f"tc qdisc add dev {port} {limit}")
            inside(guard, f"tc qdisc add dev wire {limit}")
        yield guards


def inside(guard: Guard, command: str) -> None:
    """Runs a command in the network that a guard holds."""
    place = ["nsenter", "--target", str(guard.pid), "--net"]
    subprocess.run([*place, *command.split()], check=True, timeout=30)


def steps_of_worker(folder: str, sleep: float, rounds: int) -> dict[str, list[float]]:
    """Returns the seconds of a step in each round, by the megabytes and the dtype that it sends."""
    import sleeping
    import tensorflow as tf

    import kerasdist

    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    sleeping.enter(folder)
    sleeping.set_pace(folder, worker=index, secs=sleep)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    strategy = kerasdist.make_strategy()
    arms = {
        f"{megabytes:g} {dtype}": fit_of(strategy, int(megabytes * 250_000), dtype)
        for megabytes in MEGABYTES
        for dtype in DTYPES
    }
    _, times = interleaved.compare(arms, rounds=rounds, short=2, long=10)
    return {name: [each / 1e6 for each in microsecs] for name, microsecs in times.items()}


def fit_of(strategy, num_floats: int, dtype: str):
    """Returns what runs so many steps of a model with so many weights.

    Args:
        strategy: Of kerasdist.
        num_floats: float32 weights, whose gradient is sent.
        dtype: As which.
    """
    import keras
    import sleeping
    import tensorflow as tf

    class Weights(keras.layers.Layer):
        def build(self, shape):
            self.kernel = self.add_weight(shape=(num_floats,), initializer="zeros")

        def call(self, inputs):
            return inputs + tf.reduce_sum(self.kernel)

    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), sleeping.Sleeps(), Weights()])
        model.compile("sgd", "mse")
    num_replicas = strategy.num_replicas_in_sync
    x = tf.zeros([num_replicas, 1])
    data = tf.data.Dataset.from_tensors((x, x)).repeat()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    data = data.with_options(options)

    def run(num_steps: int) -> None:
        # A process makes one strategy; the step is traced in the first of these calls.
        strategy.deployment = dataclasses.replace(
            strategy.deployment, allreduce_dtype=None if dtype == "float32" else dtype
        )
        model.fit(data, steps_per_epoch=num_steps, verbose=0, shuffle=False)

    return run


if __name__ == "__main__":
    main()
