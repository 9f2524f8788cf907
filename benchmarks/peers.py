"""`fit` beside that of stock Keras 3 and of tf_keras 2.21, on replicas, workers and servers.

    python benchmarks/peers.py                              # stock Keras 3: two replicas alone
    python benchmarks/peers.py --peer venv/bin/python       # tf_keras, too: about ten minutes

Two replicas are logical CPUs; two workers, and two workers beside a parameter server, are processes
of this machine. `--peer` names a Python with tensorflow and tf-keras 2.21, and nothing of ours.
Stock Keras 3 trains neither on several workers nor on parameter servers, nor several steps a call
on replicas. Each `fit` runs in processes of its own, in turn, after a first `fit` in which the
graphs are made; the seconds of a second one, with its start, are divided by its steps. Over
parameter servers, kerasdist chooses the steps of a call where a model says 1. All run this file.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# The name of a network, and steps per call; the steps of the first and of the second `fit`.
CASES = {
    "small": ("dense", 1, 100, 500),
    "small, 20 steps a call": ("dense", 20, 200, 1200),
    "convolutional": ("convolutional", 1, 20, 100),
}
# Who trains on what, and the arguments of `run_cluster`.
DEPLOYMENTS: dict[str, dict[str, int]] = {
    "2 replicas": {},
    "2 workers": {"num_workers": 2},
    "2 workers + 1 ps": {"num_workers": 2, "num_ps": 1},
}
OURS, STOCK, LEGACY = "kerasdist", "Keras 3", "tf_keras"
SHAPES = {"dense": (32,), "convolutional": (32, 32, 3)}
BATCH_SIZE = 64
LIMIT_SECS = 600


def main() -> None:
    """Parses the flags, measures, prints and writes; or is a task."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", help="a Python with tensorflow and tf-keras 2.21")
    parser.add_argument("--deployments", nargs="+", choices=DEPLOYMENTS, default=list(DEPLOYMENTS))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--output", default="peers.json")
    parser.add_argument("--task", nargs=2, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.task:
        task(*flags.task)
        return
    import interleaved

    found = {}
    for deployment in flags.deployments:
        pythons = {OURS: sys.executable}
        if deployment == "2 replicas":
            pythons[STOCK] = sys.executable
        if flags.peer:
            pythons[LEGACY] = flags.peer
        if len(pythons) == 1:
            print(f"{deployment}: skipped, since only tf_keras trains there: --peer PYTHON")
            continue
        found[deployment] = compare(deployment, pythons, flags.rounds)
    interleaved.write(flags.output, secs=found)


def compare(deployment: str, pythons: dict[str, str], rounds: int) -> dict:
    """Runs the `fit` of each library in turn, and prints what the others take of our time."""
    found: dict[str, dict[str, list]] = {
        name: {library: [] for library in pythons} for name in CASES
    }
    for _ in range(rounds):
        for library, python in pythons.items():
            for name, secs in run(python, library, deployment).items():
                found[name][library].append(secs)
    print(f"\n{deployment}: time / kerasdist", flush=True)
    for name, of_case in found.items():
        for library, secs in of_case.items():
            if not secs:
                print(f"{name:<24} {library:<10} cannot")
                continue
            ratios = [theirs / ours for theirs, ours in zip(secs, of_case[OURS], strict=True)]
            print(
                f"{name:<24} {library:<10} {statistics.median(ratios):5.2f}  [{min(ratios):.2f}, "
                f"{max(ratios):.2f}]  {statistics.median(secs) * 1e3:6.2f} ms",
                flush=True,
            )
    return found


def run(python: str, library: str, deployment: str) -> dict[str, float]:
    """Returns the seconds of a step by the case, of one library in processes of its own."""
    command = [python, __file__, "--task", library, deployment]
    cluster = DEPLOYMENTS[deployment]
    if cluster:
        from kerasdist import testing

        program = f"import os; os.execv({python!r}, {command!r})"
        output = testing.run_cluster(program, timeout_secs=LIMIT_SECS, **cluster)[0].output
    else:
        output = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_SECS,
            check=False,
        ).stdout
    for line in output.splitlines():
        if line.startswith("secs "):
            return json.loads(line.removeprefix("secs "))
    raise SystemExit(f"{library} on {deployment} has failed:\n{output[-4000:]}")


def task(library: str, deployment: str) -> None:
    """Trains each case and prints the seconds of a step; or serves."""
    if library == LEGACY:
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
        import tf_keras as keras
    else:
        import keras
    strategy = ours(deployment) if library == OURS else of_tensorflow(deployment)
    secs = {}
    for name, (network, steps_per_call, first, second) in CASES.items():
        if library == STOCK and steps_per_call > 1:
            continue
        model = make_model(keras, strategy, network, steps_per_call)
        fit(model, network, first)
        secs[name] = fit(model, network, second) / second
    print("secs", json.dumps(secs), flush=True)
    if library != OURS:
        sys.stdout.flush()
        os._exit(0)  # A coordinator of TensorFlow waits for its threads.


def ours(deployment: str):
    """Returns our strategy."""
    import kerasdist

    if deployment == "2 replicas":
        config = kerasdist.DeploymentConfig(num_clones=2, clone_on_cpu=True)
        return kerasdist.make_strategy(config, cluster=kerasdist.Cluster.local())
    return kerasdist.make_strategy()


def of_tensorflow(deployment: str):
    """Returns TensorFlow's own strategy, or serves."""
    import tensorflow as tf

    if deployment == "2 replicas":
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(2)]
        )
        return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    if deployment == "2 workers":
        return tf.distribute.MultiWorkerMirroredStrategy()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol="grpc",
        ).join()
    return tf.distribute.ParameterServerStrategy(resolver)


def make_model(keras: Any, strategy: Any, network: str, steps_per_call: int) -> Any:
    """Returns a network as networks.py has it, of Keras 3 or of tf_keras.

    Args:
        keras: Either of them.
        strategy: Where it trains.
        network: "dense" or "convolutional".
        steps_per_call: Its `steps_per_execution`.
    """
    with strategy.scope():
        layers = [keras.Input(SHAPES[network])]
        if network == "dense":
            layers += [keras.layers.Dense(64, activation="relu") for _ in range(2)]
        else:
            for filters in (8, 16, 32):
                layers += [
                    keras.layers.Conv2D(filters, 3, padding="same", activation="relu"),
                    keras.layers.MaxPooling2D(),
                ]
            layers.append(keras.layers.GlobalAveragePooling2D())
        model = keras.Sequential([*layers, keras.layers.Dense(10)])
        model.compile(
            keras.optimizers.SGD(0.01, momentum=0.9),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            steps_per_execution=steps_per_call,
        )
    return model


def fit(model: Any, network: str, num_steps: int) -> float:
    """Returns the seconds that `fit` takes."""
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH_SIZE, *SHAPES[network])).astype("float32")
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    data = tf.data.Dataset.from_tensors((x, rng.integers(0, 10, size=BATCH_SIZE)))
    start = time.perf_counter()
    model.fit(data.repeat().with_options(options), steps_per_epoch=num_steps, verbose=0)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
