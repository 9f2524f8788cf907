"""The deployments that every promise is tested on.

One device without any strategy is the truth; every synchronous deployment here must equal it. Those
of several workers run in processes of their own.

    @each_strategy
    def test_something(strategy):
        with strategy.scope():
            ...
"""

import functools

import pytest

import kerasdist
from kerasdist import testing

DEPLOYMENTS = {
    "one device": kerasdist.DeploymentConfig(),
    "2 replicas": kerasdist.DeploymentConfig(num_clones=2, clone_on_cpu=True),
    "4 replicas": kerasdist.DeploymentConfig(num_clones=4, clone_on_cpu=True),
}
# Workers, and clones of each.
WORKER_DEPLOYMENTS = {"2 workers": (2, 1), "2 workers x 2 clones": (2, 2)}


@functools.cache
def get(name: str):
    """Returns the strategy of a deployment, the same one for the whole run of the tests."""
    return kerasdist.make_strategy(DEPLOYMENTS[name], cluster=kerasdist.Cluster.local())


def _each(names):
    # Made inside the test, so that collecting tests does not start TensorFlow.
    return pytest.mark.parametrize("strategy", names, ids=names, indirect=True)


each_strategy = _each(list(DEPLOYMENTS))
each_replicated_strategy = _each([name for name in DEPLOYMENTS if name != "one device"])
each_worker_deployment = pytest.mark.parametrize("workers", list(WORKER_DEPLOYMENTS))


def run_on_workers(function, workers: str, *, timeout_secs: float = 120) -> list:
    """Returns what `function(strategy)` returns on each worker of a deployment.

    Args:
        function: Runs in fresh processes, one per worker.
        workers: A name in `WORKER_DEPLOYMENTS`.
        timeout_secs: Time for everything.
    """
    num_workers, num_clones = WORKER_DEPLOYMENTS[workers]
    outputs = testing.run_cluster(
        functools.partial(_run, function),
        num_workers=num_workers,
        num_clones=num_clones,
        timeout_secs=timeout_secs,
    )
    for output in outputs:
        assert output.returncode == 0, f"{output.task}\n{output.output[-4000:]}"
    return [output.value for output in outputs]


def _run(function):
    return function(kerasdist.make_strategy())
