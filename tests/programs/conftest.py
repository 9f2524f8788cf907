"""What the tests of programs share: clusters, and sums that are always added up in one order."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import tensorflow as tf

from tests.programs.outcomes import run_on_cluster

# Several threads add up a sum in an order of their own, so that the last bit of a loss differs
# between two runs of plain Keras already. TensorFlow takes this until it starts, after the tests
# are collected. Not from the environment, which clusters would inherit.
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)


@pytest.fixture(scope="module", autouse=True)
def clusters(request, tmp_path_factory):
    """The results of the programs of a file on each worker, by cluster and program.

    The clusters run while this process tests the other deployments.
    """
    asked = {}
    for item in request.session.items:
        if item.path == request.path and "cluster" in item.fixturenames:
            params = item.callspec.params
            asked.setdefault(params["cluster"], []).append(params["name"])
    with ThreadPoolExecutor(1) as pool:
        yield {
            cluster: pool.submit(
                run_on_cluster, cluster, names, tmp_path_factory.mktemp("programs")
            )
            for cluster, names in asked.items()
        }
        pool.shutdown(cancel_futures=True)


@pytest.fixture(autouse=True)
def sums_as_written():
    """TensorFlow rewrites sums in an order that follows addresses in memory: not twice the same."""
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    yield
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": True})
