"""How long synchronous workers wait for the slowest of them, and how many backups that is worth.

    python benchmarks/stragglers.py                    # simulated, one minute
    python benchmarks/stragglers.py --real             # and checked against 2, 3 and 4 workers
    python benchmarks/stragglers.py --picture docs/stragglers.svg

Of n workers, b are backups: an update is made of the first n - b gradients. The time of each
batch is lognormal with mean 1 and the standard deviation of its logarithm sigma, anew each time, so
that without noise an update takes 1. Two systems:

- *afresh*, as published ("Revisiting Distributed Synchronous SGD"): whoever is late drops what it
  does and begins the next update with the others. Its mean is that of an order statistic.
- *goes on*, as kerasdist does it: whoever is late finishes a batch that is stale, and then computes
  it again with new weights, until it is in an update.

What counts is examples per second: (n - b) / time. With `--real`, workers of this machine sleep as
long as the distribution says, so that two cores suffice.
"""

import argparse
import contextlib
import dataclasses
import functools
import itertools
import os
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

SIGMAS = (0.05, 0.1, 0.2)
NUM_WORKERS = (4, 10, 32, 64, 100, 200, 500, 1000)
PUBLISHED = 50  # Batches of each update in the OSDI paper, which has backups beside them.
REAL_SIGMAS = (0.2, 0.5)
REAL_SECS = 0.1
MOST_APART = 0.15
# Updates that are not counted: fewer are late than later on.
_NUM_BEFORE = 20


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What a number of backups comes to.

    Attributes:
        num_workers: All, backups included.
        num_backups: Of these.
        secs: Mean time of an update, relative to that without noise.
    """

    num_workers: int
    num_backups: int
    secs: float

    @property
    def throughput(self) -> float:
        """Examples per second and worker, relative to workers without noise."""
        return (self.num_workers - self.num_backups) / self.num_workers / self.secs


def main() -> None:
    """Parses the flags, simulates, prints, and compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000, help="simulated updates")
    parser.add_argument("--real", action="store_true", help="compare with workers, four minutes")
    parser.add_argument("--picture", help="file to draw the result into, such as docs/picture.svg")
    flags = parser.parse_args()
    print_step_times(flags.steps)
    print_best(flags.steps)
    print_published(flags.steps)
    if flags.picture:
        draw(flags.picture, flags.steps)
    if flags.real:
        compare_with_workers()


def afresh(num_workers: int, sigma: float, num_steps: int) -> np.ndarray:
    """Simulates workers of which all begin each update together.

    Returns:
        Mean time of an update, by the number of backups from 0 on: float64 [workers].
    """
    draws = _times(np.random.default_rng(0), sigma, (num_steps, num_workers))
    return np.sort(draws, axis=1).mean(axis=0)[::-1]


def goes_on(num_workers: int, num_backups: int, sigma: float, num_steps: int) -> float:
    """Simulates workers that finish what is stale, and then compute it again.

    Returns:
        Mean time of an update.
    """
    rng = np.random.default_rng(0)
    last = num_workers - num_backups - 1
    now = begun_at = 0.0
    # When each worker will have done what is stale; the past where it has nothing of the kind.
    stale_until = np.zeros(num_workers)
    for step in range(_NUM_BEFORE + num_steps):
        if step == _NUM_BEFORE:
            begun_at = now
        begins = np.maximum(stale_until, now)
        fresh_at = begins + _times(rng, sigma, num_workers)
        now = np.partition(fresh_at, last)[last]
        # Who has begun a batch of this update, and is not in it, has a stale one now.
        stale_until = np.where(begins < now, fresh_at, stale_until)
    return (now - begun_at) / num_steps


def best_choice(num_workers: int, sigma: float, num_steps: int) -> Choice:
    """Returns the number of backups with the most examples per second."""
    step = max(1, num_workers // 100)
    numbers = range(0, num_workers // 4 + 1, step)
    choices = (
        Choice(
            num_workers=num_workers,
            num_backups=number,
            secs=goes_on(num_workers, number, sigma, num_steps),
        )
        for number in numbers
    )
    return max(choices, key=lambda choice: choice.throughput)


def print_step_times(num_steps: int) -> None:
    """Prints the time of an update, for each number of backups."""
    print(
        "Mean time of an update without noise: 1. Workers go on with what is stale / begin afresh"
    )
    print("| workers | sigma | no backup | 1 backup | 4 % backups | 10 % backups |")
    print("|---|---|---|---|---|---|")
    for sigma, num_workers in _cases():
        published = afresh(num_workers, sigma, num_steps)
        cells = []
        for number in (0, 1, round(0.04 * num_workers), round(0.1 * num_workers)):
            ours = goes_on(num_workers, number, sigma, num_steps)
            cells.append(f"{ours:.2f} / {published[number]:.2f}")
        print(f"| {num_workers} | {sigma:.0%} | {' | '.join(cells)} |", flush=True)


def print_best(num_steps: int) -> None:
    """Prints how many backups give the most examples per second."""
    print("\nBackups with the most examples per second, and how many more than without any")
    print(f"| workers | {' | '.join(f'sigma {sigma:.0%}' for sigma in SIGMAS)} |")
    print(f"|---|{'---|' * len(SIGMAS)}")
    for num_workers in NUM_WORKERS:
        cells = []
        for sigma in SIGMAS:
            choice = best_choice(num_workers, sigma, num_steps)
            gain = choice.throughput * goes_on(num_workers, 0, sigma, num_steps) - 1
            cells.append(f"{choice.num_backups} ({gain:+.1%}, update {choice.secs:.2f})")
        print(f"| {num_workers} | {' | '.join(cells)} |", flush=True)


def print_published(num_steps: int) -> None:
    """Prints what backups beside 50 workers bring, per worker, as the OSDI paper does."""
    print(f"\n{PUBLISHED} workers and b backups: examples per second and worker, relative to b = 0")
    for sigma in SIGMAS:
        gains = []
        for number in range(7):
            secs = afresh(PUBLISHED + number, sigma, 4 * num_steps)[number]
            choice = Choice(num_workers=PUBLISHED + number, num_backups=number, secs=secs)
            gains.append(choice.throughput)
        print(f"  sigma {sigma:.0%}:", *(f"{each / gains[0]:.3f}" for each in gains), flush=True)


def draw(path: str, num_steps: int) -> None:
    """Draws examples per second by the share of backups."""
    from matplotlib import pyplot

    shares = np.linspace(0, 0.2, 21)
    with pyplot.rc_context({"svg.fonttype": "none", "svg.hashsalt": "", "font.size": 9}):
        figure, axes = pyplot.subplots(1, len(SIGMAS), figsize=(8, 2.6), sharey=True)
        for axis, sigma in zip(axes, SIGMAS, strict=True):
            for num_workers in (10, 50, 200, 1000):
                numbers = sorted({round(share * num_workers) for share in shares})
                values = [
                    (1 - number / num_workers) / goes_on(num_workers, number, sigma, num_steps)
                    for number in numbers
                ]
                percents = [100 * number / num_workers for number in numbers]
                axis.plot(percents, values, label=f"{num_workers} workers")
            axis.set_title(f"sigma {sigma:.0%}", fontsize=9)
            axis.set_xlabel("backups, % of the workers")
            axis.grid(alpha=0.3)
        axes[0].set_ylabel("examples/s, 1 without noise")
        axes[0].legend(fontsize=7)
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None})
    print(f"Written: {path}")


def compare_with_workers() -> None:
    """Compares the simulation with workers that sleep.

    Raises:
        SystemExit: They are apart by more than 15 %.
    """
    print(f"\nWorkers that sleep {REAL_SECS} s, beside the simulation: mean time of an update")
    furthest = 0.0
    for num_workers, num_backups in ((2, 0), (3, 0), (4, 0), (3, 1), (4, 1)):
        by_sigma, secs = _measured(num_workers, num_backups)
        print(f"  {num_workers} workers, {num_backups} backups: {secs:.3f} s without noise")
        for sigma, measured in by_sigma.items():
            simulated = goes_on(num_workers, num_backups, sigma, 20_000)
            apart = measured / simulated - 1
            furthest = max(furthest, abs(apart))
            print(
                f"    sigma {sigma:.0%}: {measured:.3f}, simulated {simulated:.3f} ({apart:+.1%})",
                flush=True,
            )
    if furthest > MOST_APART:
        raise SystemExit(f"The simulation is wrong by {furthest:.0%}.")


def _cases() -> itertools.product:
    return itertools.product(SIGMAS, NUM_WORKERS)


def _times(rng: np.random.Generator, sigma: float, shape: tuple[int, ...] | int) -> np.ndarray:
    return rng.lognormal(-(sigma**2) / 2, sigma, shape)


def _measured(num_workers: int, num_backups: int) -> tuple[dict[float, float], float]:
    from kerasdist import testing

    with tempfile.TemporaryDirectory() as folder:
        chief, *_ = testing.run_cluster(
            functools.partial(_run, folder, num_workers, num_backups),
            num_workers=num_workers,
            num_ps=1,
            timeout_secs=300,
        )
    if chief.exit_code:
        raise SystemExit(chief.output[-4000:])
    return chief.value


def _run(folder: str, num_workers: int, num_backups: int) -> tuple[dict[float, float], float]:
    """Returns the mean time of an update by sigma, relative; and the seconds without noise."""
    import networks
    import sleeping

    import kerasdist

    sleeping.enter(folder)
    strategy = kerasdist.make_strategy(
        kerasdist.DeploymentConfig(
            num_replicas=num_workers,
            num_ps_tasks=1,
            sync_replicas=True,
            replicas_to_aggregate=num_workers - num_backups,
        )
    )
    first, *others = networks.dense(8)
    model = networks.make_model(strategy, [first, sleeping.Sleeps(), *others])
    secs: dict[float, list[float]] = {sigma: [] for sigma in (0, *REAL_SIGMAS)}
    _secs_per_update(model, num_workers - num_backups, num_updates=10)  # Makes the graphs.
    for _ in range(3):
        for sigma, of_sigma in secs.items():
            for worker in range(num_workers):
                sleeping.set_pace(folder, worker=worker, secs=REAL_SECS, sigma=sigma)
            of_sigma.append(_secs_per_update(model, num_workers - num_backups))
    means = {sigma: float(np.mean(of_sigma)) for sigma, of_sigma in secs.items()}
    # What an update takes beside its batches, it takes with noise too.
    return {sigma: 1 + (means[sigma] - means[0]) / REAL_SECS for sigma in REAL_SIGMAS}, means[0]


def _secs_per_update(model, num_to_aggregate: int, num_updates: int = 30) -> float:
    import keras
    import networks

    ends = []

    class Clock(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            ends.append((batch, time.perf_counter()))

    data = networks.dataset(4).take(num_updates * num_to_aggregate)
    with contextlib.redirect_stdout(None):
        model.fit(data, verbose=0, callbacks=[Clock()])
    # At the end of an epoch all wait for the last batches.
    inner = [each for each in ends if num_updates // 10 <= each[0] < num_updates - 2]
    (begin, begun_at), (end, ended_at) = inner[0], inner[-1]
    return (ended_at - begun_at) / (end - begin)


if __name__ == "__main__":
    main()
