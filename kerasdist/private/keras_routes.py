"""Routes functions of Keras through ours.

Keras 3 offers no place for what a strategy must change in `fit`, so a few of its functions are
*routed*: a function of ours is asked first, and goes on to Keras' own (`original`) wherever the
model, optimizer or layer is not one of our strategies'. Importing this file changes nothing; the
routes are laid when the first strategy is made (`kerasdist.training.routes`), and taken up by
`kerasdist.undo`.

tests/private/test_keras_routes.py fails when one of these names moves. Written against Keras 3.12
to 3.15; `names.KERAS` stands where they differ.
"""

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import layer as keras_layer
from keras.src.backend.tensorflow import optimizer as keras_optimizer
from keras.src.backend.tensorflow import trainer as keras_trainer
from keras.src.legacy.saving import legacy_h5_format
from keras.src.losses import loss as keras_loss
from keras.src.optimizers import base_optimizer
from keras.src.random import seed_generator
from keras.src.saving import saving_lib
from keras.src.trainers import compile_utils

from kerasdist.private import names
from kerasdist.support import memory

if names.KERAS < (3, 16):
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
    from keras.src.trainers.trainer import Trainer as BaseTrainer
else:
    from keras.src.backend.tensorflow.trainer import (
        Trainer as TensorFlowTrainer,  # ty: ignore[missing-module-member]
    )
    from keras.src.trainers.trainer import BaseTrainer  # ty: ignore[missing-module-member]


_NAMES_OF_VARIADIC = ("args", "kwargs", "kwds", "params")
_VARIADIC = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


@dataclasses.dataclass(frozen=True, slots=True)
class Route:
    """A function of Keras' that can be routed.

    Attributes:
        owner: The class or module that has it.
        name: Its name there.
        parameters: The names of those that it takes; see `check_parameters`.
    """

    owner: Any
    name: str
    parameters: str


# These can be routed, each with the reason why Keras' own does not do.
ROUTABLE = {
    # One compiled call per step, logs on demand, several steps per call on several replicas.
    "make_train_function": Route(TensorFlowTrainer, "make_train_function", "self force"),
    "make_test_function": Route(TensorFlowTrainer, "make_test_function", "self force"),
    # Makes metrics and an optimizer, which are to be variables of the model's strategy.
    "compile": Route(
        BaseTrainer,
        "compile",
        "self optimizer loss loss_weights metrics weighted_metrics run_eagerly "
        "steps_per_execution jit_compile auto_scale_loss",
    ),
    # Switches XLA off wherever a strategy is set, also where that is one device.
    "resolve_auto_jit": Route(BaseTrainer, "_resolve_auto_jit_compile", "self"),
    # Its callbacks' changes of the update end with it, also after an error.
    "fit": Route(
        TensorFlowTrainer,
        "fit",
        "self x y batch_size epochs verbose callbacks validation_split validation_data "
        "shuffle class_weight sample_weight initial_epoch steps_per_epoch validation_steps "
        "validation_batch_size validation_freq",
    ),
    # Every worker predicts all data.
    "predict": Route(TensorFlowTrainer, "predict", "self x batch_size verbose steps callbacks"),
    # They make variables, which inside of a scope become those of the strategy.
    "train_on_batch": Route(
        TensorFlowTrainer, "train_on_batch", "self x y sample_weight class_weight return_dict"
    ),
    "test_on_batch": Route(
        TensorFlowTrainer, "test_on_batch", "self x y sample_weight return_dict"
    ),
    "predict_on_batch": Route(TensorFlowTrainer, "predict_on_batch", "self x"),
    # Validation during `fit` may use other weights, which must go out again after an error.
    "evaluate": Route(
        TensorFlowTrainer,
        "evaluate",
        "self x y batch_size verbose sample_weight steps callbacks return_dict kwargs",
    ),
    # `predict` and `evaluate` read the replicas' own copies of moving statistics.
    "make_predict_function": Route(TensorFlowTrainer, "make_predict_function", "self force"),
    # Every worker would write the same file at the same time.
    "save": Route(keras.Model, "save", "self filepath overwrite zipped kwargs"),
    "save_weights": Route(keras.Model, "save_weights", "self filepath overwrite max_shard_size"),
    "export": Route(keras.Model, "export", "self filepath format verbose input_signature kwargs"),
    # `keras.saving.save_model` and `save_weights` call them, wherever a program has those from.
    "save_file": Route(saving_lib, "save_model", "model filepath weights_format zipped"),
    "save_weights_file": Route(
        saving_lib, "save_weights_only", "model filepath max_shard_size objects_to_skip"
    ),
    "save_h5_file": Route(
        legacy_h5_format, "save_model_to_hdf5", "model filepath overwrite include_optimizer"
    ),
    # Builds from a batch: one more pull from generators, a crash where a batch does not divide.
    "symbolic_build": Route(TensorFlowTrainer, "_maybe_symbolic_build", "self iterator data_batch"),
    # Tests for `dict`, which logs that are not computed yet are not.
    "epoch_logs": Route(BaseTrainer, "_get_metrics_result_or_logs", "self logs"),
    # Runs over the end of data of unknown length; `class_weight` fails on distributed data.
    "epoch_iterator": Route(keras_trainer, "TFEpochIterator", "distribute_strategy args kwargs"),
    # Turns all logs of every step into numbers.
    "callback_list": Route(
        keras.callbacks.CallbackList,
        "__init__",
        "self callbacks add_history add_progbar model params",
    ),
    # Clips, accumulates and averages on each replica, before the gradients meet.
    "apply": Route(base_optimizer.BaseOptimizer, "apply", "self grads trainable_variables"),
    "apply_scaled": Route(
        keras.optimizers.LossScaleOptimizer, "apply", "self grads trainable_variables"
    ),
    "all_reduce": Route(
        keras_optimizer.TFOptimizer, "_all_reduce_sum_gradients", "self grads_and_vars"
    ),
    # How Nadam changes a number that the updates of all weights read.
    "assign_number": Route(keras_optimizer.TFOptimizer, "assign", "self variable value"),
    # Sends weights and averages from parameter servers to the worker, and averages back.
    "average": Route(
        base_optimizer.BaseOptimizer,
        "_update_model_variables_moving_average",
        "self trainable_variables",
    ),
    # Likewise weights, so that one worker takes back what another has made of them meanwhile.
    "decay": Route(keras.optimizers.Muon, "_apply_weight_decay", "self variables"),
    # The last that happens to gradients on a worker, before they go to parameter servers.
    "clip": Route(base_optimizer.BaseOptimizer, "_clip_gradients", "self grads"),
    # The place in Keras' train_step between the loss and the backward pass.
    "scale_loss": Route(base_optimizer.BaseOptimizer, "scale_loss", "self loss"),
    "scale_scaled_loss": Route(keras.optimizers.LossScaleOptimizer, "scale_loss", "self loss"),
    # A loss that is given to `compile` is one of the global batch; see global_loss.
    "compiled_loss": Route(compile_utils.CompileLoss, "call", "self y_true y_pred sample_weight"),
    # Its call takes the losses from where this puts them.
    "build_losses": Route(compile_utils.CompileLoss, "build", "self y_true y_pred"),
    "call_loss": Route(keras.Loss, "__call__", "self y_true y_pred sample_weight"),
    # One list for all replicas, which take turns wherever they send a message.
    "add_loss": Route(keras.layers.Layer, "add_loss", "self loss"),
    "own_losses": Route(keras.layers.Layer, "_get_own_losses", "self"),
    "clear_losses": Route(keras.layers.Layer, "_clear_losses", "self"),
    # Divides by num_replicas: a mean of the replicas' means, whatever the number of examples.
    "reduce_loss": Route(
        keras_loss, "reduce_weighted_values", "values sample_weight mask reduction dtype"
    ),
    "scale_for_distribution": Route(keras_loss, "scale_loss_for_distribution", "value"),
    "unscale_for_distribution": Route(keras_loss, "unscale_loss_for_distribution", "value"),
    # Counts a scalar once per replica, also on a replica without examples.
    "update_mean": Route(keras.metrics.Mean, "update_state", "self values sample_weight"),
    # A function that gives one number for a batch, or compares its examples, adds up to nothing.
    "update_function": Route(
        keras.metrics.MeanMetricWrapper, "update_state", "self y_true y_pred sample_weight"
    ),
    # Three messages a layer, each with a walk through the whole graph; no mask on replicas.
    "moments": Route(keras.layers.BatchNormalization, "_moments", "self inputs mask"),
    # Made where it is first used, which on a replica fails.
    "global_seed_generator": Route(seed_generator, "global_seed_generator", ""),
    # The same masks on every replica.
    "next_seed": Route(keras.random.SeedGenerator, "next", "self ordered"),
    # A layer, unlike a model, does not know in whose scope it was made. Its own constructor is one
    # whose code Keras reads.
    "make_layer": Route(keras_layer.TFLayer, "__init__", "self args kwargs"),
    "make_metric": Route(keras.Metric, "__init__", "self dtype name"),
    # Makes it in the scope that is entered, and not in that of what it is for.
    "make_variable": Route(keras.Variable, "_initialize", "self value"),
    # Fails outside of the scope of the optimizer.
    "make_slot": Route(
        keras_optimizer.TFOptimizer,
        "add_variable_from_reference",
        "self reference_variable name initializer",
    ),
    # Replicas that assign a mean together take that of theirs, and not of the examples.
    "assign": Route(keras.Variable, "assign", "self value"),
    # Reads, adds and writes: workers that share a variable overwrite what others have added.
    "assign_add": Route(keras.Variable, "assign_add", "self value"),
    # Has no gradient for a variable in several parts.
    "gradient": Route(
        tf.GradientTape, "gradient", "self target sources output_gradients unconnected_gradients"
    ),
    # Is a graph of its own, in which replicas cannot meet.
    "call_function": Route(type(tf.function(lambda: None)), "__call__", "self args kwds"),
    # Takes the scope away in which `keras.utils.clear_session` is called.
    "reset_graph": Route(tf.compat.v1, "reset_default_graph", ""),
    # Reads a whole table, of another machine, for a few rows.
    "embed": Route(keras.layers.Embedding, "call", "self inputs"),
}


def route(functions: Mapping[str, Callable]) -> None:
    """Routes some of `ROUTABLE` through `function(original, *args, **kwargs)`.

    All of them or, where the installed version has another function, none.

    Args:
        functions: The function by the name in `ROUTABLE`.

    Raises:
        AttributeError: The installed version has no such function; see `names.find`.
        RuntimeError: It takes something else; see `check_parameters`.
    """
    routes = {name: ROUTABLE[name] for name in functions}
    originals = {name: names.find(each.owner, each.name) for name, each in routes.items()}
    for name, each in routes.items():
        place = f"{names.place_of(each.owner)}.{each.name}"
        check_parameters(each.parameters, place, originals[name])
    for name, each in routes.items():
        names.replace(each.owner, each.name, _routed(originals[name], functions[name]))


def _routed(original: Callable, function: Callable):
    now = functools.partial(function, original)

    def hand_on():
        # Others may have put theirs before it, and call it still.
        nonlocal now
        now = original

    @functools.wraps(original)
    def routed(*args: Any, **kwargs: Any):
        return now(*args, **kwargs)

    memory.PROCESS.replacements.append(hand_on)
    return routed


def check_parameters(parameters: str, place: str, function: Callable) -> None:
    """Checks that a function takes what kerasdist gives it.

    One that takes something else than it did would be called in the wrong way, or would train wrong
    weights in silence. What is new and has a default is left alone: Keras' own callers, which know
    it, give it by name, and a function of ours that does not know it raises a TypeError.

    Args:
        parameters: The names of those that are known, in their order: "self inputs".
        place: Where it is found, for the message.
        function: Keras' own, or one that somebody else has put in its place.

    Raises:
        RuntimeError: It takes something else.
    """
    known = parameters.split()
    taken = inspect.signature(function).parameters
    if _takes(taken, known) or ("args" not in known and _hands_on(taken)):
        return
    library = "TensorFlow" if place.startswith("tensorflow.") else "Keras"
    raise RuntimeError(
        f"`{place}({', '.join(taken)})` of {library} {names.version_of(library)} is not the "
        f"function that kerasdist knows, which is ({', '.join(known)}). Nothing was changed. "
        f"{names.remedy_for(library)}"
    )


def _takes(taken: Mapping[str, inspect.Parameter], known: list[str]) -> bool:
    """Whether the known parameters come first, in their order, and what is new has a default."""
    named = [name for name, each in taken.items() if each.kind not in _VARIADIC]
    known_named = [name for name in known if name not in _NAMES_OF_VARIADIC]
    new = named[len(known_named) :]
    return (
        named[: len(known_named)] == known_named
        and set(known) <= set(taken)
        and all(taken[name].default is not inspect.Parameter.empty for name in new)
    )


def _hands_on(taken: Mapping[str, inspect.Parameter]) -> bool:
    """Whether a function takes whatever there is, as those do that others put before Keras'."""
    return {each.kind for each in taken.values()} >= _VARIADIC


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


def is_overridden(thing: Any, name: str) -> bool:
    """Whether a method of a model or a loss is another one than Keras', which is routed.

    Args:
        thing: A Keras model, or a `keras.Loss`.
        name: Of the method, in `ROUTABLE`.
    """
    route = ROUTABLE[name]
    method = getattr(thing, route.name)
    return getattr(method, "__func__", None) is not getattr(route.owner, route.name)
