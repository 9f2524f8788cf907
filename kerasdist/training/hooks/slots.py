"""The slots of a model's optimizer, such as its momenta, and when they are made.

Plain Keras makes them in the first step. A callback sees the difference: one that looks for a
learning rate saves the weights as `fit` begins and loads them at its end. Without slots in the file
the optimizer goes on as it is; with them it begins anew.
"""

import keras

from kerasdist.private import custom_parts, keras_optimizers


def make(model: keras.Model) -> None:
    """Makes the slots that are not there yet, in the scope of the model's strategy.

    And takes those there that callbacks have made, which run outside of it.

    Before the step is traced: a trace that finds none would hold the first scale of a
    `LossScaleOptimizer`. Those of a train_step of the user's own are for its trace to make.
    """
    for optimizer in keras_optimizers.optimizers_of(model):
        keras_optimizers.adopt(optimizer, model.distribute_strategy)
    if custom_parts.has_original_steps(model):
        with model.distribute_strategy.scope():
            keras_optimizers.build_optimizer(model)
