"""The same weights: every case of the parity table, on every deployment."""

import functools
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kerasdist.parity import CASES, difference, train
from tests.joined_batches import joined_batches
from tests.strategies import PARAMETER_SERVERS, SYNCHRONOUS, batches_of_update, run_on_workers

# Keras says so by default of all data that it cannot shuffle.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed, but will be ignored"),
    pytest.mark.processes,  # Clusters run beside all of them.
]
CASE_NAMES = [case.name for case in CASES]
# `make test` compares all rows on three replicas, and fewer where they seldom differ from those.
ON_ONE_DEVICE = {
    "fit in the scope, own train_step",
    "batches of ragged sizes",
    "tf.data of unknown length",
    "steps_per_execution=10, 13 steps",
    "mixed_float16",
    "own train_step, own accumulation",
}
ON_CLUSTERS = {
    "fit in the scope, own train_step",
    "several outputs, loss weights",
    "sample_weight with zeros",
    "evaluate and predict",
    "masks",
    "own metrics: classes",
    "batches of 1 example",
    "tf.data of unknown length",
    "generator",
    "DistributedDataset",
    "steps_per_execution=10, 13 steps",
    "Embedding (sparse gradients)",
    "BatchNormalization(synchronized=True)",
    "own train_step, own accumulation",
}
# Of every kind a row: TensorFlow hands on the values of a single replica by themselves, so that
# on workers of one `make test-all` has these.
OF_EACH_KIND = (
    ON_ONE_DEVICE
    | ON_CLUSTERS
    | {
        "Adam",
        "use_ema, ema_overwrite_frequency=3",
        "validation_data",
        "Circle loss",
        "distribute_datasets_from_function",
        "train_on_batch",
        "jit_compile=True",
        "run_eagerly=True",
        "own train_step, sharpness-aware",
        "own train_step, two optimizers",
    }
)
SEVERAL_REPLICAS, ONE_REPLICA = "2 workers x 2 clones", "2 workers"


def rows(deployment, names, *, exhaustive):
    """Returns some rows of the table on a deployment, some of them marked."""
    return [
        pytest.param(
            index,
            deployment,
            id=f"{name}-{deployment}",
            marks=[pytest.mark.exhaustive] * (name in exhaustive),
        )
        for index, name in enumerate(CASE_NAMES)
        if name in names
    ]


IN_ONE_PROCESS = [
    *rows("3 replicas", CASE_NAMES, exhaustive=()),
    *rows("one device", CASE_NAMES, exhaustive=set(CASE_NAMES) - ON_ONE_DEVICE),
]
ON_WORKERS = [
    *rows(SEVERAL_REPLICAS, CASE_NAMES, exhaustive=set(CASE_NAMES) - ON_CLUSTERS),
    *rows(ONE_REPLICA, OF_EACH_KIND, exhaustive=OF_EACH_KIND),
]
# What parameter servers refuse, by the error.
IS_DISTRIBUTED = "Received: a distributed dataset"
REFUSED_BY_ALL = {
    "DistributedDataset": IS_DISTRIBUTED,
    "DistributedDataset, class_weight": IS_DISTRIBUTED,
    "distribute_datasets_from_function": IS_DISTRIBUTED,
    "run_eagerly=True": "ValueError: `run_eagerly=True` cannot be had with parameter servers",
}
(ONE_WORKER,), (TWO_WORKERS,) = PARAMETER_SERVERS, SYNCHRONOUS
REFUSED = {
    ONE_WORKER: {
        **REFUSED_BY_ALL,
        "gradient_accumulation_steps=2": "ValueError: Asynchronous workers cannot accumulate",
    },
    TWO_WORKERS: {
        **REFUSED_BY_ALL,
        "train_on_batch": "ValueError: Synchronous workers over parameter servers train with `fit`",
    },
}
ON_PARAMETER_SERVERS = [
    row
    for workers, refused in REFUSED.items()
    for row in rows(workers, CASE_NAMES, exhaustive=set(CASE_NAMES) - ON_CLUSTERS - refused.keys())
]


@functools.cache
def truth(index: int, num_joined: int = 1):
    """Returns what one device gives, with so many batches joined: Keras without a strategy."""
    with joined_batches(num_joined):
        return train(CASES[index], is_reference=True)


@pytest.mark.filterwarnings("ignore:Gradients do not exist for variables")
@pytest.mark.filterwarnings("ignore:.*eagerly has significant overhead")
@pytest.mark.parametrize(("index", "strategy"), IN_ONE_PROCESS, indirect=["strategy"])
def test_equals_one_device(index, strategy):
    case = CASES[index]

    outcome = train(case, strategy)

    assert difference(outcome, truth(index)) <= case.tolerance


@pytest.fixture(scope="module", autouse=True)
def clusters(request):
    """The outcomes of the cases on each worker, by deployment.

    The clusters run while this process tests the other deployments.
    """
    asked = {}
    for item in request.session.items:
        if item.path == Path(__file__) and "workers" in item.fixturenames:
            params = item.callspec.params
            asked.setdefault(params["workers"], []).append(params["index"])
    with ThreadPoolExecutor(1) as pool:
        yield {
            workers: pool.submit(
                run_on_workers, functools.partial(train_all, indices), workers, timeout_secs=900
            )
            for workers, indices in asked.items()
        }
        pool.shutdown(cancel_futures=True)


def train_all(indices, strategy) -> dict:
    """Trains cases in one process: starting TensorFlow takes longer than a case."""
    return {index: _outcome_or_error(CASES[index], strategy) for index in indices}


def _outcome_or_error(case, strategy):
    try:
        return train(case, strategy)
    except Exception:  # The other cases are to be seen as well.
        return traceback.format_exc()


@pytest.mark.filterwarnings("ignore:Gradients do not exist for variables")
@pytest.mark.timeout(600)  # The first one waits for the cluster to be done.
@pytest.mark.parametrize(("index", "workers"), ON_WORKERS)
def test_equals_one_device_on_every_worker(index, workers, clusters):
    for outcome in [outcomes[index] for outcomes in clusters[workers].result()]:
        assert not isinstance(outcome, str), outcome
        assert difference(outcome, truth(index)) <= CASES[index].tolerance


@pytest.mark.filterwarnings("ignore:Gradients do not exist for variables")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("index", "workers"), ON_PARAMETER_SERVERS)
def test_equals_one_device_on_parameter_servers(index, workers, clusters):
    (outcomes,) = clusters[workers].result()
    outcome, case = outcomes[index], CASES[index]

    if case.name in REFUSED[workers]:
        assert isinstance(outcome, str)
        assert REFUSED[workers][case.name] in outcome
    else:
        assert not isinstance(outcome, str), outcome
        assert difference(outcome, truth(index, batches_of_update(workers))) <= case.tolerance


def test_names_are_titles_of_different_rows_that_fit_into_the_table():
    assert set(CASE_NAMES) >= OF_EACH_KIND.union(*REFUSED.values())
    assert len(set(CASE_NAMES)) == len(CASES)
    assert max(map(len, CASE_NAMES)) < 42
