"""The same batches in the same order as plain Keras, over workers and over parameter servers."""

import functools
import traceback
from pathlib import Path

import keras
import pytest

import kerasdist
from kerasdist import testing
from tests.cases import marked
from tests.data_order import CASES, FURTHER, check_equal, draw, outcome_of, truth
from tests.strategies import PARAMETER_SERVERS, WORKER_DEPLOYMENTS

# How many replicas a worker has is nothing to the data.
DEPLOYMENTS = {"2 workers": WORKER_DEPLOYMENTS["2 workers"], **PARAMETER_SERVERS}
SEED = 5
# Workers stop in the middle of an epoch when all of them know, a step later.
NAMES = [name for name in CASES if name != "stopped_in_the_middle"]
PATH = Path(__file__)


def run_cases(names) -> dict:
    """Returns what some cases give, and the random numbers after the strategy was made."""
    keras.utils.set_random_seed(SEED)
    strategy = kerasdist.make_strategy()
    return {"numbers": draw(), **{name: _outcome_or_error(name, strategy) for name in names}}


def _outcome_or_error(name, strategy):
    try:
        return outcome_of(name, strategy)
    except Exception:  # The other cases are to be seen as well.
        return traceback.format_exc()


@pytest.fixture(scope="module")
def outcomes(request):
    """What each worker, or the chief of parameter servers, gives: one cluster runs all cases."""
    asked = [
        item.callspec.params.get("name") for item in request.session.items if item.path == PATH
    ]
    names = [name for name in NAMES if name in asked]

    @functools.cache
    def run(deployment) -> list[dict]:
        run = functools.partial(run_cases, names)
        outputs = testing.run_cluster(run, timeout_secs=540, **DEPLOYMENTS[deployment])
        for output in outputs:
            assert output.exit_code == 0, f"{output.task}\n{output.output[-4000:]}"
        return [output.value for output in outputs if output.value]

    return run


def check_cases(outcomes, name, *, without=()):
    for outcome in outcomes:
        assert not isinstance(outcome[name], str), outcome[name]
        kept = [
            {key: each[key] for key in each if key not in without}
            for each in (outcome[name], truth(name))
        ]
        check_equal(*kept, atol=1e-5)


@pytest.mark.timeout(600)  # The first one waits for the cluster to be done.
@pytest.mark.parametrize("name", marked(NAMES, exhaustive=FURTHER))
def test_workers_read_data_as_plain_keras_does(name, outcomes):
    check_cases(outcomes("2 workers"), name)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("deployment", PARAMETER_SERVERS)
@pytest.mark.parametrize(
    "name", marked([name for name in NAMES if name != "eagerly"], exhaustive=FURTHER)
)
def test_one_asynchronous_worker_reads_data_as_plain_keras_does(name, deployment, outcomes):
    # `fit` hears of several steps at once, and nobody notes them.
    check_cases(outcomes(deployment), name, without={"steps"})


@pytest.mark.timeout(600)
@pytest.mark.parametrize("deployment", DEPLOYMENTS)
def test_making_a_strategy_draws_no_random_number(deployment, outcomes):
    keras.utils.set_random_seed(SEED)
    expected = draw()

    for outcome in outcomes(deployment):
        check_equal({"numbers": outcome["numbers"]}, {"numbers": expected}, atol=0)
