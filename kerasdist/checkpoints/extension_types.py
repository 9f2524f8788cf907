"""Types of numbers that NumPy itself does not have, such as bfloat16."""

import numpy as np


def is_extension(dtype: np.dtype) -> bool:
    """Whether another package has added a type of numbers to NumPy."""
    return dtype.isbuiltin == 2  # NumPy's word for it.
