"""Programs in the manner of published ones give what plain Keras gives, on every deployment."""

import functools
import importlib
import inspect
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import strategies
from tests.programs.comparison import differences
from tests.strategies import PARAMETER_SERVERS, run_on_workers

# Every program, and the time-limited part of them that runs on clusters too.
PROGRAMS = [
    "builtin_methods",
    "callbacks_guide",
    "distributed_guide",
    "own_losses",
    "own_train_steps",
]
ON_CLUSTERS = ["callbacks_guide", "distributed_guide", "own_losses"]
CLUSTERS = ["2 workers", *PARAMETER_SERVERS]

each_program = pytest.mark.parametrize("name", PROGRAMS)


def run(name: str, strategy=None, *, comparable: bool = False) -> dict:
    """Runs a program.

    Args:
        name: Its module.
        strategy: None for plain Keras.
        comparable: Whether to leave out what differs between replicas by nature: random layers, and
            batch statistics of each replica. Programs without those have no such argument.
    """
    program = importlib.import_module(f"tests.programs.{name}").run
    has_more = "comparable" in inspect.signature(program).parameters
    arguments = {"comparable": comparable} if has_more else {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        results = program(strategy, **arguments)
    messages = {str(each.message) for each in caught if each.category is UserWarning}
    return {**results, "warnings": sorted(messages)}


@functools.cache
def truth(name: str, *, comparable: bool = False) -> dict:
    """Returns what plain Keras gives."""
    return run(name, comparable=comparable)


def assert_equal(results: dict, expected: dict, *, tolerance: float) -> None:
    lines = differences(results, expected, tolerance=tolerance)
    assert not lines, "\n".join(["", *lines])


@each_program
def test_one_device_gives_the_bits_of_plain_keras(name):
    results = run(name, strategies.get("one device"))

    assert_equal(results, truth(name), tolerance=0)


@each_program
def test_two_replicas_give_the_numbers_of_plain_keras(name):
    results = run(name, strategies.get("2 replicas"), comparable=True)

    assert_equal(results, truth(name, comparable=True), tolerance=1e-5)


@pytest.mark.timeout(600)  # The first one waits for the cluster to be done.
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("name", ON_CLUSTERS)
def test_a_cluster_gives_the_numbers_of_plain_keras(name, cluster, clusters):
    for outcomes in clusters[cluster].result():
        results = outcomes[name]
        assert not isinstance(results, str), results
        assert_equal(results, truth(name, comparable=True), tolerance=1e-5)


@pytest.fixture(scope="module", autouse=True)
def clusters(request):
    """The results of the programs on each worker, by cluster.

    The clusters run while this process tests the other deployments.
    """
    asked = [
        item.callspec.params
        for item in request.session.items
        if item.path == Path(__file__) and "cluster" in item.fixturenames
    ]
    with ThreadPoolExecutor(1) as pool:
        yield {
            cluster: pool.submit(
                run_on_workers,
                functools.partial(run_all, [each["name"] for each in asked if each["cluster"] == cluster]),
                cluster,
                timeout_secs=900,
            )
            for cluster in dict.fromkeys(each["cluster"] for each in asked)
        }
        pool.shutdown(cancel_futures=True)


def run_all(names: list[str], strategy) -> dict:
    """Runs programs in a row in one process: starting TensorFlow takes longer than a program."""
    return {name: _results_or_error(name, strategy) for name in names}


def _results_or_error(name, strategy):
    try:
        return run(name, strategy, comparable=True)
    except Exception:  # The other programs are to be seen as well.
        return traceback.format_exc()
