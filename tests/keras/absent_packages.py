"""Packages of Keras' other backends, which its tests import and we do not install.

The tests that use one of them are skipped; the others in their files run.
"""

import functools
import importlib.util
import sys
import types
from collections.abc import Generator

import pytest

_PACKAGES = (
    "grain",
    "jax",
    "jax.numpy",
    "jax.experimental",
    "jax.experimental.sparse",
    "pandas",
    "torch",
)
_ABSENT = [name for name in _PACKAGES if importlib.util.find_spec(name.partition(".")[0]) is None]


class _Absent(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        pytest.skip(f"needs {self.__name__}", allow_module_level=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator:
    """Lets files be imported that import one of the packages; Keras itself must not find them."""
    modules = {name: _Absent(name) for name in _ABSENT}
    for name, module in modules.items():
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, module)
    sys.modules.update(modules)
    try:
        return (yield)
    finally:
        for name in modules:
            sys.modules.pop(name, None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item) -> None:
    """Skips tests that import one of the packages themselves."""
    test = item.obj

    @functools.wraps(test)
    def run(*args, **kwargs):
        try:
            return test(*args, **kwargs)
        except ModuleNotFoundError as error:
            if error.name not in _ABSENT:
                raise
            pytest.skip(f"needs {error.name}")

    item.obj = run
