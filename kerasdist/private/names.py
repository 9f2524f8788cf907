"""How a private name of Keras or TensorFlow is replaced, and missed.

Each may move with any release. The error then says which name, which version, and what to install.
"""

import contextlib
import inspect
from collections.abc import Generator

import keras
import tensorflow as tf

# As in pyproject.toml.
REQUIREMENTS = {"Keras": "keras>=3.15.1,<3.16", "TensorFlow": "tensorflow==2.21.*"}


def find(owner, name: str):
    """Returns an attribute of a class, module or object of Keras' or TensorFlow's.

    Raises:
        AttributeError: It has none of that name.
    """
    if hasattr(owner, name):
        return getattr(owner, name)
    place = owner if inspect.isclass(owner) or inspect.ismodule(owner) else type(owner)
    module = place.__name__ if inspect.ismodule(place) else place.__module__
    # A strategy of ours is a class of TensorFlow's, too.
    library = "Keras" if module.startswith("keras.") else "TensorFlow"
    version = {"Keras": keras.__version__, "TensorFlow": tf.__version__}[library]
    raise AttributeError(
        f"`{place.__name__}.{name}` is not in {library} {version}, and kerasdist needs it. Install "
        f"the version of {library} that kerasdist was written for: "
        f'`pip install "{REQUIREMENTS[library]}"`.'
    )


def overwrite(owner, name: str, value) -> None:
    """Writes an attribute that nothing here reads: were it renamed, nobody would notice."""
    find(owner, name)
    setattr(owner, name, value)


@contextlib.contextmanager
def replaced(functions: dict) -> Generator[None]:
    """Puts other functions in the place of theirs, for what is inside.

    Args:
        functions: The function for each (owner, name).
    """
    stock = {(owner, name): find(owner, name) for owner, name in functions}
    for (owner, name), function in functions.items():
        setattr(owner, name, function)
    try:
        yield
    finally:
        for (owner, name), function in stock.items():
            setattr(owner, name, function)
