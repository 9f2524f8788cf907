"""The deployments that every promise is tested on.

One device without any strategy is the truth; every synchronous deployment here must equal it.

    @each_strategy
    def test_something(strategy):
        with strategy.scope():
            ...
"""

import functools

import pytest

import kerasdist

DEPLOYMENTS = {
    "one device": kerasdist.DeploymentConfig(),
    "2 replicas": kerasdist.DeploymentConfig(num_clones=2, clone_on_cpu=True),
    "4 replicas": kerasdist.DeploymentConfig(num_clones=4, clone_on_cpu=True),
}


@functools.cache
def get(name: str):
    """Returns the strategy of a deployment, the same one for the whole run of the tests."""
    return kerasdist.make_strategy(DEPLOYMENTS[name], cluster=kerasdist.Cluster.local())


def _each(names):
    # Made inside the test, so that collecting tests does not start TensorFlow.
    return pytest.mark.parametrize("strategy", names, ids=names, indirect=True)


each_strategy = _each(list(DEPLOYMENTS))
each_replicated_strategy = _each([name for name in DEPLOYMENTS if name != "one device"])
