"""A search tries the same hyperparameters on every worker, and finds those of one device."""

import pytest

from tests.libraries.examples import example, needs, on_each, run, run_plain


@on_each
@needs("optuna")
def test_optuna_finds_what_it_finds_without_a_strategy(deployment):
    result = "(study.best_trial.params['learning_rate'], study.best_value)"
    truth = run_plain(example("Optuna"), result=result)

    for found in run(example("Optuna"), deployment, result=result):
        assert found == pytest.approx(truth, rel=1e-5)


@on_each
@needs("keras_tuner")
def test_keras_tuner_finds_what_it_finds_without_a_strategy(deployment):
    result = "(best.hyperparameters.values['learning_rate'], float(best.score))"
    truth = run_plain(example("keras-tuner"), result=result)

    for found in run(example("keras-tuner"), deployment, result=result):
        assert found == pytest.approx(truth, rel=1e-5)
