"""Programs in the manner of guides and tutorials give what plain Keras gives, wherever they run."""

import pytest

from tests import strategies
from tests.cases import marked
from tests.programs.outcomes import check_numbers, check_one_device, check_two_replicas

PROGRAMS = [
    "builtin_methods",
    "callbacks_guide",
    "curriculum",
    "custom_loop",
    "distributed_guide",
    "input_pipelines",
    "multi_worker",
    "own_losses",
    "own_train_steps",
    "parameter_servers",
    "saving",
    "subclassed_layers",
    "text_classification",
    "transfer_learning",
]
ON_CLUSTERS = {
    "2 workers": [
        "callbacks_guide",
        "curriculum",
        "custom_loop",
        "distributed_guide",
        "input_pipelines",
        "multi_worker",
        "own_losses",
        "saving",
    ],
    "1 worker + 1 ps": [
        "builtin_methods",
        "callbacks_guide",
        "distributed_guide",
        "own_train_steps",
        "parameter_servers",
        "saving",
        "text_classification",
    ],
    # Not of "saving", which trains outside of the scope, too: with batches that nobody joins.
    "2 workers + 1 ps, synchronous": [
        "builtin_methods",
        "own_losses",
        "own_train_steps",
        "text_classification",
    ],
}

# By nature: workers tell callbacks of a step their own numbers, and a chief of parameter servers
# those of a second ago, of several steps at once; so a file written in a step is of another one.
OWN_NUMBERS = {
    ("2 workers", "callbacks_guide"): {"losses", "lines"},
    ("1 worker + 1 ps", "callbacks_guide"): {"losses", "lines"},
    ("1 worker + 1 ps", "saving"): {"scores"},
}

# What `make test` runs on replicas and clusters alone.
ON_MANY_ALONE = set(PROGRAMS) - {"builtin_methods", "callbacks_guide", "custom_loop", "saving"}


@pytest.mark.parametrize("name", marked(PROGRAMS, exhaustive=ON_MANY_ALONE))
def test_one_device_gives_the_bits_of_plain_keras(name):
    check_one_device(name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_two_replicas_give_the_numbers_of_plain_keras(name):
    check_two_replicas(name)


@pytest.mark.timeout(600)  # The first one waits for the cluster to be done.
@pytest.mark.parametrize(
    ("cluster", "name"), [(each, name) for each in ON_CLUSTERS for name in ON_CLUSTERS[each]]
)
def test_a_cluster_gives_the_numbers_of_plain_keras(name, cluster, clusters):
    for results in clusters[cluster].result()[name]:
        check_numbers(
            name,
            results,
            without=OWN_NUMBERS.get((cluster, name), ()),
            num_joined=strategies.batches_of_update(cluster),
        )
