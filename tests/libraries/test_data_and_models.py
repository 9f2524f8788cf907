"""Data and models of other libraries train as on one device."""

import pytest

from tests.libraries.examples import example, needs, on_each, run, run_plain

PACKAGES = {
    "Hugging Face datasets": "datasets",
    "grain": "grain",
    "keras-hub": "keras_hub",
    "keras-rs": "keras_rs",
}


@on_each
@pytest.mark.parametrize(
    "heading", [pytest.param(name, marks=needs(package)) for name, package in PACKAGES.items()]
)
def test_trains_as_without_a_strategy(heading, deployment):
    result = "[float(loss) for loss in model.history.history['loss']]"
    truth = run_plain(example(heading), result=result)

    for losses in run(example(heading), deployment, result=result):
        assert losses == pytest.approx(truth, rel=1e-5)
