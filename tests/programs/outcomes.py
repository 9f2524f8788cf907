"""Runs the programs: what each gives on a deployment, and what plain Keras gives."""

import functools
import importlib
import inspect
import tempfile
import traceback
import warnings
from collections.abc import Collection
from pathlib import Path

import keras

from tests import strategies
from tests.joined_batches import joined_batches
from tests.programs.comparison import differences

# Keras says so of all data whose length it does not know, after every epoch.
_RAN_OUT = "Your input ran out of data; interrupting training."


def check_one_device(name: str, function: str = "run") -> None:
    """Asserts that one device gives the bits of plain Keras."""
    results = run(name, strategies.get("one device"), function=function)
    _assert_equal(results, truth(name, function=function), tolerance=0)


def check_two_replicas(name: str, function: str = "run") -> None:
    """Asserts that two replicas give the numbers of plain Keras."""
    strategy = strategies.get("2 replicas")
    check_numbers(name, run(name, strategy, function=function, comparable=True))


def check_numbers(
    name: str, results: dict | str, *, without: Collection[str] = (), num_joined: int = 1
) -> None:
    """Asserts that `results`, or an error, are the numbers of plain Keras.

    Args:
        name: Of the program.
        results: What a deployment gave.
        without: Keys that differ by nature.
        num_joined: How many batches of the program plain Keras joins into one.
    """
    assert not isinstance(results, str), results
    ours, theirs = (
        {key: each[key] for key in each if key not in without}
        for each in (results, truth(name, comparable=True, num_joined=num_joined))
    )
    _assert_equal(ours, theirs, tolerance=1e-5)


def run(name: str, strategy=None, *, directory=None, function="run", comparable=False) -> dict:
    """Runs a program.

    Args:
        name: Its module.
        strategy: None for plain Keras.
        directory: For the files that it writes, shared by all workers. None: it is gone afterwards.
        function: Which form of the program.
        comparable: Whether to leave out what differs between replicas by nature: random layers, and
            batch statistics of each replica.

    Returns:
        What the program returns, and the warnings that it gave.
    """
    if directory is None:
        with tempfile.TemporaryDirectory() as directory:
            return run(
                name, strategy, directory=directory, function=function, comparable=comparable
            )
    program = getattr(importlib.import_module(f"tests.programs.{name}"), function)
    offered = {"directory": str(directory), "comparable": comparable}
    asked = inspect.signature(program).parameters
    keras.utils.clear_session()  # Names such as `dense_1` count what was made before.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        results = program(strategy, **{key: offered[key] for key in offered if key in asked})
    messages = {str(each.message) for each in caught if each.category is UserWarning}
    return {**results, "warnings": sorted(each for each in messages if _RAN_OUT not in each)}


def truth(
    name: str, *, function: str = "run", comparable: bool = False, num_joined: int = 1
) -> dict:
    """Returns what plain Keras gives; a program without `comparable` runs once for both."""
    program = getattr(importlib.import_module(f"tests.programs.{name}"), function)
    is_asked = "comparable" in inspect.signature(program).parameters
    return _truth(name, function, comparable and is_asked, num_joined)


@functools.cache
def _truth(name, function, comparable, num_joined):
    with joined_batches(num_joined):
        return run(name, function=function, comparable=comparable)


def run_on_cluster(cluster: str, names: list[str], directory: Path) -> dict[str, list]:
    """Runs programs in a row in the processes of a cluster: starting TensorFlow takes longer.

    After one that fails, the others run in a new cluster: what is left of the old one cannot be
    trusted.

    Args:
        cluster: A name in `tests.strategies`.
        names: The programs.
        directory: For the files that they write.

    Returns:
        By program, the results or the error on each worker.
    """
    outcomes = {}
    while names:
        program = functools.partial(_run_until_error, names, directory)
        workers = strategies.run_on_workers(program, cluster, timeout_secs=900)
        for name in names:
            outcomes[name] = [results.get(name, "Another worker failed.") for results in workers]
            if any(isinstance(results, str) for results in outcomes[name]):
                break
        names = names[names.index(name) + 1 :]
    return outcomes


def _run_until_error(names, directory, strategy):
    results = {}
    for name in names:
        (directory / name).mkdir(exist_ok=True)
        try:
            results[name] = run(name, strategy, directory=directory / name, comparable=True)
        except Exception:
            return results | {name: traceback.format_exc()}
    return results


def _assert_equal(results, expected, *, tolerance):
    lines = differences(results, expected, tolerance=tolerance)
    assert not lines, "\n".join(["", *lines])
