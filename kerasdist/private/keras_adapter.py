"""The private names of Keras, each with its reason; larger parts of it stand beside.

tests/private/test_keras_adapter.py fails when one of these names moves. Written against Keras 3.12
to 3.15; `names.KERAS` stands where they differ.
"""

import contextlib
import inspect
import sys
import weakref
from collections.abc import Callable, Generator
from contextlib import nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src import backend
from keras.src.backend.common import global_state
from keras.src.losses import loss as keras_loss
from keras.src.optimizers import base_optimizer
from keras.src.random import seed_generator
from keras.src.trainers.data_adapters import (
    array_data_adapter,
    generator_data_adapter,
    tf_dataset_adapter,
)

from kerasdist.private import names, tensorflow_adapter

# What Keras calls it in the state of a thread; there is no constant in 3.12.
GLOBAL_SEED_GENERATOR = "global_seed_generator"
# Where the state of a thread has what the thread has replaced, see `names.of_thread`.
_REPLACED = "kerasdist_replaced"
# Where SwapEMAWeights keeps whether the model has the averages, and the optimizer the weights.
ARE_AVERAGES_SWAPPED_IN = "_ema_weights_in_model"
# Where ModelCheckpoint counts the steps to the next of its `save_freq`.
STEPS_OF_MODEL_CHECKPOINT = ("_batches_seen_since_last_saving", "_last_batch_seen")
# The ids of the layers that no call of a model builds.
_unused: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def strategy_of(made):
    """Returns the strategy in whose scope a model, layer, metric or optimizer was created.

    None outside of scopes, and for whatever else a callback may be given as its model.
    """
    is_optimizer = isinstance(made, base_optimizer.BaseOptimizer)
    # While an optimizer is being made, it has none yet.
    name = "_distribution_strategy" if is_optimizer else "_distribute_strategy"
    return getattr(made, name, None)


def note_strategy(made, strategy) -> None:
    """Notes in whose scope a layer or a metric is created, as Keras does of models."""
    object.__setattr__(made, "_distribute_strategy", strategy)


def makers() -> list:
    """Returns what a variable is being made for, the innermost of the layers around it first."""
    scopes = global_state.get_global_attribute("name_scope_stack") or []
    return [scope.caller for scope in reversed(scopes)]


def value_of(variable: keras.Variable | tf.Variable):
    """Returns the variable of TensorFlow's that is updated: what Keras' holds, or itself."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def owner_of(variable: keras.Variable | tf.Variable):
    """Returns the strategy in whose scope a variable was created; None outside of scopes."""
    return tensorflow_adapter.owner_of(value_of(variable))


def adopt_variables(variables: list[keras.Variable], strategy, layers=()) -> None:
    """Takes variables from outside, with their values, into the scope of a strategy.

    Args:
        variables: Those to take in.
        strategy: Whose scope.
        layers: Those that the variables may be of, the ones inside of others after these.
    """
    of_layers = {id(variable): layer for layer in layers for variable in layer.variables}
    for variable in variables:
        layer = of_layers.get(id(variable))
        is_made_for = backend.name_scope(layer.name, caller=layer) if layer else nullcontext()
        with is_made_for, tensorflow_adapter.outside_scopes():
            _adopt(variable, strategy)


def _adopt(variable: keras.Variable, strategy) -> None:
    value = variable.numpy()
    with tensorflow_adapter.held_by_first_replica(variable._value, strategy), strategy.scope():
        variable._initialize(value)
    if variable.synchronization == "on_read":  # Replicas have begun with it each, and add them up.
        variable.assign(value)


def mark_variables(variables: list[keras.Variable], strategy) -> None:
    """Makes variables those of a strategy over one device, where they stay the same objects.

    Functions that were compiled before, of another model that shares them, read them as ever.
    """
    for variable in variables:
        names.overwrite(variable.value, "_distribute_strategy", strategy)


def adopt_model(model, strategy) -> None:
    """Makes a model from outside one of a strategy; its variables stay as they are."""
    names.overwrite(model, "_distribute_strategy", strategy)


def compute_loss(model, x, y, predictions, sample_weight):
    """Returns the loss that Keras' own train_step differentiates, of predictions made before."""
    return model._compute_loss(x, y, predictions, sample_weight, training=True)


def replace_losses(compiled, replace: Callable) -> None:
    """Puts what `replace` returns for each loss of a model's in its place.

    Args:
        compiled: Keras' object for the losses that a model is compiled with, which is built.
        replace: Called with a `keras.Loss`; returns what is called with the same arguments.
    """
    compiled._flat_losses = [
        each._replace(loss=replace(each.loss)) for each in compiled._flat_losses
    ]


def mask_of(tensor) -> Any:
    """Returns the tensor with which a layer said which parts of its output count, or None."""
    return getattr(tensor, "_keras_mask", None)


def set_mask(tensor, mask) -> None:
    """Says which parts of a tensor count, as a layer does of its output."""
    tensor._keras_mask = mask


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

    A model whose train_step calls its layers and never itself stays unbuilt. So does a layer that
    no step calls, such as the lookup inside of a TextVectorization that only the data uses.
    """
    layers = model._flatten_layers(include_self=False)
    has_none_of_its_own = bool(layers) and type(model).build is keras.Model.build
    unused = _unused.get(model, ())
    return (model.built or has_none_of_its_own) and all(
        layer.built or id(layer) in unused for layer in layers
    )


def note_unused_layers(model) -> None:
    """Notes which layers are not built after all of `model` was called: nothing calls them."""
    layers = model._flatten_layers(include_self=False)
    _unused[model] = {id(layer) for layer in layers if not layer.built}


@contextlib.contextmanager
def taken_as_built(model) -> Generator[None]:
    """Lets Keras save and load a model whose layers are built, also if nobody ever calls it."""
    before = model.built
    try:
        model.built = before or is_built(model)
        yield
    finally:
        model.built = before


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
        note_unused_layers(model)
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
    before = compile_arguments(model)
    try:
        yield
    finally:
        if kept:
            kept.config = before


def compile_arguments(model) -> dict[str, Any]:
    """Returns what `compile` was called with, by the names of its arguments; empty without it."""
    kept = getattr(model, "_compile_config", None)
    return dict(kept.config) if kept else {}


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
    return next(iter(makers()), None)


@contextlib.contextmanager
def around_initializers(context: Callable[[], Any]) -> Generator[None]:
    """Enters `context()` wherever Keras computes the first value of a variable."""

    # Of TensorFlow's backend, which all variables of layers go through.
    def initialize(original, variable, initializer):
        def within(*args, **kwargs):
            with context():
                return initializer(*args, **kwargs)

        original(variable, within)

    with names.replaced({(keras.Variable, "_initialize_with_initializer"): initialize}):
        yield


def add_in_place(variable: keras.Variable, value) -> None:
    """Adds to a variable where it lives, in one operation."""
    with tf.device(variable._value.device):  # A constant need not be sent.
        variable._value.assign_add(tf.cast(value, variable._value.dtype), read_value=False)


def is_stateless() -> bool:
    """Whether assignments of this thread go to a `keras.StatelessScope`, not to variables."""
    return global_state.get_global_attribute("stateless_scope") is not None


def thread_state() -> dict:
    """Returns what Keras keeps for this thread: settings, counters of names, random generators."""
    state = vars(global_state.GLOBAL_STATE_TRACKER)
    state.setdefault(_REPLACED, names.of_thread())
    return state


def inherit(state: dict) -> None:
    """Gives this thread the settings of another one, such as its dtype policy.

    Args:
        state: The `thread_state` of that one.
    """
    own = thread_state()
    names.inherit(state[_REPLACED])
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


def is_generator(adapter) -> bool:
    """Whether Keras' reader goes on in one Python generator, also in a new iterator."""
    return isinstance(adapter, generator_data_adapter.GeneratorDataAdapter)


def class_weight_function(class_weight: dict) -> Callable:
    """Returns Keras' function (x, y) -> (x, y, weight of the class)."""
    return tf_dataset_adapter.make_class_weight_map_fn(class_weight)
