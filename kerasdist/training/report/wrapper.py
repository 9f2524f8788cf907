"""Wraps a callback in another one."""

import keras

from kerasdist.training.hooks.update_callback import UpdateCallback

HOOKS = tuple(name for name in dir(keras.callbacks.Callback) if name.startswith("on_"))


class Wrapper(keras.callbacks.Callback):
    """Passes on to a callback what Keras passes to it.

    Args:
        callback: Any but an `UpdateCallback`, which all workers run in every step.

    Attributes:
        callback: The same.

    Raises:
        TypeError: `callback` is not such a callback.
    """

    def __init__(self, callback: keras.callbacks.Callback):
        super().__init__()
        name = type(self).__name__
        if not isinstance(callback, keras.callbacks.Callback):
            raise TypeError(f"`callback` must be a Keras callback. Received: {callback!r}.")
        if isinstance(callback, UpdateCallback):
            raise TypeError(
                f"{type(callback).__name__} is part of every step on every worker. Give it to "
                f"`fit` itself, without {name}."
            )
        self.callback = callback

    def set_params(self, params: dict) -> None:
        super().set_params(params)
        self.callback.set_params(params)

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self.callback.set_model(model)
        self._hand_on_all()

    def take_over_hooks(self) -> None:
        """Lets Keras call the hooks that the callback has now; its other hooks may assign some."""
        if self.model is None:  # An `OnChief` of another worker calls none.
            return
        if isinstance(self.callback, Wrapper):
            self.callback.take_over_hooks()
        self._hand_on_all()

    @property
    def innermost(self) -> keras.callbacks.Callback:
        """The callback that is not a wrapper itself."""
        inner = self.callback
        return inner.innermost if isinstance(inner, Wrapper) else inner

    def _hand_on_all(self) -> None:
        for hook in HOOKS:
            self._hand_on(hook)

    def _hand_on(self, hook: str) -> None:
        """Lets Keras call a hook of the callback as one of this wrapper."""
        setattr(self, hook, getattr(self.callback, hook))
