"""A program that has made a strategy, and nowhere enters its scope.

Its model then trains on one device, or on each worker by itself, and nothing says so. Many programs
train a model outside on purpose, also before the one in the scope: a teacher, a baseline, a probe.
They enter a scope somewhere, before or later, so that their code names one.
"""

import inspect
import sysconfig
import types
from collections.abc import Iterator

import keras
import tensorflow as tf

from kerasdist.support import memory
from kerasdist.support.users_line import warn
from kerasdist.training.context import peers, traits

_ENTER = "scope"  # The method of a strategy that enters it.
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))


def note_strategy(strategy: tf.distribute.Strategy):
    """Notes that a program gets this strategy from `make_strategy`; returns it."""
    memory.PROCESS.latest_strategy = strategy
    return strategy


def note_use(strategy: object) -> None:
    """Notes that something is created in the scope of a strategy."""
    memory.of_part(strategy).is_used = True


def warn_if_forgotten(model: keras.Model) -> None:
    """Warns, once, where a model is about to be trained outside by a program that enters no scope.

    Args:
        model: One that was created outside of all strategies.
    """
    strategy = memory.PROCESS.latest_strategy
    if strategy is None or traits.is_one_device(strategy):
        return
    if memory.of_part(strategy).is_used or _names_scope():
        return
    note_use(strategy)  # Once is enough.
    is_in_cluster = peers.count(strategy) > 1 or traits.has_remote_variables(strategy)
    instead = "in this process by itself" if is_in_cluster else "on one device"
    warn(
        f"Model '{model.name}' trains {instead}: nothing was created in the scope of the strategy "
        f"that `make_strategy` has returned ({type(strategy).__name__}), and the program enters it "
        "nowhere. Create and compile the model inside `with strategy.scope():`."
    )


def _names_scope() -> bool:
    """Whether code of the program that is running, as far as it can be seen, names a scope."""
    return any(_ENTER in code.co_names for code in _codes_of_program())


def _codes_of_program() -> Iterator[types.CodeType]:
    frame = inspect.currentframe()
    while frame:
        is_library = frame.f_code.co_filename.startswith(_LIBRARIES)
        if not (is_library or str(frame.f_globals.get("__name__")).startswith("kerasdist.")):
            yield from _codes_in(frame.f_code)
            for function in _functions_of(frame.f_globals):
                yield from _codes_in(function.__code__)
        frame = frame.f_back


def _functions_of(namespace: dict) -> list[types.FunctionType]:
    held = list(namespace.values())
    for each in [each for each in held if isinstance(each, type)]:
        held += vars(each).values()
    return [each for each in held if isinstance(each, types.FunctionType)]


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """Returns the code of a module, class or function, and of all that are defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes_in(constant)
