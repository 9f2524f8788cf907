"""Datasets that need all files train as in plain Keras, though several workers could share them."""

import functools

import pytest

from kerasdist.parity import models
from tests import plain
from tests.cluster import record_files
from tests.strategies import run_on_workers

pytestmark = pytest.mark.processes


def fit_train_and_validation(examples, model):
    train, validation = examples.take(30), examples.skip(30)
    history = model.fit(
        train.batch(8), epochs=2, verbose=0, validation_data=validation.batch(8)
    ).history
    return history, model.evaluate(validation.batch(8), verbose=0)


def fit_some_batches(examples, model):
    return model.fit(examples.repeat().batch(8).take(6), epochs=2, verbose=0).history


def fit_repeated(examples, model):
    batches = examples.batch(8).repeat()
    return model.fit(batches, epochs=3, steps_per_epoch=4, verbose=0).history


def fit_from_own_caches(examples, model, *, path, index):
    return model.fit(examples.cache(f"{path}-{index}").batch(64), epochs=3, verbose=0).history


PIPELINES = (fit_train_and_validation, fit_some_batches, fit_repeated)


def fit_from_one_cache(examples, path, strategy) -> str:
    """Fits a dataset whose file all workers would write; returns the error."""
    with strategy.scope():
        model = models.regression()
    try:
        model.fit(examples.cache(path).batch(8), verbose=0)
    except ValueError as error:
        return str(error)
    return ""


def on_a_worker(paths, folder, strategy) -> str:
    examples = record_files.read(paths)
    path, index = str(folder / "own cache"), strategy.deployment.cluster.worker_index
    cached = functools.partial(fit_from_own_caches, path=path, index=index)
    for fit in (*PIPELINES, cached):
        plain.check_as_plain(strategy, models.regression, functools.partial(fit, examples))
    return fit_from_one_cache(examples, str(folder / "cache"), strategy)


def test_what_needs_all_files_equals_plain_keras(tmp_path):
    run = functools.partial(on_a_worker, record_files.write(tmp_path), tmp_path)

    errors = run_on_workers(run, "2 workers")

    # One file for all workers is an error on each of them, and leaves nothing beside it.
    for error in errors:
        assert f"the file of `cache('{tmp_path}/cache')`" in error
        assert 'cache-{kerasdist.Cluster.from_env().worker_index}")' in error
    assert not list(tmp_path.glob("cache*"))
