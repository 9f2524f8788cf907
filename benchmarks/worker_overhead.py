"""What `fit` over several workers costs over a hand-written loop, and how it scales.

    python benchmarks/worker_overhead.py               # about six minutes
    python benchmarks/worker_overhead.py --part scaling

The workers are processes of this machine. `steps` and `memory` compare `fit` on two workers with
TensorFlow's own loop, `strategy.run(model.train_step, ...)` in a tf.function. `scaling` lets every
worker sleep in each step, so that two cores can stand for four machines: what is measured is what
the messages add. `launch` compares the launcher with the same commands started by hand.
"""

import argparse
import functools
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import interleaved

from kerasdist import testing

BATCH_SIZE = 64
UNITS = 64
SLEEP_SECS = 0.05
NUM_FLOATS = 250_000  # 1 MB of gradients
FIRST_STEP = "first step"


def main() -> None:
    """Parses the flags, measures, prints and writes."""
    parts = {
        "steps": steps,
        "memory": memory,
        "scaling": scaling,
        "messages": messages,
        "launch": launch,
    }
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=parts, help="default: all")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--output", default="worker_overhead.json")
    flags = parser.parse_args()
    chosen = [flags.part] if flags.part else list(parts)
    interleaved.write(flags.output, **{part: parts[part](flags.rounds) for part in chosen})


def steps(rounds: int) -> dict:
    """Compares `fit` with a loop on two workers, with 1 and with 10 steps per call."""
    print("\nTwo workers: time / hand-written loop", flush=True)
    chief, _ = _values(functools.partial(_time_steps, rounds), num_workers=2)
    ratios, times = chief
    print(*ratios, sep="\n", flush=True)
    return times


def memory(rounds: int) -> dict:
    """Compares the peak memory of a worker that runs `fit` with one that runs the loop."""
    print("\nPeak memory of a worker, MiB", flush=True)
    peaks = {
        arm: max(_values(functools.partial(_peak_memory, arm), num_workers=2))
        for arm in ("hand", "fit")
    }
    for arm, peak in peaks.items():
        print(f"{arm:<28} {peak / peaks['hand']:5.2f}  {peak:.0f} MiB", flush=True)
    return peaks


def scaling(rounds: int) -> dict:
    """Compares a step that sleeps 50 ms and sends 1 MB on 1, 2 and 4 workers."""
    print(f"\nWorkers with a step of {SLEEP_SECS * 1e3:.0f} ms and 1 MB of gradients", flush=True)
    secs = {1: [], 2: [], 4: []}
    for _ in range(max(2, rounds // 3)):
        for num_workers in secs:
            secs[num_workers] += _values(_time_sleeping_steps, num_workers=num_workers)[:1]
    for num_workers, times in secs.items():
        efficiency = [one / many for one, many in zip(secs[1], times, strict=True)]
        middle = statistics.median(efficiency)
        print(
            f"{num_workers} workers: efficiency {middle:.2f} [{min(efficiency):.2f}, "
            f"{max(efficiency):.2f}], step {statistics.median(times) * 1e3:.1f} ms",
            flush=True,
        )
    return {str(num_workers): times for num_workers, times in secs.items()}


def messages(rounds: int) -> dict:
    """Times the all-reduce of two workers, alone."""
    print("\nAll-reduce of two workers", flush=True)
    secs = _values(functools.partial(_time_messages, rounds, 0), num_workers=2)[0]
    smallest, largest = min(secs), max(secs)
    bytes_per_sec = (largest - smallest) / (secs[largest] - secs[smallest])
    for size, measured in secs.items():
        bound = secs[smallest] + (size - smallest) / bytes_per_sec
        print(f"{size / 1e6:6.2f} MB  {measured * 1e3:6.2f} ms  bound {bound / measured:.2f} of it")
    packs = {0: secs}
    for megabytes in (1, 4):
        arguments = rounds, megabytes * 10**6
        packs[megabytes] = _values(functools.partial(_time_messages, *arguments), num_workers=2)[0]
        ratio = packs[megabytes][largest] / secs[largest]
        print(
            f"{largest / 1e6:.0f} MB in messages of {megabytes} MB: {ratio:.2f} of the time in one"
        )
    return packs


def launch(rounds: int) -> dict:
    """Compares the time to the first step under the launcher with two commands started by hand."""
    print("\nTime to the first step of two workers", flush=True)
    secs = {"by hand": [], "launch": []}
    with tempfile.TemporaryDirectory() as logs:
        command = [sys.executable, "-m", "kerasdist", "launch", "--workers", "2"]
        command += ["--log-dir", logs, "--", sys.executable, __file__]
        for _ in range(max(3, rounds // 2)):
            secs["by hand"].append(_secs_to_first_step_by_hand())
            secs["launch"].append(_secs_to_first_step(command))
    ratios = [ours / theirs for ours, theirs in zip(secs["launch"], secs["by hand"], strict=True)]
    print(
        f"launch / by hand {statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}], "
        f"by hand {statistics.median(secs['by hand']):.1f} s",
        flush=True,
    )
    return secs


def _values(function, *, num_workers) -> list:
    outputs = testing.run_cluster(function, num_workers=num_workers, timeout_secs=600)
    for output in outputs:
        if output.exit_code != 0:
            raise RuntimeError(f"{output.task} failed:\n{output.output[-2000:]}")
    return [output.value for output in outputs]


def _strategy():
    import tensorflow as tf

    import kerasdist

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    return kerasdist.make_strategy()


def _time_steps(rounds):
    strategy = _strategy()
    arms = {
        "hand-written loop": _hand_loop(strategy, 1),
        "the same again (A/A)": _hand_loop(strategy, 1),
        "fit": _fit(strategy, 1),
        "hand-written loop, 10 a call": _hand_loop(strategy, 10),
        "fit, steps_per_execution=10": _fit(strategy, 10),
    }
    return interleaved.compare(arms, rounds=rounds, short=50, long=350)


def _peak_memory(arm):
    (_hand_loop if arm == "hand" else _fit)(_strategy(), 1)(500)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _hand_loop(strategy, steps_per_call):
    import networks
    import tensorflow as tf

    model = networks.make_model(strategy, networks.dense(UNITS), metrics=["accuracy"])
    data = networks.dataset(BATCH_SIZE)
    model.fit(data, steps_per_epoch=1, verbose=0, shuffle=False)  # Creates all variables.
    iterator = iter(strategy.experimental_distribute_dataset(data))

    @tf.function
    def step(iterator):
        for _ in tf.range(steps_per_call):
            strategy.run(model.train_step, args=(next(iterator),))

    def run(num_steps):
        for _ in range(num_steps // steps_per_call):
            step(iterator)

    return run


def _fit(strategy, steps_per_execution):
    import networks

    model = networks.make_model(
        strategy,
        networks.dense(UNITS),
        metrics=["accuracy"],
        steps_per_execution=steps_per_execution,
    )
    data = networks.dataset(BATCH_SIZE)
    return lambda num_steps: model.fit(data, steps_per_epoch=num_steps, verbose=0, shuffle=False)


def _time_messages(rounds, bytes_per_pack) -> dict:
    """Returns the least seconds of an all-reduce of 4 tensors, by their bytes, on each worker."""
    import tensorflow as tf

    import kerasdist

    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=bytes_per_pack)
    strategy = kerasdist.make_strategy(communication_options=options)
    secs = {}
    for num_floats in (4, 250_000, 1_000_000, 4_000_000):
        with tf.device("CPU:0"):
            parts = [tf.Variable(tf.zeros([num_floats // 4])) for _ in range(4)]

        @tf.function
        def reduce(parts=parts):
            def replica_fn():
                values = [tf.identity(part) for part in parts]
                context = tf.distribute.get_replica_context()
                return tf.add_n(
                    [tf.reduce_sum(part[:1]) for part in context.all_reduce("sum", values)]
                )

            return strategy.run(replica_fn)

        reduce()
        times = []
        for _ in range(5 * rounds):
            start = time.perf_counter()
            reduce()
            times.append(time.perf_counter() - start)
        # The least: what the message takes, and not what else the machine was doing.
        secs[4 * num_floats] = min(times)
    return secs


def _time_sleeping_steps() -> float:
    """Returns the median seconds of a step, on each worker."""
    strategy = _strategy()
    import keras
    import numpy as np
    import tensorflow as tf

    class Sleeps(keras.layers.Layer):
        def build(self, shape):
            self.kernel = self.add_weight(shape=(NUM_FLOATS,), initializer="zeros")

        def call(self, inputs):
            pause = tf.numpy_function(_sleep, [inputs], tf.float32)
            pause = tf.stop_gradient(tf.reshape(pause, tf.shape(inputs)))
            return inputs + tf.reduce_sum(self.kernel) + pause

    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), Sleeps()])
        model.compile("sgd", "mse")
    times = []
    clock = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: times.append(time.perf_counter())
    )
    x = np.zeros((60 * strategy.num_replicas_in_sync, 1), "float32")
    batch_size = strategy.num_replicas_in_sync
    model.fit(x, x, batch_size=batch_size, shuffle=False, verbose=0, callbacks=[clock])
    return statistics.median(np.diff(times[10:]))


def _sleep(inputs):
    time.sleep(SLEEP_SECS)
    return inputs * 0


def _secs_to_first_step_by_hand() -> float:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in (first, second)]
    configs = [
        json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})
        for index in range(2)
    ]
    command = [sys.executable, __file__]
    peer = subprocess.Popen(
        command, env={**os.environ, "TF_CONFIG": configs[1]}, stdout=subprocess.DEVNULL
    )
    try:
        return _secs_to_first_step(command, {**os.environ, "TF_CONFIG": configs[0]})
    finally:
        peer.wait(timeout=60)


def _secs_to_first_step(command, env=None) -> float:
    start = time.perf_counter()
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        secs = next(time.perf_counter() - start for line in process.stdout if FIRST_STEP in line)
        process.stdout.read()
    return secs


def _train_one_step() -> None:
    _fit(_strategy(), 1)(1)
    print(FIRST_STEP, flush=True)


if __name__ == "__main__":
    _train_one_step() if "TF_CONFIG" in os.environ else main()
