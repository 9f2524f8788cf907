"""What Keras, TensorFlow and tf_keras are made of at this moment, to see what has changed since.

before = attributes.of_keras_and_tensorflow()
...
attributes.changed_since(before)        # {"Model.save", ...}
"""

import sys
import types
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

_PACKAGES = ("keras", "tensorflow", "tf_keras")
_ABSENT = object()


def of_keras_and_tensorflow() -> dict[tuple[Any, str], Any]:
    """Returns every attribute of their modules and classes, by the owner and the name.

    Also of TensorFlow's context, which all of a process share, and the filters of its log.
    """
    modules = [
        module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in _PACKAGES and isinstance(module, types.ModuleType)
    ]
    values = [value for module in modules for value in list(vars(module).values())]
    classes = {base for value in values if isinstance(value, type) for base in value.__mro__}
    return _of({*modules, *filter(_is_theirs, classes), context.context(), tf.get_logger()})


def changed_since(before: dict[tuple[Any, str], Any]) -> set[str]:
    """Returns which functions of them are others than before, new or gone: "Model.save".

    What a module loads when it is first asked for is left out.
    """
    now = _of({owner for owner, _ in before})
    return {
        _name_of(*key)
        for key in now.keys() | before.keys()
        if _is_other(key[0], before.get(key, _ABSENT), now.get(key, _ABSENT))
    }


def _of(owners: set) -> dict[tuple[Any, str], Any]:
    found = {(owner, name): value for owner in owners for name, value in list(vars(owner).items())}
    logger = tf.get_logger()
    return found | {(logger, "filters"): tuple(logger.filters)}


def _name_of(owner: Any, name: str) -> str:
    """Returns the class, or the last part of the module, and the name."""
    kind = owner if isinstance(owner, type | types.ModuleType) else type(owner)
    package = "tf_keras." if str(vars(kind).get("__module__")) == "tf_keras" else ""
    return f"{package}{kind.__name__.rpartition('.')[2]}.{name}"


def _is_other(owner: Any, value: Any, other: Any) -> bool:
    is_loaded = isinstance(owner, types.ModuleType) and value is _ABSENT
    if isinstance(value, tuple):  # Filters of a log.
        return value != other
    return value is not other and any(map(_is_function, (value, other))) and not is_loaded


def _is_function(value: Any) -> bool:
    return callable(value) or isinstance(value, property | staticmethod | classmethod)


def _is_theirs(kind: type) -> bool:
    return str(kind.__module__).partition(".")[0] in _PACKAGES
