"""Fetching Keras' tests: what is there is whole, and what goes wrong is said."""

import pytest

from tests.keras import source


@pytest.mark.processes  # On the first run it fetches them.
def test_the_tests_are_those_of_the_locked_keras():
    folder = source.fetch()

    assert (folder / source.PACKAGE / "trainers/trainer_test.py").exists()
    assert f"keras=={folder.name.removeprefix('keras-')} " in (
        source.ROOT / "requirements.lock"
    ).read_text(encoding="utf-8")


@pytest.mark.processes
def test_an_index_that_cannot_be_reached_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "CACHE", tmp_path)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")

    with pytest.raises(RuntimeError, match="Is the package index reachable"):
        source.fetch()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_without_hashes_is_refused():
    with pytest.raises(RuntimeError, match="make lock"):
        source.locked_requirement("keras==3.15.1\nnumpy==2.0\n")
