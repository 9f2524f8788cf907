"""Fixtures of the application's tests."""

import pytest

# What `models` sets is for its own commands, and not for those that other tests start.
with pytest.MonkeyPatch.context() as patch:
    patch.setenv("TF_CPP_MIN_LOG_LEVEL", "1")
    from models import datasets


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    """A --dataset_dir that holds the digits; no test changes it."""
    path = tmp_path_factory.mktemp("data")
    datasets.load("digits", split="train", data_dir=path)
    return path
