"""Another method for one object, and not for its class, while something runs.

    with method_replaced(model, "save", _save_later, queue):
        model.save(path)                    # _save_later(save, queue, path)

The user's subclasses may have a method of that name of their own.
"""

import contextlib
import functools
from collections.abc import Callable, Generator


@contextlib.contextmanager
def method_replaced(owner, name: str, function: Callable, *arguments) -> Generator[None]:
    """Gives one object of Keras', and not its class, another method for what is inside.

    Args:
        owner: A model, layer or metric.
        name: Of the method.
        function: Called with the method, with `arguments`, and with what the method is given.
        *arguments: See `function`.
    """
    own = vars(owner).get(name)
    # Keras' __setattr__ would look for state to track.
    before = getattr(owner, name)
    method = functools.partial(function, before, *arguments)
    # Wrappers of layers look at the parameters of `call`.
    functools.update_wrapper(method, before, updated=())
    object.__setattr__(owner, name, method)
    try:
        yield
    finally:
        if own is None:
            object.__delattr__(owner, name)
        else:
            object.__setattr__(owner, name, own)
