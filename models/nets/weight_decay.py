"""Weight decay in slim's scale: half of what Keras' L2 of the same number adds to the loss."""

import keras


def slim_l2(weight_decay: float) -> keras.regularizers.Regularizer | None:
    """Returns the regularizer that adds `weight_decay * sum(w ** 2) / 2`, None for zero."""
    return keras.regularizers.L2(weight_decay / 2) if weight_decay else None
