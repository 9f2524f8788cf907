"""tf_keras, which is Keras 2: what `tf.keras` is where TF_USE_LEGACY_KERAS is set, as Ray sets it.

It is another library, often imported after the strategy is made, and none of our functions stands
before its own. Importing this file does not import it.

tests/libraries/test_legacy_keras.py trains with the real one.
"""

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from kerasdist.private import names

VARIABLE = "TF_USE_LEGACY_KERAS"
_METHODS = ("compile", "fit")


def refuse(is_ours: Callable) -> None:
    """Lets models of tf_keras raise an error where they are compiled or trained in our scopes.

    Nothing happens while nobody has imported it, and nothing more at a second call.

    Args:
        is_ours: Called with the strategy of a model.
    """
    kind = getattr(sys.modules.get("tf_keras"), "Model", None)
    for name in _METHODS if kind else ():
        original = getattr(kind, name)
        if not hasattr(original, "refused_by_kerasdist"):
            names.replace(kind, name, _refused(original, is_ours))


def _refused(original: Callable, is_ours: Callable) -> Callable:
    @functools.wraps(original)
    def refused(model: Any, *args: Any, **kwargs: Any):
        if is_ours(model.distribute_strategy):
            raise RuntimeError(_describe(model))
        return original(model, *args, **kwargs)

    refused.refused_by_kerasdist = is_ours  # ty: ignore[missing-attribute]
    return refused


def _describe(model: Any) -> str:
    remedy = "Make it with `import keras`, which is Keras 3."
    if os.environ.get(VARIABLE) in ("true", "True", "1"):  # As TensorFlow asks.
        remedy = (
            f"{VARIABLE}={os.environ[VARIABLE]} makes it what `tf.keras` is (Ray sets this): take "
            f'it out before TensorFlow is imported, `os.environ.pop("{VARIABLE}", None)`, or make '
            "the model with `import keras`, which is Keras 3 all the same."
        )
    return (
        f"Model '{model.name}' is one of tf_keras (Keras 2), and kerasdist knows Keras 3 alone: it "
        f"would train in `strategy.scope()` with none of the promises. {remedy}"
    )
