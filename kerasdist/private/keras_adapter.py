"""The private names of Keras, each with its reason.

Keras 3 offers no place for what a strategy must change in `fit`, so a few of its functions are
*routed*: a function of ours is asked first, and goes on to Keras' own (`stock`) wherever the model,
optimizer or layer is not one of our strategies'. Importing this file changes nothing; the routes
are laid when the first strategy is made (`kerasdist.training.routes`).

tests/private/test_keras_adapter.py fails when one of these names moves. Written against Keras 3.12
to 3.15; `names.KERAS` stands where they differ.
"""

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Generator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.tensorflow import optimizer as keras_optimizer
from keras.src.backend.tensorflow import trainer as keras_trainer
from keras.src.legacy.saving import legacy_h5_format
from keras.src.losses import loss as keras_loss
from keras.src.optimizers import base_optimizer
from keras.src.random import seed_generator
from keras.src.saving import saving_lib
from keras.src.trainers import compile_utils
from keras.src.trainers import epoch_iterator as keras_epoch_iterator
from keras.src.trainers.data_adapters import array_data_adapter, tf_dataset_adapter

from kerasdist.private import keras_operations, names, signatures, tensorflow_adapter

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
# Knows when an epoch ends, and when data begins anew; TensorFlow's subclass of it distributes.
EpochIterator = keras_epoch_iterator.EpochIterator
# What Keras calls it in the state of a thread; there is no constant in 3.12.
GLOBAL_SEED_GENERATOR = "global_seed_generator"


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


def strategy_of(model_or_optimizer):
    """Returns the strategy in whose scope a model or an optimizer was created.

    None outside of scopes, and for whatever else a callback may be given as its model.
    """
    if isinstance(model_or_optimizer, base_optimizer.BaseOptimizer):
        return model_or_optimizer._distribution_strategy
    return getattr(model_or_optimizer, "_distribute_strategy", None)


def adopt(optimizer, strategy) -> None:
    """Takes an optimizer from outside into the scope of a strategy, with all that it holds."""
    adopt_variables(optimizer.variables, strategy)
    for each in [optimizer, *optimizers_of(optimizer)]:
        each._distribution_strategy = strategy


def adopt_variables(variables: list[keras.Variable], strategy) -> None:
    """Takes variables from outside, with their values, into the scope of a strategy."""
    with tensorflow_adapter.outside_scopes(), strategy.scope():
        for variable in variables:
            variable._initialize(variable.numpy())


def mark_variables(variables: list[keras.Variable], strategy) -> None:
    """Makes variables those of a strategy over one device, where they stay the same objects.

    Functions that were compiled before, of another model that shares them, read them as ever.
    """
    for variable in variables:
        names.overwrite(variable.value, "_distribute_strategy", strategy)


def adopt_model(model, strategy) -> None:
    """Makes a model from outside one of a strategy; its variables stay as they are."""
    names.overwrite(model, "_distribute_strategy", strategy)


def optimizers_of(model) -> list[base_optimizer.BaseOptimizer]:
    """Returns the optimizers that `model` holds: its own, and those that it was given beside.

    Also those in its lists and dicts.
    """
    return [
        each
        for held in list(vars(model).values())
        for each in _values_in(held)
        if isinstance(each, base_optimizer.BaseOptimizer)
    ]


def _values_in(held) -> list:
    if isinstance(held, dict):
        return list(held.values())
    return list(held) if isinstance(held, list | tuple) else [held]


@contextlib.contextmanager
def without_optimizers(model) -> Generator[None]:
    """Hides the optimizers of `model`, which Keras saves and loads with its weights."""
    held = {
        name: value
        for name, value in vars(model).items()
        if (inside := _values_in(value))
        and all(isinstance(each, base_optimizer.BaseOptimizer) for each in inside)
    }
    for name in held:
        object.__setattr__(model, name, None)  # Keras' own would forget what they hold.
    try:
        yield
    finally:
        for name, value in held.items():
            object.__setattr__(model, name, value)


@contextlib.contextmanager
def saving_instead(model, value_of: Callable) -> Generator[None]:
    """Lets the layers of `model` save `value_of(variable)` in the place of each of their variables.

    A method of the object's own: Keras' __setattr__ would look for state to track.
    """

    def replaced(layer):
        own = layer.save_own_variables

        def save(store):
            variables: dict = {}
            own(variables)
            for key, value in variables.items():
                store[key] = value_of(value) if isinstance(value, keras.Variable) else value

        return save

    layers = [each for each in layers_of(model) if "save_own_variables" not in vars(each)]
    for layer in layers:
        object.__setattr__(layer, "save_own_variables", replaced(layer))
    try:
        with without_optimizers(model):
            yield
    finally:
        for layer in layers:
            object.__delattr__(layer, "save_own_variables")


def begin_average_with(optimizer, variable) -> None:
    """Sets the average that `use_ema` keeps of a variable to its value; nothing without one."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if optimizer is None or not optimizer.built or not optimizer.use_ema:
        return
    pairs = zip(
        optimizer._trainable_variables, optimizer._model_variables_moving_average, strict=True
    )
    for trained, average in pairs:
        if trained is variable:
            average.assign(trained)


def average_each(stock, optimizer, variables: list[keras.Variable]) -> None:
    """Updates the averages of variables, also of parts that stand in for them.

    Args:
        stock: Keras' own, of an optimizer and all variables that it updates.
        optimizer: A built one with `use_ema`.
        variables: Some of those.
    """
    averages = optimizer._model_variables_moving_average
    for variable in variables:
        average = _average_of(optimizer, variable)
        if average is None:
            continue
        shape = average._shape
        object.__setattr__(optimizer, "_model_variables_moving_average", [average])
        average._shape = tuple(average.value.shape)  # What is assigned has it.
        try:
            stock(optimizer, [variable])
        finally:
            average._shape = shape
            object.__setattr__(optimizer, "_model_variables_moving_average", averages)


def overwrite_each(frequency: int, optimizer, variables: list[keras.Variable]) -> None:
    """Overwrites variables with their averages, as `ema_overwrite_frequency` does."""
    is_due = tf.equal((tf.convert_to_tensor(optimizer.iterations) + 1) % frequency, 0)
    for variable in variables:
        average = _average_of(optimizer, variable)
        if average is not None:
            variable.value.assign(tf.where(is_due, average.value, variable.value))


def _average_of(optimizer, variable):
    return optimizer._model_variables_moving_average[optimizer._get_variable_index(variable)]


def variables_trained_by(optimizer) -> list[keras.Variable]:
    """Returns the variables that a built optimizer updates, in the order of their gradients."""
    return optimizer._trainable_variables


def build_optimizer(model) -> None:
    """Creates the variables of the optimizer, where the model has all of its own."""
    optimizer = model.optimizer
    if optimizer is not None and not optimizer.built and is_built(model):
        build(optimizer, model.trainable_variables)


def build(optimizer, variables: list[keras.Variable]) -> None:
    """Creates the variables of an optimizer, each beside the weight that it is for.

    Keras asks for that where they have the weight's shape. For others, such as the factors of
    Adafactor, it is the weight that the optimizer has come to in its walk through them.
    """
    weights = _Walk(variables)

    def create(next_creator, **kwargs):
        if weights.now is not None and kwargs.get("colocate_with") is None:
            kwargs["colocate_with"] = weights.now.value
        return next_creator(**kwargs)

    with tf.variable_creator_scope(create):
        optimizer.build(weights)


class _Walk(list):
    """A list of weights that knows which one a loop over it has come to, in `now`.

    None for one in several parts, which has no single place.
    """

    now: Any = None

    def __iter__(self):
        for variable in super().__iter__():
            self.now = None if hasattr(variable.value, "variables") else variable
            yield variable
        self.now = None


def know_parts(optimizer, variable) -> None:
    """Lets an optimizer find the slots of a sharded variable by each of its parts."""
    indices = optimizer._trainable_variables_indices
    for part in variable.variables:
        indices[optimizer._var_key(part)] = indices[optimizer._var_key(variable)]


def is_overridden(model, name: str) -> bool:
    """Whether a method of `model` is another one than Keras', which is routed.

    Args:
        model: A Keras model.
        name: Of the method, in `ROUTABLE`.
    """
    return getattr(getattr(model, name), "__func__", None) is not getattr(*ROUTABLE[name])


def is_stock_step(step: Any) -> bool:
    """Whether a `train_step` or `test_step` of a model is Keras' own.

    That train_step calls `scale_loss` between the loss and the backward pass, exactly once.
    """
    stock = TensorFlowTrainer
    return getattr(step, "__func__", None) in (stock.train_step, stock.test_step)


def has_stock_steps(model) -> bool:
    """Whether `model` trains and evaluates by calling itself, as Keras' own steps do."""
    return is_stock_step(model.train_step) and is_stock_step(model.test_step)


def has_stock_total_loss(model) -> bool:
    """Whether `model` trains with the sum of its losses, as Keras' own train_step makes it."""
    return is_stock_step(model.train_step) and type(model).compute_loss is BaseTrainer.compute_loss


def returns_stock_metrics(model, step_name: str) -> bool:
    """Whether Keras' own `step_name` returns the metrics of `model` and nothing of the user's."""
    return (
        is_stock_step(getattr(model, step_name))
        and type(model).compute_metrics is BaseTrainer.compute_metrics
    )


def has_stock_losses(model) -> bool:
    """Whether every loss that `model` is compiled with is one of Keras'."""
    losses = keras.tree.flatten(getattr(model, "loss", None))
    return all(isinstance(loss, str) or _is_stock(loss) for loss in losses)


def stock_metric_names(model) -> set[str]:
    """Returns the names of those metrics of `model` that are Keras' own."""
    metrics = [each for metric in model.metrics for each in getattr(metric, "metrics", [metric])]
    return {metric.name for metric in metrics if _is_stock(metric)}


def has_own_parts(model) -> bool:
    """Whether `model` is or has something that may look at several examples.

    A layer, a function in one or an optimizer of the user's; a layer of Keras' that is told to, or
    operations between layers.
    """
    return not all(_is_stock(optimizer) for optimizer in optimizers_of(model)) or any(
        not _is_stock(layer) or _may_mix_examples(layer) for layer in model._flatten_layers()
    )


# Attributes of layers that may hold a function of the user's, of all examples.
_FUNCTIONS = ("function", "activation", "recurrent_activation", "activity_regularizer")


def _may_mix_examples(layer) -> bool:
    functions = (getattr(layer, name, None) for name in _FUNCTIONS)
    has_own = any(function is not None and not _is_stock(function) for function in functions)
    return has_own or keras_operations.may_mix_examples(layer)


def is_loss_all_own(model) -> bool:
    """Whether nothing of `model` can be the user's own but how its loss is computed."""
    methods = (type(model).call, type(model).__call__)
    return (
        is_stock_step(model.train_step)
        and all(_is_stock(method) for method in methods)
        and all(_is_stock(layer) for layer in layers_of(model) if layer is not model)
        and not any(_may_mix_examples(layer) for layer in model._flatten_layers())
        and all(_is_stock(optimizer) for optimizer in optimizers_of(model))
    )


def compute_loss(model, x, y, predictions, sample_weight):
    """Returns the loss that Keras' own train_step differentiates, of predictions made before."""
    return model._compute_loss(x, y, predictions, sample_weight, training=True)


def own_apply_of(model) -> str | None:
    """Returns the name of a method with which an optimizer of `model` applies in a way of its own.

    None where all of them apply gradients as Keras' do.
    """
    for optimizer in optimizers_of(model):
        for name in ("apply", "apply_gradients"):
            if not _is_stock(getattr(type(optimizer), name)):
                return f"{type(optimizer).__name__}.{name}"
    return None


def mask_of(tensor) -> Any:
    """Returns the tensor with which a layer said which parts of its output count, or None."""
    return getattr(tensor, "_keras_mask", None)


def set_mask(tensor, mask) -> None:
    """Says which parts of a tensor count, as a layer does of its output."""
    tensor._keras_mask = mask


def _is_stock(thing) -> bool:
    return str(getattr(thing, "__module__", "")).startswith("keras.src.")


def metrics_of(model) -> list[keras.metrics.Metric]:
    """Returns the metrics of `model`, also what its own `metrics` property leaves out."""
    metrics = [*model.metrics, *BaseTrainer.metrics.fget(model)]
    inner = [each for metric in metrics for each in getattr(metric, "metrics", ())]
    return list({id(metric): metric for metric in (*metrics, *inner)}.values())


def own_metrics_of(model) -> list[keras.metrics.Metric]:
    """Returns the metrics of `model` that may not add up; those given to `compile`, too."""
    compiled, given = model._compile_metrics, []
    if compiled is not None:
        given = keras.tree.flatten([compiled._user_metrics, compiled._user_weighted_metrics])
    metrics = [each for each in given if isinstance(each, keras.metrics.Metric)]
    metrics = {id(each): each for each in (*metrics_of(model), *metrics)}
    return [each for each in metrics.values() if not adds_up(each)]


def adds_up(metric) -> bool:
    """Whether the variables of a metric are sums over the examples, as those of Keras' own are.

    Not where a class or a function is the user's. Keras' losses give one number for a batch, and
    its correlations may be over the examples.
    """
    if not _is_stock(metric) or isinstance(metric, _CORRELATIONS):
        return False
    if isinstance(metric, keras.metrics.MeanMetricWrapper):
        return inspect.isfunction(metric._fn) and _is_stock(metric._fn)
    return True


_CORRELATIONS = (keras.metrics.PearsonCorrelation, keras.metrics.ConcordanceCorrelation)


def logs_of_batch(logs: Any, *, is_eager: bool = False) -> dict:
    """Returns the logs of a step in the form that `train_on_batch` and `test_on_batch` expect.

    Keras 3.12 and 3.13 make an array of each, with a function that sees plain dicts alone.

    Args:
        logs: A dict of numbers, of which `nested()` has the dicts that the step returned.
        is_eager: Whether the step ran eagerly.
    """
    if names.KERAS >= (3, 14):
        return logs.nested()
    return {name: np.asarray(log, None if is_eager else "float32") for name, log in logs.items()}


def is_sum_over_batch(layer) -> bool:
    """Whether Keras is calling `add_loss` of `layer` with a sum over the examples.

    That of an activity regularizer is one in Keras 3.12 and 3.13; later ones take the mean. Ask it
    in the function to which `add_loss` is routed.
    """
    if names.KERAS >= (3, 14):
        return False
    if layer.activity_regularizer is None:
        return False
    # Above this function are the one that asks, `routed`, and who called `add_loss`: `call` of the
    # layer may do so too, with losses of the user's.
    caller = sys._getframe(3)
    return caller.f_code is inspect.unwrap(keras.layers.Layer.__call__).__code__


def masked_weights(sample_weight, mask):
    """Returns `sample_weight` with 0 where `mask` (or None) is False, broadcast as Keras does."""
    return keras_loss.apply_mask(sample_weight, mask, dtype="float32", reduction="sum")


def is_built(model) -> bool:
    """Whether the layers of `model` have made their variables.

    A model whose train_step calls its layers and never itself stays unbuilt.
    """
    layers = model._flatten_layers(include_self=False)
    has_none_of_its_own = bool(layers) and type(model).build is keras.Model.build
    return (model.built or has_none_of_its_own) and all(layer.built for layer in layers)


def build_from_spec(model, spec) -> None:
    """Creates the variables of `model` and its metrics from shapes alone.

    Not those of its optimizer: Keras alone makes them in the first step that trains, and files that
    are loaded before do not reach them.
    """
    optimizer = model.optimizer
    is_hidden = optimizer is not None and not optimizer.built
    try:
        if is_hidden:
            optimizer.built = True
        model._symbolic_build(data_batch=spec)
    finally:
        if is_hidden:
            optimizer.built = False


@contextlib.contextmanager
def compile_config_kept(model) -> Generator[None]:
    """Gives `model` back what it was compiled with.

    Keras takes the optimizer out of it when it saves to .h5. On the chief alone: a clone would then
    make other variables there than on the other workers, which wait for the same ones.
    """
    kept = getattr(model, "_compile_config", None)
    before = dict(kept.config) if kept else {}
    try:
        yield
    finally:
        if kept:
            kept.config = before


def layers_of(layer) -> list[keras.layers.Layer]:
    """Returns a layer and all those inside it."""
    return list(layer._flatten_layers())


def layers_beside(model) -> list[keras.layers.Layer]:
    """Returns the layers that a model holds itself, and not those that they hold."""
    return list(model._flatten_layers(include_self=False, recursive=False))


def batch_normalizations_of(model) -> list[keras.layers.BatchNormalization]:
    """Returns the BatchNormalization layers of `model`, those of nested models included."""
    layers = model._flatten_layers(include_self=False)
    return [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]


def layers_with_random_numbers_of(model) -> list[keras.layers.Layer]:
    """Returns what draws random numbers in training, the model itself and nested ones included."""
    # The cells of LSTM and GRU hold a generator also where they drop nothing.
    return [
        layer
        for layer in layers_of(model)
        if layer._seed_generators
        and (getattr(layer, "dropout", 1) or getattr(layer, "recurrent_dropout", 0))
    ]


def reduction_axes(layer: keras.layers.BatchNormalization) -> list[int]:
    """Returns the axes over which a layer takes its statistics: all but that of the channels."""
    return layer._reduction_axes


def losses_added_by(layer) -> list:
    """Returns the list in which Keras keeps what a layer has added with `add_loss`."""
    return layer._losses


def layer_being_built() -> keras.layers.Layer | None:
    """Returns the layer in whose name scope a variable is being made; None outside of layers."""
    scopes = global_state.get_global_attribute("name_scope_stack") or []
    return scopes[-1].caller if scopes else None


@contextlib.contextmanager
def around_initializers(context: Callable[[], Any]) -> Generator[None]:
    """Enters `context()` wherever Keras computes the first value of a variable."""
    # Of TensorFlow's backend, which all variables of layers go through.
    owner, name = keras.Variable, "_initialize_with_initializer"
    stock = names.find(owner, name)

    def initialize(variable, initializer):
        def within(*args, **kwargs):
            with context():
                return initializer(*args, **kwargs)

        stock(variable, within)

    with names.replaced({(owner, name): initialize}):
        yield


@contextlib.contextmanager
def standing_in(variables: list[keras.Variable], values: list) -> Generator[None]:
    """Lets other variables of TensorFlow's stand in for those that Keras' variables hold."""
    own = [variable._value for variable in variables]
    stand_in(variables, values)
    try:
        yield
    finally:
        stand_in(variables, own)


def stand_in(variables: list[keras.Variable], values: list) -> None:
    """As `standing_in`, until others do."""
    for variable, value in zip(variables, values, strict=False):
        variable._value = value


def give_way(tensor: Any, variable: keras.Variable, then: Callable) -> None:
    """Lets a tensor that is to stand in for a variable give way to it where that is assigned to.

    Args:
        tensor: A symbolic one.
        variable: The one that it is to stand in for.
        then: Called before the variable is assigned to.
    """
    original = variable._value

    def giving_way(name):
        def assign(*args, **kwargs):
            variable._value = original
            then()
            return getattr(original, name)(*args, **kwargs)

        return assign

    for name in ("assign", "assign_add", "assign_sub"):
        setattr(tensor, name, giving_way(name))


def numbers_of(optimizer) -> list[keras.Variable]:
    """Returns the scalars of an optimizer that each update of a weight reads."""
    numbers = [optimizer._iterations, optimizer._learning_rate]
    return [each for each in numbers if isinstance(each, keras.Variable)]


def add_in_place(variable: keras.Variable, value) -> None:
    """Adds to a variable where it lives, in one operation."""
    with tf.device(variable._value.device):  # A constant need not be sent.
        variable._value.assign_add(tf.cast(value, variable._value.dtype), read_value=False)


def is_stateless() -> bool:
    """Whether assignments of this thread go to a `keras.StatelessScope`, not to variables."""
    return global_state.get_global_attribute("stateless_scope") is not None


def thread_state() -> dict:
    """Returns what Keras keeps for this thread: settings, counters of names, random generators."""
    return vars(global_state.GLOBAL_STATE_TRACKER)


def inherit(state: dict) -> None:
    """Gives this thread the settings of another one, such as its dtype policy.

    Args:
        state: The `thread_state` of that one.
    """
    own = thread_state()
    for name, value in state.items():
        own.setdefault(name, list(value) if isinstance(value, list) else value)


def set_global_seed_generator(state: dict, generator: keras.random.SeedGenerator):
    """Makes a generator that of numbers without a seed in a thread with this state; returns it."""
    state[GLOBAL_SEED_GENERATOR] = generator
    return generator


def known_global_seed_generator(state: dict | None = None) -> keras.random.SeedGenerator | None:
    """Returns the generator of numbers without a seed; None where there is none yet.

    Args:
        state: `thread_state()` of the thread that it is of; of this one by default.
    """
    return (thread_state() if state is None else state).get(GLOBAL_SEED_GENERATOR)


def make_global_seed_generator() -> None:
    """Makes the generator of numbers without a seed of this thread where there is none."""
    seed_generator.global_seed_generator()


def begin_at(model, epoch: int | None) -> None:
    """Lets the `fit` that begins start with an epoch, as BackupAndRestore does; None as it is."""
    names.overwrite(model, "_initial_epoch", epoch)


def next_call_of(epoch_iterator: EpochIterator) -> tuple[int, int, Any]:
    """Returns (first step, last step, iterator over batches) of the next call in an epoch."""
    steps: Any = epoch_iterator._epoch_iterator  # Since `__iter__`.
    return next(steps)


def num_bytes(adapter) -> int:
    """Returns the size of the arrays that Keras' reader holds; 0 where it holds none."""
    arrays = keras.tree.flatten(getattr(adapter, "_inputs", None))
    return sum(getattr(getattr(array, "array", array), "nbytes", 0) for array in arrays)


def batch_size_of(adapter) -> int | None:
    """Returns the examples of a batch; None where Keras' reader does not know them."""
    with contextlib.suppress(AttributeError, IndexError, TypeError, ValueError):  # Of no batches.
        return adapter.batch_size
    return None


def is_python(adapter) -> bool:
    """Whether Keras' reader calls Python for every batch."""
    return not isinstance(
        adapter, (tf_dataset_adapter.TFDatasetAdapter, array_data_adapter.ArrayDataAdapter)
    )


def class_weight_function(class_weight: dict) -> Callable:
    """Returns Keras' function (x, y) -> (x, y, weight of the class)."""
    return tf_dataset_adapter.make_class_weight_map_fn(class_weight)
