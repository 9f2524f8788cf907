"""Packages that Keras' tests import and we do not install: other backends and their data.

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
    "orbax",
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
    """Skips tests that need one of the packages when they run."""
    test = item.obj

    @functools.wraps(test)
    def run(*args, **kwargs):
        try:
            return test(*args, **kwargs)
        except ImportError as error:
            if not (name := _absent_package(error)):
                raise
            pytest.skip(f"needs {name}")

    item.obj = run


def _absent_package(error: BaseException | None) -> str | None:
    """Returns which of the packages an error comes from; Keras raises one of its own over it."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name in _ABSENT:
            return error.name
        error = error.__context__
    return None
