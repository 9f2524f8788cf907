"""Finds and replaces private names of Keras and TensorFlow.

Each may move with any release. The error then says which name, which version, and what to install.
"""

import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Generator
from typing import Any

import keras
import tensorflow as tf

from kerasdist.support import memory

# pyproject.toml has the same ones.
REQUIREMENTS = {"Keras": "keras>=3.12,<3.16", "TensorFlow": "tensorflow>=2.20,<2.22"}
# (major, minor) of the installed one, for what differs between those.
KERAS = tuple(int(number) for number in keras.__version__.split(".")[:2])


def find(owner: Any, name: str):
    """Returns an attribute of a class, module or object of Keras' or TensorFlow's.

    Raises:
        AttributeError: It has none of that name.
    """
    if hasattr(owner, name):
        return getattr(owner, name)
    place = place_of(owner)
    # A strategy of ours is a class of TensorFlow's, too.
    library = "Keras" if place.startswith("keras.") else "TensorFlow"
    raise AttributeError(
        f"`{place}.{name}` is not in {library} {version_of(library)}, and kerasdist needs it. "
        f"{remedy_for(library)}"
    )


def place_of(owner: Any) -> str:
    """Returns the full name of a module, of a class, or of the class of an object."""
    if inspect.ismodule(owner):
        return owner.__name__
    owner = owner if inspect.isclass(owner) else type(owner)
    return f"{owner.__module__}.{owner.__qualname__}"


@contextlib.contextmanager
def told_where_moved() -> Generator[None]:
    """Says what to do where an import inside finds no private module, or no name in one.

    Raises:
        RuntimeError: A module of Keras or TensorFlow, or a name in one, is gone.
    """
    try:
        yield
    except (ImportError, AttributeError) as error:
        # A part of Keras is called tensorflow, too.
        library = "Keras" if "keras." in str(error) else "TensorFlow"
        raise RuntimeError(
            f"{library} {version_of(library)} has moved what kerasdist needs: {error}. "
            f"{remedy_for(library)}"
        ) from error


def version_of(library: str) -> str:
    """Returns the installed version of "Keras" or "TensorFlow"."""
    return {"Keras": keras.__version__, "TensorFlow": tf.__version__}[library]


def remedy_for(library: str) -> str:
    """Returns what to do where "Keras" or "TensorFlow" is not what kerasdist knows."""
    return (
        f"Install a version of {library} that kerasdist was tested with: "
        f'`pip install "{REQUIREMENTS[library]}"`. If yours is newer, a newer kerasdist may '
        "know it."
    )


def overwrite(owner: Any, name: str, value: Any) -> None:
    """Writes an attribute that nothing here reads: were it renamed, nobody would notice."""
    find(owner, name)
    setattr(owner, name, value)


def replace(owner: Any, name: str, value: Any) -> None:
    """Puts a function in the place of one of theirs, until `kerasdist.undo`.

    Args:
        owner: A class, module or object.
        name: Of the function; the owner may have it from another class, or not at all.
        value: The function. Where somebody has put another one before it since, that one stays.
    """
    give_back = giving_back(owner, name)

    def undo():
        if vars(owner).get(name) is value:
            give_back()

    setattr(owner, name, value)
    memory.PROCESS.replacements.append(undo)


def filter_log(is_told: Callable[[logging.LogRecord], bool]) -> None:
    """Keeps records out of TensorFlow's log, until `kerasdist.undo`; `is_told` says which stay."""
    logger = tf.get_logger()
    logger.addFilter(is_told)
    memory.PROCESS.replacements.append(functools.partial(logger.removeFilter, is_told))


def giving_back(owner: Any, name: str) -> Callable[[], None]:
    """Returns a function after which an owner has an attribute as it has it now, itself or not."""
    missing = object()
    before = vars(owner).get(name, missing)  # A static method as such, and not its function.

    def give_back():
        if before is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, before)

    return give_back


@contextlib.contextmanager
def replaced(functions: dict) -> Generator[None]:
    """Puts other functions in the place of theirs, for what this thread runs inside.

    So do the threads of its replicas, which inherit it (`keras_threads.inherit`). Others call what
    they would have called, whatever the order in which threads enter and leave.

    Args:
        functions: The function for each (owner, name). It is called with what it stands for, and
            with what that is called with.
    """
    before = memory.THREAD.replaced
    with contextlib.ExitStack() as stack:
        now = dict(before)
        for key, function in functions.items():
            original = stack.enter_context(_told_apart_by_thread(*key))
            now[key] = functools.partial(function, before.get(key, original))
        memory.THREAD.replaced = now
        try:
            yield
        finally:
            memory.THREAD.replaced = before


def of_thread() -> dict:
    """Returns what this thread has replaced, now and later on."""
    return vars(memory.THREAD)


def inherit(other: dict) -> None:
    """Lets this thread call what another one has replaced.

    Args:
        other: The `of_thread` of that one.
    """
    memory.THREAD.replaced = other["replaced"]


@contextlib.contextmanager
def _told_apart_by_thread(owner: Any, name: str) -> Generator[Callable]:
    """Lets each thread call the function that it has; yields that of the others."""
    key, originals = (owner, name), memory.PROCESS.originals
    with memory.PROCESS.lock:
        if key not in originals:
            originals[key] = find(owner, name), giving_back(owner, name), 0
        original, give_back, count = originals[key]
        originals[key] = original, give_back, count + 1
        if not count:
            setattr(owner, name, _of_thread(key, original))
    try:
        yield original.fget if isinstance(original, property) else original
    finally:
        with memory.PROCESS.lock:
            count = originals[key][-1] - 1
            originals[key] = original, give_back, count
            if not count:
                del originals[key]
                give_back()


def _of_thread(key: tuple, original: Any):
    function = original.fget if isinstance(original, property) else original

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any):
        return memory.THREAD.replaced.get(key, function)(*args, **kwargs)

    return property(call) if isinstance(original, property) else call
