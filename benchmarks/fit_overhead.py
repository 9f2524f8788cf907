"""What `fit` costs over a hand-written loop that runs the same train_step.

    python benchmarks/fit_overhead.py                  # about ten minutes
    python benchmarks/fit_overhead.py --size small --rounds 4

The base is what TensorFlow's guide writes: `strategy.run(model.train_step, (next(iterator),))` in a
tf.function, under TensorFlow's own strategy, logs never read.
"""

import argparse
import os
import resource
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import interleaved
import networks
import tensorflow as tf

import kerasdist
from kerasdist.strategies.mirrored import MirroredStrategy

# Hidden units, and the steps of a short and a long run: steps of about 1 ms (what the operations of
# such a step cost without any work) and 5 ms.
SIZES = {"small": (16, 100, 600), "large": (800, 20, 170)}
DEPLOYMENTS = ("one device", "Mirrored 1", "Mirrored 2")
BATCH_SIZE = 64


def main() -> None:
    """Parses the flags, measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, help="default: both")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--output", default="fit_overhead.json")
    parser.add_argument("--memory_of", nargs=2, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    if flags.memory_of:
        print(*measure_memory(*flags.memory_of))
        return
    kerasdist.make_strategy()  # Makes the logical CPUs.
    rounds = {}
    for size in [flags.size] if flags.size else SIZES:
        for deployment in DEPLOYMENTS:
            print(f"\n{size} steps, {deployment}: time / hand-written loop", flush=True)
            _, short, long = SIZES[size]
            ratios, times = interleaved.compare(
                arms(deployment, size), rounds=flags.rounds, short=short, long=long
            )
            print(*ratios, sep="\n", flush=True)
            rounds[f"{size}, {deployment}"] = times
    memory = {arm: memory_of(arm) for arm in ("hand", "fit")}
    report_memory(memory)
    interleaved.write(flags.output, microsecs_per_step=rounds, memory_mib=memory)


def arms(deployment: str, size: str) -> dict:
    """Returns the functions to compare; each runs a number of steps."""
    result = {
        "hand-written loop": hand_loop(stock_strategy(deployment), size),
        "the same again (A/A)": hand_loop(stock_strategy(deployment), size),
        "fit": fit(our_strategy(deployment), size),
        "fit, steps_per_execution=10": fit(our_strategy(deployment), size, steps_per_execution=10),
        "stock fit": fit(stock_strategy(deployment), size),
    }
    if deployment != "Mirrored 2":  # Stock Keras crashes there.
        stock = fit(stock_strategy(deployment), size, steps_per_execution=10)
        result["stock fit, steps_per_execution=10"] = stock
    return result


def our_strategy(deployment):
    """Returns the strategy of kerasdist for a deployment."""
    if deployment == "one device":
        return kerasdist.make_strategy(kerasdist.DeploymentConfig())
    return MirroredStrategy([f"CPU:{index}" for index in range(int(deployment[-1]))])


def stock_strategy(deployment):
    """Returns TensorFlow's strategy for a deployment."""
    if deployment == "one device":
        return tf.distribute.OneDeviceStrategy("CPU:0")
    devices = [f"CPU:{index}" for index in range(int(deployment[-1]))]
    # The faster of TensorFlow's ways on CPUs, so that the base is not handicapped.
    return tf.distribute.MirroredStrategy(devices, tf.distribute.ReductionToOneDevice())


def hand_loop(strategy, size):
    """Returns a function that runs the loop of TensorFlow's guide."""
    return networks.hand_loop(strategy, _make_model(strategy, size), networks.dataset(BATCH_SIZE))


def fit(strategy, size, **compile_arguments):
    """Returns a function that runs stock `fit`."""
    model = _make_model(strategy, size, **compile_arguments)
    data = networks.dataset(BATCH_SIZE)
    return lambda num_steps: model.fit(data, steps_per_epoch=num_steps, verbose=0, shuffle=False)


def _make_model(strategy, size, **compile_arguments):
    units = SIZES[size][0]
    return networks.make_model(
        strategy, networks.dense(units), metrics=["accuracy"], **compile_arguments
    )


def memory_of(arm: str) -> list[float]:
    """Returns [peak, growth over 2,000 steps] in MiB of a process that runs one arm."""
    command = [sys.executable, __file__, "--memory_of", arm, "small"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return [float(value) for value in result.stdout.split()[-2:]]


def measure_memory(arm: str, size: str) -> tuple[float, float]:
    """Runs one arm on two replicas; returns its peak and its growth after the first 500 steps."""
    kerasdist.make_strategy()
    make = hand_loop if arm == "hand" else fit
    run = make((stock_strategy if arm == "hand" else our_strategy)("Mirrored 2"), size)
    run(500)
    before = _resident_mib()
    run(2000)
    growth = _resident_mib() - before
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, growth


def report_memory(memory) -> None:
    """Prints peak memory and growth."""
    print("\nMemory on two replicas, a process each: peak, growth over 2,000 steps")
    for arm, (peak, growth) in memory.items():
        print(f"{arm:<28} {peak / memory['hand'][0]:5.2f}  {peak:.0f} MiB, {growth:+.1f} MiB")


def _resident_mib() -> float:
    with open("/proc/self/statm") as status:
        return int(status.read().split()[1]) * resource.getpagesize() / 2**20


if __name__ == "__main__":
    main()
