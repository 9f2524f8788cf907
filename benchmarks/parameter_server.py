"""What `fit` over parameter servers does per second, beside a hand-written loop.

    python benchmarks/parameter_server.py                        # about five minutes
    python benchmarks/parameter_server.py --rounds 4

Two workers and one parameter server, processes of this machine. The loop is TensorFlow's guide's:
`coordinator.schedule` of a function with `strategy.run(model.train_step, ...)`, once or 20 times.
`fit` counts exactly, shows its progress bar, and in one arm reads the logs of every call.
benchmarks/peers.py compares it with that of tf_keras.
"""

import argparse
import contextlib
import dataclasses
import functools
import io
import os
import statistics

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import interleaved

from kerasdist import testing

BATCH_SIZE, UNITS = 64, 64
# Steps of a short and a long run, by steps per call: the difference is free of the start.
LENGTHS = {1: (100, 700), 20: (400, 2400)}
MEMORY_STEPS = 20_000


def main() -> None:
    """Parses the flags, measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--memory", action="store_true", help="the chief's memory alone")
    parser.add_argument("--output", default="parameter_server.json")
    flags = parser.parse_args()
    result = {}
    if not flags.memory:
        for steps_per_call in LENGTHS:
            result[f"K={steps_per_call}"] = against_the_loop(steps_per_call, flags.rounds)
    result["memory"] = memory()
    interleaved.write(flags.output, **result)


def against_the_loop(steps_per_call: int, rounds: int) -> dict:
    """Compares `fit` with a loop in one cluster."""
    print(f"\nK={steps_per_call}: time / hand-written loop (below 1 is faster)", flush=True)
    ratios, times = _on_chief(functools.partial(_compare, steps_per_call, rounds))
    print(*ratios, sep="\n", flush=True)
    for name, microsecs in times.items():
        print(f"  {name}: {1e6 / statistics.median(microsecs):.0f} steps/s", flush=True)
    return times


def memory() -> dict:
    """Reads the memory of the chief during a long `fit`."""
    sizes = _on_chief(_memory_of_fit)
    grown = sizes[-1] - sizes[len(sizes) // 4]
    print(f"\nMemory of the chief over {MEMORY_STEPS} steps: {sizes} MiB, grown {grown:+.1f}")
    return {"MiB": sizes}


def _on_chief(function):
    outputs = testing.run_cluster(
        functools.partial(_run, function), num_workers=2, num_ps=1, timeout_secs=900
    )
    if any(output.exit_code for output in outputs):
        raise SystemExit(outputs[0].output[-4000:])
    return outputs[0].value


def _run(function):
    import kerasdist

    return function(kerasdist.make_strategy())


def _compare(steps_per_call, rounds, strategy):
    import keras

    class ReadLogs(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            float(logs["loss"])

    _set_steps_per_call(strategy, steps_per_call)
    arms = {
        "loop": _loop(strategy, steps_per_call),
        "loop again (A/A)": _loop(strategy, steps_per_call),
        "fit": _fit(strategy),
        "fit, logs of every call": _fit(strategy, [ReadLogs()]),
    }
    short, long = LENGTHS[steps_per_call]
    return interleaved.compare(arms, rounds=rounds, short=short, long=long)


def _set_steps_per_call(strategy, number):
    remote = dataclasses.replace(strategy.deployment.remote, steps_per_call=number)
    strategy.deployment = dataclasses.replace(strategy.deployment, remote=remote)


def _loop(strategy, steps_per_call):
    import networks
    import tensorflow as tf

    model = networks.make_model(strategy, networks.dense(UNITS), metrics=["accuracy"])
    with strategy.scope():
        model.optimizer.build(model.trainable_variables)
    coordinator = strategy.deployment.remote.coordinator
    iterator = iter(coordinator.create_per_worker_dataset(networks.dataset(BATCH_SIZE)))

    @tf.function
    def steps(iterator):
        if steps_per_call == 1:
            strategy.run(model.train_step, args=(next(iterator),))
        else:
            for _ in tf.range(steps_per_call):
                strategy.run(model.train_step, args=(next(iterator),))

    def run(num_steps):
        for _ in range(num_steps // steps_per_call):
            coordinator.schedule(steps, args=(iterator,))
        coordinator.join()

    return run


def _fit(strategy, callbacks=()):
    import networks

    model = networks.make_model(strategy, networks.dense(UNITS), metrics=["accuracy"])
    data = networks.dataset(BATCH_SIZE)

    def run(num_steps):
        with contextlib.redirect_stdout(io.StringIO()):  # The bar is drawn, and not seen.
            model.fit(data, steps_per_epoch=num_steps, verbose=1, callbacks=list(callbacks))

    return run


def _memory_of_fit(strategy) -> list[float]:
    import psutil

    _set_steps_per_call(strategy, 20)
    run = _fit(strategy)
    process = psutil.Process()
    sizes = []
    for _ in range(10):
        run(MEMORY_STEPS // 10)
        sizes.append(round(process.memory_info().rss / 2**20, 1))
    return sizes


if __name__ == "__main__":
    main()
