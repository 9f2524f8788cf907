"""What XLA makes of the time of a step: on one device, on two replicas and on two workers.

    python benchmarks/xla.py                    # about five minutes on two cores
    python benchmarks/xla.py --part replicas --network transformer --rounds 4

Each part compares `fit` with `jit_compile=True` with the same `fit` without, in turn within one
run; on one device that of plain Keras, too. `first step` is the time of the first step, in which
XLA compiles.
"""

import argparse
import contextlib
import functools
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import interleaved

# The layers, the shape of an example, and the steps of a short and a long run.
NETWORKS = {
    "small": ("dense", 16, (32,), 100, 500),
    "large": ("dense", 800, (32,), 20, 120),
    "convolutional": ("convolutional", 8, (32, 32, 3), 10, 60),
    "transformer": ("transformer", 3, (32, 64), 10, 60),
}
BATCH_SIZE = 32
_XLA, _AGAIN = ", XLA", "the same again (A/A)"


def main() -> None:
    """Parses the flags, measures, prints and writes."""
    parts = {"device": device, "replicas": replicas, "workers": workers}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=parts, help="default: all")
    parser.add_argument("--network", choices=NETWORKS, help="default: all")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--output", default="xla.json")
    flags = parser.parse_args()
    rounds = {}
    for part in [flags.part] if flags.part else parts:
        for network in [flags.network] if flags.network else NETWORKS:
            print(f"\n{network}, {part}: time / the same without XLA", flush=True)
            ratios, times, firsts = parts[part](network, flags.rounds)
            print(*ratios, sep="\n", flush=True)
            for arm, secs in firsts.items():
                print(f"{arm:<28} first step {secs:.2f} s", flush=True)
            rounds[f"{network}, {part}"] = {"microsecs_per_step": times, "first_step": firsts}
    interleaved.write(flags.output, **rounds)


def device(network: str, rounds: int) -> tuple:
    """Compares plain Keras and `fit` in our scope, each with and without XLA, on one device."""
    import kerasdist

    ours = kerasdist.make_strategy(kerasdist.DeploymentConfig())
    arms = {"fit": (ours, False), "fit, XLA": (ours, True)}
    arms |= {"plain Keras": (None, False), "plain Keras, XLA": (None, True)}
    return _compare(network, rounds, {name: (*arm, 1) for name, arm in arms.items()})


def replicas(network: str, rounds: int) -> tuple:
    """Compares `fit` with and without XLA on two logical CPUs."""
    import kerasdist

    config = kerasdist.DeploymentConfig(num_clones=2, clone_on_cpu=True)
    strategy = kerasdist.make_strategy(config, cluster=kerasdist.Cluster.local())
    return _compare(network, rounds, _arms_of(strategy))


def workers(network: str, rounds: int) -> tuple:
    """Compares `fit` with and without XLA on two workers, which are processes of this machine."""
    from kerasdist import testing

    measure = functools.partial(_measure_on_worker, network, rounds)
    outputs = testing.run_cluster(measure, num_workers=2, timeout_secs=900)
    for output in outputs:
        if output.exit_code != 0:
            raise RuntimeError(f"{output.task} failed:\n{output.output[-2000:]}")
    return outputs[0].value


def _measure_on_worker(network: str, rounds: int) -> tuple:
    import kerasdist

    return _compare(network, rounds, _arms_of(kerasdist.make_strategy()))


def _arms_of(strategy) -> dict:
    return {
        "fit": (strategy, False, 1),
        _AGAIN: (strategy, False, 1),
        "fit, XLA": (strategy, True, 1),
        "fit, 10 steps a call": (strategy, False, 10),
        "fit, 10 steps a call, XLA": (strategy, True, 10),
    }


def _compare(network: str, rounds: int, arms: dict) -> tuple:
    """Returns the ratios, the times of all rounds and the seconds of each first step."""
    runs = {name: _fit(network, *arm) for name, arm in arms.items()}
    firsts = {}
    for name, run in runs.items():
        start = time.perf_counter()
        run(10 if "10 steps" in name else 1)
        firsts[name] = time.perf_counter() - start
    *_, short, long = NETWORKS[network]
    _, times = interleaved.compare(runs, rounds=rounds, short=short, long=long)
    bases = {arm: arm.removesuffix(_XLA) for arm in arms if arm.endswith(_XLA)}
    bases |= {_AGAIN: "fit"} if _AGAIN in arms else {}
    return (
        [interleaved.ratio_of(arm, times[arm], times[bases[arm]]) for arm in bases],
        times,
        firsts,
    )


def _fit(network: str, strategy, jit_compile: bool, steps_per_execution: int):
    """Returns a function that trains for so many steps; None for no strategy."""
    import networks

    kind, size, shape, *_ = NETWORKS[network]
    model = networks.make_model(
        strategy or _NoStrategy(),
        functools.partial(getattr(networks, kind), size),
        metrics=["accuracy"],
        jit_compile=jit_compile,
        steps_per_execution=steps_per_execution,
    )
    data = networks.dataset(BATCH_SIZE, shape)
    return lambda num_steps: model.fit(data, steps_per_epoch=num_steps, verbose=0, shuffle=False)


class _NoStrategy:
    """Stands for the strategy of plain Keras."""

    def scope(self):
        return contextlib.nullcontext()


if __name__ == "__main__":
    main()
