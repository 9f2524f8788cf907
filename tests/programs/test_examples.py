"""Programs in the manner of published examples give what plain Keras gives, wherever they run."""

import pytest

from tests import strategies
from tests.cases import marked
from tests.programs.outcomes import check_numbers, check_one_device, check_two_replicas, run

# With steps, loops or losses of their own, and one that is as plain as can be.
OWN_STEPS = [
    "autoencoder",
    "deep_q_learning",
    "diffusion",
    "distillation",
    "gan",
    "masked_language_model",
    "siamese",
    "simsiam",
    "vae",
    "wgan_gp",
]
# With other layers, in steps that one device runs as plain Keras does.
OWN_LAYERS = [
    "bidirectional_lstm",
    "graph_network",
    "mixup",
    "object_detection",
    "ocr",
    "recommender",
    "sequence_to_sequence",
    "supervised_contrastive",
    "timeseries_transformer",
    "translation",
    "vision_transformer",
    "wide_and_deep",
]
PROGRAMS = OWN_STEPS + OWN_LAYERS
# Those that reduce a sum or a ratio of sums: `run_as_published` does it as others write it.
WITH_SUMS = ["masked_language_model", "siamese", "simclr", "translation"]
# Those of them that give it to `compile`, where it sees all examples.
WITH_COMPILED_SUMS = ["translation"]
# What `make test` runs on replicas and clusters alone.
ON_MANY_ALONE = set(PROGRAMS) - {"deep_q_learning", "gan", "vae"}
# Its batches are no sets of examples.
ON_ONE_DEVICE = ["metric_learning"]
ON_CLUSTERS = {
    "2 workers": ["autoencoder", "gan", "masked_language_model", "siamese", "translation"],
    "1 worker + 1 ps": [
        "autoencoder",
        "deep_q_learning",
        "recommender",
        "translation",
        "vae",
        "wide_and_deep",
    ],
    "2 workers + 1 ps, synchronous": [
        "autoencoder",
        "gan",
        "masked_language_model",
        "recommender",
        "siamese",
        "translation",
        "vae",
        "wide_and_deep",
    ],
}


@pytest.mark.parametrize("name", marked([*PROGRAMS, *ON_ONE_DEVICE], exhaustive=ON_MANY_ALONE))
def test_one_device_gives_the_bits_of_plain_keras(name):
    check_one_device(name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_two_replicas_give_the_numbers_of_plain_keras(name):
    check_two_replicas(name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", WITH_SUMS)
def test_one_device_gives_the_bits_of_plain_keras_for_sums_as_published(name):
    check_one_device(name, "run_as_published")


@pytest.mark.parametrize("name", WITH_COMPILED_SUMS)
def test_two_replicas_give_the_numbers_of_compiled_sums_as_published(name):
    check_two_replicas(name, "run_as_published")


@pytest.mark.parametrize("name", [each for each in WITH_SUMS if each not in WITH_COMPILED_SUMS])
def test_two_replicas_warn_of_sums_as_published(name):
    results = run(name, strategies.get("2 replicas"), function="run_as_published", comparable=True)

    assert any("whole batch" in message for message in results["warnings"])


@pytest.mark.timeout(600)  # The first one waits for the cluster to be done.
@pytest.mark.parametrize(
    ("cluster", "name"), [(each, name) for each in ON_CLUSTERS for name in ON_CLUSTERS[each]]
)
def test_a_cluster_gives_the_numbers_of_plain_keras(name, cluster, clusters):
    for results in clusters[cluster].result()[name]:
        check_numbers(name, results, num_joined=strategies.batches_of_update(cluster))
