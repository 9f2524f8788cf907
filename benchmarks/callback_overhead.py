"""What the callbacks of the update cost over `fit` without them, and over Keras' own options.

    python benchmarks/callback_overhead.py             # about half an hour
    python benchmarks/callback_overhead.py --size small --rounds 4
    python benchmarks/callback_overhead.py --size large --together
    python benchmarks/callback_overhead.py --size large --watching
    python benchmarks/callback_overhead.py --size convolutional --state

Three questions, each with its own base in the same run: a step with callbacks over one without; a
callback over the Keras option that does the same on one device; and, for 10 million parameters, the
seconds that clipping and averaging add to a step over those that moving their bytes takes.
"""

import argparse
import dataclasses
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import fit_overhead
import interleaved
import keras
import networks
import numpy as np
import tensorflow as tf
import turns

import kerasdist
from kerasdist import callbacks
from kerasdist.status.task_status import TaskStatus
from kerasdist.support import memory


@dataclasses.dataclass(frozen=True)
class Size:
    """A network, the examples of its batch, and the steps of a turn."""

    layers: Callable[[], list]
    input_shape: tuple
    batch_size: int
    steps: int = 10


# Steps of about 1 ms (what the operations cost without any work) and 5 ms, and one of 10 million
# parameters with little to compute. A callback costs time per parameter, and a step time per
# operation: dense layers, with few operations per parameter, are where callbacks cost most. Those
# of 5 ms do 1,500 per parameter and step, the convolutions 11,000, Inception-v3 with 32 images
# 40,000.
SIZES = {
    "small": Size(lambda: networks.dense(16), networks.FEATURES, 64),
    "convolutional": Size(lambda: networks.convolutional(16), networks.IMAGE, 24),
    "large": Size(lambda: networks.dense(500), networks.FEATURES, 256),
    "10M": Size(lambda: networks.dense(3140), networks.FEATURES, 4, steps=1),
}
DEPLOYMENTS = ("one device", "Mirrored 2")
# Clipping passes three times over the gradients and averaging three times over the weights.
BYTES_PER_PARAMETER = 24


class StateRead(keras.callbacks.Callback):
    """Has the state of its `fit` told, as KERASDIST_STATUS_PORT does, and read every 100 steps.

    That is some times in a second; a scraper of Prometheus reads it every 15 seconds.
    """

    def __init__(self):
        super().__init__()
        self._status = memory.PROCESS.status = TaskStatus()
        self._status.measures_time = True
        self._status.add_reader()
        self._num_steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self._num_steps += 1
        if self._num_steps % 100 == 0:
            self._status.numbers()


ONE_BY_ONE = {
    "multipliers": lambda: callbacks.GradientMultipliers({".*": 0.5}),
    "scopes": lambda: callbacks.TrainableScopes([".*"]),
    "clipping, norm": lambda: callbacks.GradientClipping(norm=1.0),
    "clipping, global_norm": lambda: callbacks.GradientClipping(global_norm=1.0),
    "clipping, value": lambda: callbacks.GradientClipping(value=0.1),
    "moving average": callbacks.MovingAverage,
    "loss averages": callbacks.LossAverages,
    "accumulation of 2": lambda: callbacks.GradientAccumulation(steps=2),
}
# These change nothing in the update: they cost what they write, and sums of losses and times.
WRITING = {
    "summaries, every 100": lambda: callbacks.Summaries(tempfile.mkdtemp(), every_steps=100),
    "throughput, every 100": lambda: callbacks.Throughput(every_steps=100),
    "trace, none in sight": lambda: callbacks.ProfilerTrace(tempfile.mkdtemp(), every_steps=10**9),
}
STATE = {"state, read every 100": StateRead}
# The last one is a part of the update, which then waits for all gradients, as in clipping.
WATCHING = WRITING | {"stop on non-finite": callbacks.StopOnNonFinite}
# Several callbacks in one arm: all of them, clipping once, and accumulation last, so that those
# before it act on every batch. It saves updates, which hides what they cost; hence the second arm.
ALL = [name for name in ONE_BY_ONE if name not in ("clipping, norm", "clipping, value")]
TOGETHER_WATCHING = {"all that write": list(WRITING), "all that watch": list(WATCHING)}
TOGETHER = {
    **TOGETHER_WATCHING,
    "all": ALL,
    "all but accumulation": [name for name in ALL if name != "accumulation of 2"],
}
CLIPPING_AND_AVERAGE = ("clipping, global_norm", "moving average")
# Arguments of Keras' optimizer, and the callback that does the same.
KERAS_OPTIONS = {
    "clipnorm": ({"clipnorm": 1.0}, ONE_BY_ONE["clipping, norm"]),
    "global_clipnorm": ({"global_clipnorm": 1.0}, ONE_BY_ONE["clipping, global_norm"]),
    "use_ema": (
        {"use_ema": True, "ema_momentum": 0.9999},
        lambda: callbacks.MovingAverage(0.9999, num_updates=False),
    ),
}


def main() -> None:
    """Parses the flags, measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, help="default: all")
    parser.add_argument("--together", action="store_true", help="all callbacks over none alone")
    parser.add_argument("--watching", action="store_true", help="what changes nothing alone")
    parser.add_argument("--state", action="store_true", help="what is told from outside alone")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--output", default="callback_overhead.json")
    flags = parser.parse_args()
    logging.getLogger("kerasdist").setLevel(logging.WARNING)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    kerasdist.make_strategy()  # Makes the logical CPUs.
    sizes = [flags.size] if flags.size else list(SIZES)
    rounds, bounds = {}, {}
    for size in sizes:
        for deployment in DEPLOYMENTS:
            if size == "10M":
                title = f"{size}, {deployment}"
                rounds[title], bounds[title] = against_the_bound(deployment, flags.rounds)
            else:
                one_by_one, together = ONE_BY_ONE | WATCHING | STATE, TOGETHER
                if flags.together:
                    one_by_one = {}
                if flags.watching:
                    one_by_one, together = WATCHING, TOGETHER_WATCHING
                if flags.state:
                    one_by_one, together = STATE, {}
                rounds |= against_off(size, deployment, flags.rounds, one_by_one, together)
        if size != "10M" and not (flags.together or flags.watching or flags.state):
            rounds |= against_keras(size, flags.rounds)
    interleaved.write(flags.output, microsecs_per_step=rounds, bytes_bound=bounds)


def against_off(size: str, deployment: str, rounds: int, one_by_one: dict, together: dict) -> dict:
    """Compares some callbacks by themselves, and some of them together, with none."""
    strategy = fit_overhead.our_strategy(deployment)
    arms = {"off": fit(strategy, size), "off again (A/A)": fit(strategy, size)}
    arms |= {name: fit(strategy, size, [make]) for name, make in one_by_one.items()}
    for title, names in together.items():
        arms[title] = fit(strategy, size, [(ONE_BY_ONE | WATCHING)[name] for name in names])
    times = compare(f"{size} steps, {deployment}: time / off", arms, size, rounds)
    return {f"{size}, {deployment}": times}


def against_keras(size: str, rounds: int) -> dict:
    """Compares a callback with Keras' own option; both run under our strategy for one device."""
    strategy = fit_overhead.our_strategy("one device")
    result = {}
    for option, (arguments, make) in KERAS_OPTIONS.items():
        arms = {
            f"Keras, {option}": fit(strategy, size, **arguments),
            "the same again (A/A)": fit(strategy, size, **arguments),
            type(make()).__name__: fit(strategy, size, [make]),
        }
        title = f"{size} steps, one device: time / {option}"
        result[f"{size}, {option}"] = compare(title, arms, size, rounds)
    return result


def against_the_bound(deployment: str, rounds: int) -> tuple[dict, dict]:
    """Compares what clipping and averaging add to a step with the time to move their bytes."""
    strategy = fit_overhead.our_strategy(deployment)
    on = [ONE_BY_ONE[name] for name in CLIPPING_AND_AVERAGE]
    arms = {
        "off": fit(strategy, "10M"),
        "off again (A/A)": fit(strategy, "10M"),
        "clipping and average": fit(strategy, "10M", on),
    }
    before = copy_bandwidth()
    title = f"10 million parameters, {deployment}: time / off"
    times = compare(title, arms, "10M", rounds)
    bandwidth = statistics.mean([before, copy_bandwidth()])
    # The replicas of this machine share its memory.
    num_parameters = keras.Sequential(SIZES["10M"].layers()).count_params()
    moved = BYTES_PER_PARAMETER * num_parameters * strategy.num_replicas_in_sync
    bound = moved / bandwidth
    added = sorted(
        (on - off) * 1e-6
        for on, off in zip(times["clipping and average"], times["off"], strict=True)
    )
    middle = statistics.median(added)
    print(
        f"added {middle:.4f} s per step [{added[0]:.4f}, {added[-1]:.4f}]; bound {bound:.4f} s "
        f"({moved / 1e6:.0f} MB at {bandwidth / 1e9:.1f} GB/s); {middle / bound:.2f} of the bound "
        f"[{added[0] / bound:.2f}, {added[-1] / bound:.2f}]",
        flush=True,
    )
    return times, {"bound_secs": bound, "bytes_per_sec": bandwidth, "added_secs": added}


def compare(title: str, arms: dict, size: str, rounds: int):
    """Measures and prints one comparison; its first arm is the base."""
    print(f"\n{title}", flush=True)
    ratios, times = turns.compare(arms, turns.Turns(steps=SIZES[size].steps, rounds=rounds))
    print(*ratios, sep="\n", flush=True)
    return times


def fit(strategy, size, make_callbacks=(), **optimizer_arguments):
    """Returns a function that makes a model, and returns one that runs its `fit`."""
    size = SIZES[size]

    def make():
        model = networks.make_model(
            strategy, size.layers(), optimizer_arguments=optimizer_arguments
        )
        data = networks.dataset(size.batch_size, size.input_shape)
        memory.PROCESS.status = None  # Of the arm before.
        callbacks = [make_callback() for make_callback in make_callbacks]
        return lambda num_steps, turn: model.fit(
            data, steps_per_epoch=num_steps, verbose=0, shuffle=False, callbacks=[turn, *callbacks]
        )

    return make


def copy_bandwidth() -> float:
    """Returns the bytes per second that a copy reads and writes, by one thread."""
    source = np.ones(50_000_000, "float32")
    target = np.empty_like(source)
    np.copyto(target, source)
    secs = []
    for _ in range(9):
        start = time.perf_counter()
        np.copyto(target, source)
        secs.append(time.perf_counter() - start)
    return 2 * source.nbytes / statistics.median(secs)


if __name__ == "__main__":
    main()
