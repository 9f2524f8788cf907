"""How the benchmarks here measure: as ratios within one run.

Times on a shared machine drift by tens of percent within a minute. So all arms run in turn, in
every round, in alternating order; each time is the difference between a long and a short run, which
cancels the start-up; and what is reported is the median of the rounds' ratios with its spread. The
first arm is the base, and running it twice (A/A) shows what the machine can resolve.
"""

import dataclasses
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ratio:
    """Time of an arm over that of the base: median, 95 % interval, quickest over quickest."""

    arm: str
    median: float
    low: float
    high: float
    quickest: float
    microsecs_per_step: float

    def __str__(self) -> str:
        return (
            f"{self.arm:<28} {self.median:5.2f}  [{self.low:.2f}, {self.high:.2f}]"
            f"  min/min {self.quickest:4.2f}"
            f"  {self.microsecs_per_step:7.0f} us"
        )


def compare(arms: dict[str, Callable[[int], None]], *, rounds: int, short: int, long: int):
    """Times `arms` against the first of them.

    Args:
        arms: Functions that run a number of steps, by title.
        rounds: How often each arm is timed.
        short: Steps of the run that is subtracted.
        long: Steps of the run that it is subtracted from.

    Returns:
        List of `Ratio`, and the microseconds per step of each round by arm.
    """
    for run in arms.values():
        run(short)
    times = {arm: [] for arm in arms}
    for index in range(rounds):
        order = list(arms) if index % 2 == 0 else list(arms)[::-1]
        for arm in order:
            times[arm].append(_microsecs_per_step(arms[arm], short, long))
    base = times[next(iter(arms))]
    return [ratio_of(arm, times[arm], base) for arm in arms], times


def ratio_of(arm: str, times: list[float], base: list[float]) -> Ratio:
    """Returns what the rounds of an arm say against those of the base."""
    ratios = [ours / theirs for ours, theirs in zip(times, base, strict=True)]
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return Ratio(
        arm=arm,
        median=statistics.median(ratios),
        low=medians[50],
        high=medians[1949],
        quickest=min(times) / min(base),
        microsecs_per_step=statistics.median(times),
    )


def write(path: str, **content) -> None:
    """Writes raw rounds and what they were measured on as JSON."""
    machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    Path(path).write_text(json.dumps({"machine": machine, **content}, indent=1))
    print(f"Written: {path}")


def _microsecs_per_step(run, short, long) -> float:
    start = time.perf_counter()
    run(short)
    middle = time.perf_counter()
    run(long)
    end = time.perf_counter()
    return ((end - middle) - (middle - start)) / (long - short) * 1e6
