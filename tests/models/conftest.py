"""Fixtures of the application's tests."""

import os

import pytest

before = os.environ.copy()

from models import datasets  # noqa: E402

# What `models` sets is for its own commands, and not for those that other tests start.
if "TF_CPP_MIN_LOG_LEVEL" not in before:
    del os.environ["TF_CPP_MIN_LOG_LEVEL"]


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    """A --dataset_dir that holds the digits; no test changes it."""
    path = tmp_path_factory.mktemp("data")
    datasets.load("digits", split="train", data_dir=path)
    return path
