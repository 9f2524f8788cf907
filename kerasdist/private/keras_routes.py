"""Which functions of Keras are routed through ours, and how.

Keras 3 offers no place for what a strategy must change in `fit`, so a few of its functions are
*routed*: a function of ours is asked first, and goes on to Keras' own (`stock`) wherever the model,
optimizer or layer is not one of our strategies'. Importing this file changes nothing; the routes
are laid when the first strategy is made (`kerasdist.training.routes`).

tests/private/test_signatures.py fails when one of these names moves. Written against Keras 3.12 to
3.15; `names.KERAS` stands where they differ.
"""

import functools
import sys
from collections.abc import Callable, Mapping

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import optimizer as keras_optimizer
from keras.src.backend.tensorflow import trainer as keras_trainer
from keras.src.legacy.saving import legacy_h5_format
from keras.src.losses import loss as keras_loss
from keras.src.optimizers import base_optimizer
from keras.src.random import seed_generator
from keras.src.saving import saving_lib
from keras.src.trainers import compile_utils

from kerasdist.private import names, signatures

if names.KERAS < (3, 16):
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
    from keras.src.trainers.trainer import Trainer as BaseTrainer
else:
    from keras.src.backend.tensorflow.trainer import (
        Trainer as TensorFlowTrainer,  # ty: ignore[missing-module-member]
    )
    from keras.src.trainers.trainer import BaseTrainer  # ty: ignore[missing-module-member]

# What can be routed: (owner, name), each with the reason why Keras' own does not do.
ROUTABLE = {
    # One compiled call per step, logs on demand, several steps per call on several replicas.
    "make_train_function": (TensorFlowTrainer, "make_train_function"),
    "make_test_function": (TensorFlowTrainer, "make_test_function"),
    # Makes metrics and an optimizer, which are to be variables of the model's strategy.
    "compile": (BaseTrainer, "compile"),
    # What its callbacks do to the update ends with it, also after an error.
    "fit": (TensorFlowTrainer, "fit"),
    # Every worker predicts all data.
    "predict": (TensorFlowTrainer, "predict"),
    # What these make inside of a scope becomes a variable of the strategy.
    "train_on_batch": (TensorFlowTrainer, "train_on_batch"),
    "test_on_batch": (TensorFlowTrainer, "test_on_batch"),
    "predict_on_batch": (TensorFlowTrainer, "predict_on_batch"),
    # Validation during `fit` may use other weights, which must go out again after an error.
    "evaluate": (TensorFlowTrainer, "evaluate"),
    # `predict` and `evaluate` read the replicas' own copies of moving statistics.
    "make_predict_function": (TensorFlowTrainer, "make_predict_function"),
    # Every worker would write the same file at the same time.
    "save": (keras.Model, "save"),
    "save_weights": (keras.Model, "save_weights"),
    "export": (keras.Model, "export"),
    # What `keras.saving.save_model` and `save_weights` call, wherever a program has them from.
    "save_file": (saving_lib, "save_model"),
    "save_weights_file": (saving_lib, "save_weights_only"),
    "save_h5_file": (legacy_h5_format, "save_model_to_hdf5"),
    # Builds from a batch: one more pull from generators, a crash where a batch does not divide.
    "symbolic_build": (TensorFlowTrainer, "_maybe_symbolic_build"),
    # Tests for `dict`, which logs that are not computed yet are not.
    "epoch_logs": (BaseTrainer, "_get_metrics_result_or_logs"),
    # Runs over the end of data of unknown length; `class_weight` fails on distributed data.
    "epoch_iterator": (keras_trainer, "TFEpochIterator"),
    # Turns all logs of every step into numbers.
    "callback_list": (keras.callbacks.CallbackList, "__new__"),
    # Clips, accumulates and averages on each replica, before the gradients meet.
    "apply": (base_optimizer.BaseOptimizer, "apply"),
    "apply_scaled": (keras.optimizers.LossScaleOptimizer, "apply"),
    "all_reduce": (keras_optimizer.TFOptimizer, "_all_reduce_sum_gradients"),
    # How Nadam changes a number that the updates of all weights read.
    "assign_number": (keras_optimizer.TFOptimizer, "assign"),
    # Sends weights and averages from parameter servers to the worker, and averages back.
    "average": (base_optimizer.BaseOptimizer, "_update_model_variables_moving_average"),
    # Likewise weights, so that one worker takes back what another has made of them meanwhile.
    "decay": (keras.optimizers.Muon, "_apply_weight_decay"),
    # The last that happens to gradients on a worker, before they go to parameter servers.
    "clip": (base_optimizer.BaseOptimizer, "_clip_gradients"),
    # The place in Keras' train_step between the loss and the backward pass.
    "scale_loss": (base_optimizer.BaseOptimizer, "scale_loss"),
    "scale_scaled_loss": (keras.optimizers.LossScaleOptimizer, "scale_loss"),
    # What is given to `compile` is a loss of the global batch; see global_loss.
    "compiled_loss": (compile_utils.CompileLoss, "call"),
    "call_loss": (keras.Loss, "__call__"),
    # One list for all replicas, which take turns wherever they send a message.
    "add_loss": (keras.layers.Layer, "add_loss"),
    "own_losses": (keras.layers.Layer, "_get_own_losses"),
    "clear_losses": (keras.layers.Layer, "_clear_losses"),
    # Divides by num_replicas: a mean of the replicas' means, whatever the number of examples.
    "reduce_loss": (keras_loss, "reduce_weighted_values"),
    "scale_for_distribution": (keras_loss, "scale_loss_for_distribution"),
    "unscale_for_distribution": (keras_loss, "unscale_loss_for_distribution"),
    # Counts a scalar once per replica, also on a replica without examples.
    "update_mean": (keras.metrics.Mean, "update_state"),
    # A function that gives one number for a batch, or compares its examples, adds up to nothing.
    "update_function": (keras.metrics.MeanMetricWrapper, "update_state"),
    # Three messages a layer, each with a walk through the whole graph; no mask on replicas.
    "moments": (keras.layers.BatchNormalization, "_moments"),
    # Made where it is first used, which on a replica fails.
    "global_seed_generator": (seed_generator, "global_seed_generator"),
    # The same masks on every replica.
    "next_seed": (keras.random.SeedGenerator, "next"),
    # Reads, adds and writes: workers that share a variable overwrite what others have added.
    "assign_add": (keras.Variable, "assign_add"),
    # Has no gradient for a variable in several parts.
    "gradient": (tf.GradientTape, "gradient"),
    # Reads a whole table, of another machine, for a few rows.
    "embed": (keras.layers.Embedding, "call"),
}


def route(functions: Mapping[str, Callable]) -> None:
    """Routes some of `ROUTABLE` through `function(stock, *args, **kwargs)`.

    All of them or, where the installed version has another function, none.

    Args:
        functions: The function by the name in `ROUTABLE`.

    Raises:
        AttributeError: The installed version has no such function; see `names.find`.
        RuntimeError: It takes something else; see `signatures.check`.
    """
    stock = {name: names.find(*ROUTABLE[name]) for name in functions}
    for name, function in stock.items():
        owner, attribute = ROUTABLE[name]
        signatures.check(name, f"{names.place_of(owner)}.{attribute}", function)
    for name, function in functions.items():
        setattr(*ROUTABLE[name], _routed(stock[name], function))


def _routed(stock, function):
    @functools.wraps(stock)
    def routed(*args, **kwargs):
        return function(stock, *args, **kwargs)

    return routed


def check_is_loaded_once() -> None:
    """Checks that the program makes its models with the Keras whose functions are routed.

    Raises:
        RuntimeError: It was imported anew since, as by a notebook that clears `sys.modules`.
    """
    if getattr(sys.modules.get("keras"), "Model", None) is not keras.Model:
        raise RuntimeError(
            "Keras was imported a second time, and its models would train without kerasdist, which "
            "knows the first one. Start the program anew (in a notebook: restart the kernel)."
        )


def is_overridden(model, name: str) -> bool:
    """Whether a method of `model` is another one than Keras', which is routed.

    Args:
        model: A Keras model.
        name: Of the method, in `ROUTABLE`.
    """
    return getattr(getattr(model, name), "__func__", None) is not getattr(*ROUTABLE[name])
