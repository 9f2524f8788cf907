"""A search tries the same hyperparameters on every worker, and on one device."""

from tests.libraries.examples import example, needs, on_each, run


@on_each
@needs("optuna")
def test_optuna_chooses_the_same_on_each_worker(deployment):
    output = run(example("Optuna"), deployment)

    assert "0.026" in output
