"""Programs in the manner of published ones give what plain Keras gives, on every deployment."""

import functools
import importlib
import inspect
import tempfile
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import keras
import pytest

from tests import strategies
from tests.programs.comparison import differences
from tests.strategies import run_on_workers

PROGRAMS = [
    "autoencoder",
    "bidirectional_lstm",
    "builtin_methods",
    "callbacks_guide",
    "curriculum",
    "custom_loop",
    "deep_q_learning",
    "diffusion",
    "distillation",
    "distributed_guide",
    "gan",
    "graph_network",
    "input_pipelines",
    "masked_language_model",
    "mixup",
    "multi_worker",
    "object_detection",
    "ocr",
    "own_losses",
    "own_train_steps",
    "parameter_servers",
    "recommender",
    "saving",
    "sequence_to_sequence",
    "siamese",
    "simsiam",
    "subclassed_layers",
    "text_classification",
    "timeseries_transformer",
    "transfer_learning",
    "translation",
    "vae",
    "vision_transformer",
    "wgan_gp",
    "wide_and_deep",
]
# Those that reduce a sum or a ratio of sums: `run_as_published` does it as others write it.
WITH_SUMS = ["masked_language_model", "siamese", "simclr", "translation"]
# Their batches are no sets of examples.
ON_ONE_DEVICE = ["metric_learning"]
# A third of the programs.
ON_CLUSTERS = {
    "2 workers": [
        "autoencoder",
        "callbacks_guide",
        "curriculum",
        "custom_loop",
        "distributed_guide",
        "gan",
        "input_pipelines",
        "masked_language_model",
        "multi_worker",
        "own_losses",
        "saving",
        "siamese",
        "translation",
    ],
    "1 worker + 1 ps": [
        "autoencoder",
        "builtin_methods",
        "callbacks_guide",
        "deep_q_learning",
        "distributed_guide",
        "own_train_steps",
        "parameter_servers",
        "recommender",
        "saving",
        "text_classification",
        "translation",
        "vae",
        "wide_and_deep",
    ],
}

each_program = pytest.mark.parametrize("name", PROGRAMS)


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
    return {**results, "warnings": sorted(messages)}


@functools.cache
def truth(name: str, **arguments) -> dict:
    """Returns what plain Keras gives."""
    return run(name, **arguments)


def assert_equal(results: dict, expected: dict, *, tolerance: float) -> None:
    lines = differences(results, expected, tolerance=tolerance)
    assert not lines, "\n".join(["", *lines])


@pytest.mark.parametrize("name", PROGRAMS + ON_ONE_DEVICE)
def test_one_device_gives_the_bits_of_plain_keras(name):
    results = run(name, strategies.get("one device"))

    assert_equal(results, truth(name), tolerance=0)


@each_program
def test_two_replicas_give_the_numbers_of_plain_keras(name):
    results = run(name, strategies.get("2 replicas"), comparable=True)

    assert_equal(results, truth(name, comparable=True), tolerance=1e-5)


@pytest.mark.parametrize("name", WITH_SUMS)
def test_one_device_gives_the_bits_of_plain_keras_for_sums_as_published(name):
    results = run(name, strategies.get("one device"), function="run_as_published")

    assert_equal(results, truth(name, function="run_as_published"), tolerance=0)


@pytest.mark.parametrize("name", WITH_SUMS)
def test_two_replicas_warn_of_sums_as_published(name):
    results = run(name, strategies.get("2 replicas"), function="run_as_published", comparable=True)

    assert any("whole batch" in message for message in results["warnings"])


@pytest.mark.timeout(600)  # The first one waits for the cluster to be done.
@pytest.mark.parametrize(
    ("cluster", "name"), [(each, name) for each in ON_CLUSTERS for name in ON_CLUSTERS[each]]
)
def test_a_cluster_gives_the_numbers_of_plain_keras(name, cluster, clusters):
    for outcomes in clusters[cluster].result():
        results = outcomes[name]
        assert not isinstance(results, str), results
        assert_equal(results, truth(name, comparable=True), tolerance=1e-5)


@pytest.fixture(scope="module", autouse=True)
def clusters(request, tmp_path_factory):
    """The results of the programs on each worker, by cluster.

    The clusters run while this process tests the other deployments.
    """
    asked = {}
    for item in request.session.items:
        if item.path == Path(__file__) and "cluster" in item.callspec.params:
            params = item.callspec.params
            asked.setdefault(params["cluster"], []).append(params["name"])
    with ThreadPoolExecutor(1) as pool:
        yield {
            cluster: pool.submit(
                run_on_workers,
                functools.partial(run_all, names, tmp_path_factory.mktemp("programs")),
                cluster,
                timeout_secs=900,
            )
            for cluster, names in asked.items()
        }
        pool.shutdown(cancel_futures=True)


def run_all(names: list[str], directory: Path, strategy) -> dict:
    """Runs programs in a row in one process: starting TensorFlow takes longer than a program."""
    return {name: _results_or_error(name, directory / name, strategy) for name in names}


def _results_or_error(name, directory, strategy):
    directory.mkdir(exist_ok=True)
    try:
        return run(name, strategy, directory=directory, comparable=True)
    except Exception:  # The other programs are to be seen as well.
        return traceback.format_exc()
