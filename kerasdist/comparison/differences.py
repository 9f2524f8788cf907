"""How much numbers differ from those of one device, and how much they may."""

import numpy as np

# By the dtype that a step computes in: largest absolute difference of a weight, metric or log.
TOLERANCES = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 2e-2}


def absolute_differences(truth: np.ndarray, ours: np.ndarray) -> np.ndarray:
    """Returns the absolute difference of each element of two arrays of one shape.

    It is 0 where both are NaN or the same infinity, and infinite where only one is.
    """
    with np.errstate(invalid="ignore"):  # Infinite ones.
        found = np.abs(truth - ours)
    is_same = (truth == ours) | (np.isnan(truth) & np.isnan(ours))
    return np.where(is_same, 0.0, np.where(np.isnan(found), np.inf, found))
