"""Types that NumPy does not have itself are told from its own."""

import ml_dtypes
import numpy as np
import pytest

from kerasdist.checkpoints.extension_types import is_extension


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn"])
def test_types_of_other_packages_are_extensions(name):
    assert is_extension(np.dtype(getattr(ml_dtypes, name)))


@pytest.mark.parametrize("name", ["float32", "int64", "bool", "U3", "object"])
def test_types_of_numpy_are_none(name):
    assert not is_extension(np.dtype(name))
