"""The deployments that every promise is tested on.

One device without any strategy is the truth; every deployment here must equal it, on the same
batches, or on several of them joined (`batches_of_update`). Those of several workers run in
processes of their own.

    @each_strategy
    def test_something(strategy):
        with strategy.scope():
            ...
"""

import functools
import types
from typing import Any

import pytest

import kerasdist
from kerasdist.training.context.deployment import Deployment
from tests import fork_server
from tests.cases import marked

DEPLOYMENTS = {
    "one device": kerasdist.DeploymentConfig(),
    # Shares that are uneven, even and empty: of a batch of 16, of 33 and of the last example.
    "3 replicas": kerasdist.DeploymentConfig(num_clones=3, clone_on_cpu=True),
}
# Left to `make test-all`: what goes wrong shows on several replicas, and on workers that have
# several. Of the parity table a row of each kind, and programs of others, run here, too.
EXHAUSTIVE = {"one device", "2 workers"}
OTHER_DEPLOYMENTS = {
    # For what does not ask how many there are.
    "2 replicas": kerasdist.DeploymentConfig(num_clones=2, clone_on_cpu=True),
    # For what is drawn at random, and for more replicas than examples.
    "4 replicas": kerasdist.DeploymentConfig(num_clones=4, clone_on_cpu=True),
}
# Arguments of `run_cluster`.
WORKER_DEPLOYMENTS: dict[str, Any] = {
    "2 workers": {"num_workers": 2},
    "2 workers x 2 clones": {"num_workers": 2, "num_clones": 2},
}
# One worker: with several the order of their updates is left to chance.
PARAMETER_SERVERS: dict[str, Any] = {"1 worker + 1 ps": {"num_workers": 1, "num_ps": 1}}
# A batch of the program is one worker's: the truth is trained with those of both, joined.
SYNCHRONOUS: dict[str, Any] = {
    "2 workers + 1 ps, synchronous": {"num_workers": 2, "num_ps": 1, "num_backup_workers": 0}
}
CLUSTERS = {**WORKER_DEPLOYMENTS, **PARAMETER_SERVERS, **SYNCHRONOUS}


@functools.cache
def get(name: str):
    """Returns the strategy of a deployment, the same one for the whole run of the tests."""
    config = {**DEPLOYMENTS, **OTHER_DEPLOYMENTS}[name]
    return kerasdist.make_strategy(config, cluster=kerasdist.Cluster.local())


def batches_of_update(workers: str) -> int:
    """Returns how many batches of the program an update of a cluster has."""
    return CLUSTERS[workers]["num_workers"] if workers in SYNCHRONOUS else 1


def spanning(cluster: kerasdist.Cluster, **known) -> Any:
    """Returns what stands for a strategy of a cluster that nobody has started."""
    return types.SimpleNamespace(deployment=Deployment(cluster=cluster, **known))


def _each(names, exhaustive=EXHAUSTIVE):
    # Made inside the test, so that collecting tests does not start TensorFlow.
    cases = marked(names, exhaustive=exhaustive)
    return pytest.mark.parametrize("strategy", cases, ids=names, indirect=True)


def _each_cluster(names, exhaustive=()):
    cases = marked(names, pytest.mark.processes, exhaustive=exhaustive)
    return pytest.mark.parametrize("workers", cases)


each_strategy = _each(list(DEPLOYMENTS))
# For words and orders of events, which do not change with the number of replicas.
each_kind_of_strategy = _each(["one device", "2 replicas"])
on_two_replicas = _each(["2 replicas"])
on_three_replicas = _each(["3 replicas"])
each_worker_deployment = _each_cluster(list(WORKER_DEPLOYMENTS), exhaustive=EXHAUSTIVE)
each_with_parameter_servers = _each_cluster(list(PARAMETER_SERVERS))
# For what two workers of one replica would show no better.
on_workers = _each_cluster(["2 workers x 2 clones"])
each_cluster = _each_cluster(["2 workers x 2 clones", *PARAMETER_SERVERS])
# For what one worker of parameter servers does as those do.
on_workers_and_more = _each_cluster(
    ["2 workers x 2 clones", *PARAMETER_SERVERS], exhaustive=PARAMETER_SERVERS
)


def run_on_workers(function, workers: str, *, timeout_secs: float = 240) -> list:
    """Returns what `function(strategy)` returns on each worker of a deployment, or on its chief.

    Args:
        function: Runs in processes of their own, one per task; see `tests.fork_server`.
        workers: A name in `CLUSTERS`.
        timeout_secs: Time for everything.
    """
    arguments = CLUSTERS[workers]
    outputs = fork_server.run_cluster(
        functools.partial(_run, function), timeout_secs=timeout_secs, **arguments
    )
    for output in outputs:
        assert output.exit_code == 0, f"{output.task}\n{output.output[-4000:]}"
    serve = "num_ps" in arguments
    return [output.value for output in outputs if not serve or output.task.job == "chief"]


def _run(function):
    return function(kerasdist.make_strategy())
