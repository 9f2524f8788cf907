"""Whether workers would write one file. That several workers agree is in tests/cluster."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.cluster import Cluster, Task
from kerasdist.training.context import peers, running_call
from kerasdist.training.data import file_caches
from tests import strategies


@pytest.fixture
def strategy(monkeypatch):
    """Returns that of a worker whose peer does as it does."""
    jobs = {"worker": ["host:1", "host:2"]}
    monkeypatch.setattr(peers, "gather", lambda strategy, row: np.array([row, [7.0]]))
    monkeypatch.setattr(peers, "sum_over", lambda strategy, numbers: numbers)
    return strategies.spanning(Cluster(jobs=jobs, task=Task("worker", 0)))


def cached(path):
    return tf.data.Dataset.range(3).cache(str(path)).batch(2)


def test_a_file_that_another_worker_sees_too_is_an_error(tmp_path, strategy):
    (tmp_path / "cache.7.worker").touch()

    with pytest.raises(ValueError, match=r"cache-\{kerasdist.Cluster.from_env\(\).worker_index\}"):
        file_caches.check(cached(tmp_path / "cache"), strategy)
    assert [path.name for path in tmp_path.iterdir()] == ["cache.7.worker"]


def test_a_disk_or_a_file_of_its_own_is_no_error(tmp_path, strategy):
    file_caches.check(cached(tmp_path / "cache"), strategy)


def test_a_cache_in_memory_leaves_no_mark(strategy):
    file_caches.check(cached(""), strategy)


def test_a_folder_that_is_not_there_is_left_to_tensorflow(tmp_path, strategy):
    file_caches.check(cached(tmp_path / "none" / "cache"), strategy)


def test_a_file_that_is_whole_is_read_by_all(tmp_path, strategy):
    list(cached(tmp_path / "cache"))
    (tmp_path / "cache.7.worker").touch()

    file_caches.check(cached(tmp_path / "cache"), strategy)


def test_predict_asks_no_other_worker(tmp_path, strategy):
    (tmp_path / "cache.7.worker").touch()

    with running_call.entered("predict", keras.Model()):
        file_caches.check(cached(tmp_path / "cache"), strategy)
