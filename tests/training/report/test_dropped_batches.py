"""What the end of a `fit` says of batches that came too late."""

import numpy as np

from kerasdist.training.report import dropped_batches


def test_the_worker_with_most_comes_first():
    text = dropped_batches.describe(np.array([3, 0, 1200]))

    assert text is not None
    assert text.startswith(
        "Stale, as their updates did not wait for them: 1,200 batches of worker 2, 3 of worker 0."
    )


def test_nothing_is_said_where_none_came_too_late():
    assert dropped_batches.describe(np.zeros([3], np.int64)) is None
    assert dropped_batches.describe(np.zeros([0], np.int64)) is None
