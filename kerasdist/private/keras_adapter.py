"""The one file that touches private names of Keras and TensorFlow.

Keras 3 offers no place for what a strategy must change in `fit`, so a few of its functions are
*routed*: a function of ours is asked first, and goes on to Keras' own (`stock`) wherever the model,
optimizer or layer is not one of our strategies'. Importing this file changes nothing; the routes
are laid when the first strategy is made (`kerasdist.training.routes`).

tests/training/test_keras_adapter.py fails when one of these names moves. Written against Keras
3.15.1 and TensorFlow 2.21.
"""

import contextlib
import functools
import itertools
import random
import re
import threading
import time
import weakref
from collections.abc import Callable, Generator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.tensorflow import optimizer as keras_optimizer
from keras.src.backend.tensorflow import trainer as keras_trainer
from keras.src.losses import loss as keras_loss
from keras.src.optimizers import base_optimizer
from keras.src.random import seed_generator
from keras.src.trainers import compile_utils
from keras.src.trainers import epoch_iterator as keras_epoch_iterator
from keras.src.trainers import trainer as base_trainer
from keras.src.trainers.data_adapters import array_data_adapter, tf_dataset_adapter
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.python.data.experimental.ops import distribute as tf_distribute
from tensorflow.python.data.ops import options as options_lib
from tensorflow.python.distribute import (
    collective_all_reduce_strategy,
    input_lib,
    sharded_variable,
)
from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.distribute.coordinator import values as coordinator_values
from tensorflow.python.eager import context, record
from tensorflow.python.ops import (
    gen_random_ops,
    gen_resource_variable_ops,
    gen_state_ops,
    gen_stateful_random_ops,
    gen_stateless_random_ops,
    gen_stateless_random_ops_v2,
    resource_variable_ops,
)

from kerasdist.cluster import Cluster
from kerasdist.private import names

# What can be routed: (owner, name), each with the reason why Keras' own does not do.
ROUTABLE = {
    # One compiled call per step, logs on demand, several steps per call on several replicas.
    "make_train_function": (keras_trainer.TensorFlowTrainer, "make_train_function"),
    "make_test_function": (keras_trainer.TensorFlowTrainer, "make_test_function"),
    # Makes metrics and an optimizer, which are to be variables of the model's strategy.
    "compile": (base_trainer.Trainer, "compile"),
    # What its callbacks do to the update ends with it, also after an error.
    "fit": (keras_trainer.TensorFlowTrainer, "fit"),
    # Every worker predicts all data.
    "predict": (keras_trainer.TensorFlowTrainer, "predict"),
    # What these make inside of a scope becomes a variable of the strategy.
    "train_on_batch": (keras_trainer.TensorFlowTrainer, "train_on_batch"),
    "test_on_batch": (keras_trainer.TensorFlowTrainer, "test_on_batch"),
    "predict_on_batch": (keras_trainer.TensorFlowTrainer, "predict_on_batch"),
    # Validation during `fit` may use other weights, which must go out again after an error.
    "evaluate": (keras_trainer.TensorFlowTrainer, "evaluate"),
    # `predict` and `evaluate` read the replicas' own copies of moving statistics.
    "make_predict_function": (keras_trainer.TensorFlowTrainer, "make_predict_function"),
    # Every worker would write the same file at the same time.
    "save": (keras.Model, "save"),
    "save_weights": (keras.Model, "save_weights"),
    "export": (keras.Model, "export"),
    # Builds from a batch: one more pull from generators, a crash where a batch does not divide.
    "symbolic_build": (keras_trainer.TensorFlowTrainer, "_maybe_symbolic_build"),
    # Tests for `dict`, which logs that are not computed yet are not.
    "epoch_logs": (base_trainer.Trainer, "_get_metrics_result_or_logs"),
    # Runs over the end of data of unknown length; `class_weight` fails on distributed data.
    "epoch_iterator": (keras_trainer, "TFEpochIterator"),
    # Turns all logs of every step into numbers.
    "callback_list": (keras.callbacks.CallbackList, "__new__"),
    # Clips, accumulates and averages on each replica, before the gradients meet.
    "apply": (base_optimizer.BaseOptimizer, "apply"),
    "apply_scaled": (keras.optimizers.LossScaleOptimizer, "apply"),
    "all_reduce": (keras_optimizer.TFOptimizer, "_all_reduce_sum_gradients"),
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
    # Three messages a layer, each with a walk through the whole graph; no mask on replicas.
    "moments": (keras.layers.BatchNormalization, "_moments"),
    # Made where it is first used, which on a replica fails.
    "global_seed_generator": (seed_generator, "global_seed_generator"),
    # The same masks on every replica.
    "next_seed": (keras.random.SeedGenerator, "next"),
    # Reads, adds and writes: workers that share a variable overwrite what others have added.
    "assign_add": (keras.Variable, "assign_add"),
    # Ask for methods that variables on several devices or in several parts do not have.
    "as_array": (keras.Variable, "__array__"),
    "as_float": (keras.Variable, "__float__"),
    "as_int": (keras.Variable, "__int__"),
    # Has no gradient for a variable in several parts.
    "gradient": (tf.GradientTape, "gradient"),
    # Reads a whole table, of another machine, for a few rows.
    "embed": (keras.layers.Embedding, "call"),
}

# TensorFlow's functions behind every random number and every assignment, where each operation runs
# at once; see `alike_draws` and `assignments_undone`.
RANDOM_MODULES = (
    gen_random_ops,
    gen_stateful_random_ops,
    gen_stateless_random_ops,
    gen_stateless_random_ops_v2,
)
RANDOM_FUNCTIONS = re.compile(
    r"(stateful_|stateless_)?(parameterized_)?(random_)?(standard_)?"
    r"(truncated_normal|normal|uniform|uniform_int|uniform_full_int)(_v2)?"
)
SHUFFLES = re.compile(r"random_shuffle|stateless_shuffle")
ASSIGNMENTS = re.compile(r"(assign|assign_add|assign_sub)_variable_op|resource_scatter_[a-z_]+")

# How the names of the coordinator's threads begin, one for each worker.
COORDINATOR_THREADS = "WorkerClosureProcessingLoop"
# How TensorFlow's coordinator begins what it logs of lost workers.
LOST_WORKER_MESSAGES = (
    "Worker %s failed with",
    "Remote function on worker",
    "Cluster update failed with error",
    " /job:worker/task:%d encountered the following error",
    "Start cancelling closures due to error",
)
# Knows when an epoch ends, and when data begins anew; TensorFlow's subclass of it distributes.
EpochIterator = keras_epoch_iterator.EpochIterator
# What TensorFlow's ParameterServerStrategy makes of a variable that its partitioner divides.
ShardedVariable = sharded_variable.ShardedVariable

_collective_key_bases = itertools.count(1000, 1000)
_adapted = weakref.WeakSet()


def route(name: str, function: Callable) -> None:
    """Routes one of `ROUTABLE` through `function(stock, *args, **kwargs)`.

    Raises:
        AttributeError: The installed version has no such function; see `names.find`.
    """
    owner, attribute = ROUTABLE[name]
    stock = names.find(owner, attribute)

    @functools.wraps(stock)
    def routed(*args, **kwargs):
        return function(stock, *args, **kwargs)

    setattr(owner, attribute, routed)


def is_stock_step(step: Any) -> bool:
    """Whether a `train_step` or `test_step` of a model is Keras' own.

    That train_step calls `scale_loss` between the loss and the backward pass, exactly once.
    """
    stock = keras_trainer.TensorFlowTrainer
    return getattr(step, "__func__", None) in (stock.train_step, stock.test_step)


def has_stock_total_loss(model) -> bool:
    """Whether `model` trains with the sum of its losses, as Keras' own train_step makes it."""
    return (
        is_stock_step(model.train_step)
        and type(model).compute_loss is base_trainer.Trainer.compute_loss
    )


def returns_stock_metrics(model, step_name: str) -> bool:
    """Whether Keras' own `step_name` returns the metrics of `model` and nothing of the user's."""
    return (
        is_stock_step(getattr(model, step_name))
        and type(model).compute_metrics is base_trainer.Trainer.compute_metrics
    )


def has_stock_losses(model) -> bool:
    """Whether every loss that `model` is compiled with is one of Keras'."""
    losses = keras.tree.flatten(getattr(model, "loss", None))
    return all(isinstance(loss, str) or _is_stock(loss) for loss in losses)


def metrics_of(model) -> list[keras.metrics.Metric]:
    """Returns the metrics of `model`, also what its own `metrics` property leaves out."""
    metrics = [*model.metrics, *base_trainer.Trainer.metrics.fget(model)]
    inner = [each for metric in metrics for each in getattr(metric, "metrics", ())]
    return list({id(metric): metric for metric in (*metrics, *inner)}.values())


def stock_metric_names(model) -> set[str]:
    """Returns the names of those metrics of `model` that are Keras' own."""
    metrics = [each for metric in model.metrics for each in getattr(metric, "metrics", [metric])]
    return {metric.name for metric in metrics if _is_stock(metric)}


def masked_weights(sample_weight, mask):
    """Returns `sample_weight` with 0 where `mask` (or None) is False, broadcast as Keras does."""
    return keras_loss.apply_mask(sample_weight, mask, dtype="float32", reduction="sum")


def strategy_of(model_or_optimizer):
    """Returns the strategy in whose scope a model or an optimizer was created.

    None outside of scopes, and for whatever else a callback may be given as its model.
    """
    if isinstance(model_or_optimizer, base_optimizer.BaseOptimizer):
        return model_or_optimizer._distribution_strategy
    return getattr(model_or_optimizer, "_distribute_strategy", None)


@contextlib.contextmanager
def outside_scopes() -> Generator[None]:
    """Leaves the scope of a strategy, and the trace of a function, for the variables made inside.

    TensorFlow has no public way out of `with strategy.scope():`.
    """
    graph = tf.compat.v1.get_default_graph()
    strategies, creators = graph._distribution_strategy_stack, graph._variable_creator_stack
    graph._distribution_strategy_stack, graph._variable_creator_stack = [], []
    try:
        with tf.device(None) if strategies else contextlib.nullcontext():
            yield
    finally:
        graph._distribution_strategy_stack, graph._variable_creator_stack = strategies, creators


def optimizers_of(model) -> list[base_optimizer.BaseOptimizer]:
    """Returns the optimizers that `model` holds: its own, and those that it was given beside."""
    held = vars(model).values()
    return [value for value in held if isinstance(value, base_optimizer.BaseOptimizer)]


def adopt(optimizer, strategy) -> None:
    """Takes an optimizer from outside into the scope of a strategy, with all that it holds."""
    with outside_scopes(), strategy.scope():
        for variable in optimizer.variables:
            variable._initialize(variable.numpy())
    for each in [optimizer, *optimizers_of(optimizer)]:
        each._distribution_strategy = strategy


def variables_trained_by(optimizer) -> list[keras.Variable]:
    """Returns the variables that a built optimizer updates, in the order of their gradients."""
    return optimizer._trainable_variables


def is_built(model) -> bool:
    """Whether the layers of `model` have made their variables.

    A model whose train_step calls its layers and never itself stays unbuilt.
    """
    layers = model._flatten_layers(include_self=False)
    has_none_of_its_own = bool(layers) and type(model).build is keras.Model.build
    return (model.built or has_none_of_its_own) and all(layer.built for layer in layers)


def has_own_layers(model) -> bool:
    """Whether `model` has layers, or is a class, that Keras does not bring."""
    return not all(_is_stock(layer) for layer in model._flatten_layers())


def batch_normalizations_of(model) -> list[keras.layers.BatchNormalization]:
    """Returns the BatchNormalization layers of `model`, those of nested models included."""
    layers = model._flatten_layers(include_self=False)
    return [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]


def layer_being_built() -> keras.layers.Layer | None:
    """Returns the layer in whose name scope a variable is being made; None outside of layers."""
    scopes = global_state.get_global_attribute("name_scope_stack") or []
    return scopes[-1].caller if scopes else None


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


def global_seed_generator_of(state: dict, make: Callable):
    """Returns the generator of numbers without a seed of a thread; makes it where there is none."""
    if state.get(seed_generator.GLOBAL_SEED_GENERATOR) is None:
        state[seed_generator.GLOBAL_SEED_GENERATOR] = make()
    return state[seed_generator.GLOBAL_SEED_GENERATOR]


def layers_of(layer) -> list[keras.layers.Layer]:
    """Returns a layer and all those inside it."""
    return list(layer._flatten_layers())


def losses_added_by(layer) -> list:
    """Returns the list in which Keras keeps what a layer has added with `add_loss`."""
    return layer._losses


def sum_over_replicas(tensors: list) -> list:
    """Returns tensors and IndexedSlices of one dtype summed over all replicas; no gradient.

    TensorFlow's public `all_reduce` also walks through the graph, of all replicas, for variables
    that a gradient might need.
    """
    extended = tf.distribute.get_strategy().extended
    # Those that the user gave to the strategy of several workers.
    options = getattr(extended, "_communication_options", None)
    with record.stop_recording():
        return extended._replica_ctx_all_reduce(tf.distribute.ReduceOp.SUM, tensors, options)


def differentiable_sum(tensor, weigh=None):
    """Returns a tensor summed over all replicas; its gradient is a sum over them too.

    Args:
        tensor: Of the same shape on every replica.
        weigh: Called with (function, gradient), to weigh the replicas' gradients where `function`
            adds them up; None leaves them as they are.
    """
    (summed,) = sum_over_replicas([tf.identity(tensor)])

    def backward(gradient):
        return [weigh(differentiable_sum, gradient) if weigh else differentiable_sum(gradient)]

    record.record_operation("SumOverReplicas", [summed], [tensor], backward)
    return summed


def reduction_axes(layer: keras.layers.BatchNormalization) -> list[int]:
    """Returns the axes over which a layer takes its statistics: all but that of the channels."""
    return layer._reduction_axes


@contextlib.contextmanager
def alike_draws() -> Generator[Callable[[], None]]:
    """Makes random numbers the same for every example and on every replica; for eager operations.

    The numbers of a draw differ along all axes but the first. Python's, numpy's and TensorFlow's
    generators are put back at the end.

    Yields:
        A function that each replica calls first.
    """
    # TensorFlow's is made by the first seed.
    generators = [random, *filter(None, [getattr(context.context(), "_rng", None)])]
    states = [generator.getstate() for generator in generators]
    state_of_numpy = np.random.get_state()
    local = threading.local()  # Replicas take turns.

    def start():
        local.counter = itertools.count()
        random.seed(0)
        np.random.seed(0)

    def draw(stock, *args, **kwargs):
        drawn = stock(*args, **kwargs)
        fractions = _fractions(drawn.shape.as_list()[1:], next(local.counter))
        if not drawn.dtype.is_floating:
            row = _integers(fractions, drawn, args, kwargs)
        elif "normal" in stock.__name__:
            row = 1.4 * np.sin(2 * np.pi * fractions)
        else:
            row = fractions
        return tf.broadcast_to(tf.cast(row, drawn.dtype), drawn.shape)

    def in_order(stock, value, *args, **kwargs):
        return tf.identity(value)

    replaced = {
        (module, name): functools.partial(function, getattr(module, name))
        for module in RANDOM_MODULES
        for name in vars(module)
        for pattern, function in ((RANDOM_FUNCTIONS, draw), (SHUFFLES, in_order))
        if pattern.fullmatch(name)
    }
    try:
        with names.replaced(replaced):
            yield start
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.setstate(state)
        np.random.set_state(state_of_numpy)


def _fractions(shape, seed: int) -> np.ndarray:
    """Returns different numbers between 0 and 1."""
    positions = np.arange(np.prod(shape, dtype=int))
    return np.reshape(np.modf(0.37 + 0.618 * seed + 0.755 * positions)[0], shape)


def _integers(fractions, drawn, args, kwargs):
    """Returns integers between the bounds of a draw, its last two arguments."""
    bounds = [kwargs[name] for name in ("minval", "maxval") if name in kwargs]
    bounds = bounds or [each for each in args if np.ndim(each) == 0][-2:]
    low, high = bounds if len(bounds) == 2 else (drawn.dtype.min, drawn.dtype.max)
    return int(low) + np.floor(fractions * (int(high) - int(low)))


@contextlib.contextmanager
def assignments_undone() -> Generator[None]:
    """Gives every variable that is assigned inside its value back; for eager operations.

    One that is made inside, as those of compiled metrics, gets its first value back.
    """
    before: dict = {}

    def assign(stock, handle, *args, **kwargs):
        if handle is not None and id(handle) not in before:
            value = _value_of(handle)
            if value is not None:
                before[id(handle)] = handle, value
        return stock(handle, *args, **kwargs)

    keys = [
        (module, name)
        for module in (gen_resource_variable_ops, gen_state_ops)
        for name in vars(module)
        if ASSIGNMENTS.fullmatch(name) and not name.endswith("_eager_fallback")
    ]
    try:
        with names.replaced({key: functools.partial(assign, getattr(*key)) for key in keys}):
            yield
    finally:
        for handle, value in before.values():
            gen_resource_variable_ops.assign_variable_op(handle, value)


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


def _value_of(handle):
    """Returns what a variable holds; None for one that is being made."""
    if not gen_resource_variable_ops.var_is_initialized_op(handle):
        return None
    dtype = handle._handle_data.shape_and_type[0].dtype
    with record.stop_recording():
        return gen_resource_variable_ops.read_variable_op(handle, dtype)


def layers_with_random_numbers_of(model) -> list[keras.layers.Layer]:
    """Returns what draws random numbers in training, the model itself and nested ones included."""
    # The cells of LSTM and GRU hold a generator also where they drop nothing.
    return [
        layer
        for layer in layers_of(model)
        if layer._seed_generators
        and (getattr(layer, "dropout", 1) or getattr(layer, "recurrent_dropout", 0))
    ]


def has_stock_steps(model) -> bool:
    """Whether `model` trains and evaluates by calling itself, as Keras' own steps do."""
    return is_stock_step(model.train_step) and is_stock_step(model.test_step)


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


def build_optimizer(model) -> None:
    """Creates the variables of the optimizer, where the model has all of its own."""
    optimizer = model.optimizer
    if optimizer is not None and not optimizer.built and is_built(model):
        optimizer.build(model.trainable_variables)


def next_call_of(epoch_iterator: EpochIterator) -> tuple[int, int, Any]:
    """Returns (first step, last step, iterator over batches) of the next call in an epoch."""
    steps: Any = epoch_iterator._epoch_iterator  # Since `__iter__`.
    return next(steps)


def num_bytes(adapter) -> int:
    """Returns the size of the arrays that Keras' reader holds; 0 where it holds none."""
    arrays = keras.tree.flatten(getattr(adapter, "_inputs", None))
    return sum(getattr(getattr(array, "array", array), "nbytes", 0) for array in arrays)


def is_python(adapter) -> bool:
    """Whether Keras' reader calls Python for every batch."""
    return not isinstance(
        adapter, (tf_dataset_adapter.TFDatasetAdapter, array_data_adapter.ArrayDataAdapter)
    )


def class_weight_function(class_weight: dict) -> Callable:
    """Returns Keras' function (x, y) -> (x, y, weight of the class)."""
    return tf_dataset_adapter.make_class_weight_map_fn(class_weight)


def batch_spec(element_spec):
    """Returns the spec of one replica's batch, with an open batch axis, for any dataset's spec."""

    def leaf_spec(spec):
        # Distributed datasets have one spec per replica, all alike but for the batch axis.
        spec = spec._component_specs[0] if hasattr(spec, "_value_specs") else spec
        shape = getattr(spec, "shape", None)
        if shape is None:
            return None
        if shape.rank:
            shape = [None, *shape[1:]]
        return keras.KerasTensor(shape, dtype=spec.dtype.name)

    return tf.nest.map_structure(leaf_spec, element_spec)


def num_files(dataset: tf.data.Dataset) -> int:
    """Returns how many files a dataset seems to be read from: the texts at its source; 0 for none.

    A dataset does not say what it is made of, but for its inputs.
    """
    while inputs := dataset._inputs():
        dataset = inputs[0]
    spec = dataset.element_spec
    if not isinstance(spec, tf.TensorSpec) or spec.dtype != tf.string or spec.shape.rank != 0:
        return 0
    return max(int(dataset.cardinality()), 0)


def shard_by_file(dataset: tf.data.Dataset, num_shards: int, index: int):
    """Returns the part of a dataset that is in every `num_shards`-th of its files, or None.

    None where the texts at its source are no file names, where its batch size cannot be found, and
    for batches of anything but dense tensors of known rank.

    Args:
        dataset: Yields global batches.
        num_shards: Number of parts.
        index: Which part.

    Returns:
        Dataset of this part's share of each global batch.
    """
    batch_size = int(tf_distribute.compute_batch_size(dataset))
    leaves = tf.nest.flatten(dataset.element_spec)
    is_dense = all(isinstance(leaf, tf.TensorSpec) and leaf.shape.rank for leaf in leaves)
    if batch_size < num_shards or not is_dense:
        return None
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    try:
        shard = tf_distribute._AutoShardDataset(dataset.with_options(options), num_shards, index)
    except tf.errors.NotFoundError:
        return None
    return shard.rebatch((batch_size + num_shards - 1 - index) // num_shards)


def separate_collectives(strategy) -> None:
    """Gives a strategy collective keys of its own; call it before TensorFlow's constructor.

    All strategies of a process start at the same key, and a group of other devices under a key that
    is taken fails with "InternalError: CollectiveReduceV2" in every later strategy as well.
    """
    names.overwrite(strategy, "_collective_key_base", next(_collective_key_bases))


@contextlib.contextmanager
def devices_of_worker(devices) -> Generator[None]:
    """Makes a multi-worker strategy, constructed inside, use `devices` of its own worker.

    TensorFlow lets the cluster resolver name a number of GPUs, and always takes one CPU.
    """
    extended = collective_all_reduce_strategy.CollectiveAllReduceExtended

    def local_devices(self, cluster_resolver, worker_device):
        own = tuple(f"{worker_device}/device:{device}" for device in devices)
        return own, devices[0].partition(":")[0]

    with names.replaced({(extended, "_initialize_local_devices"): local_devices}):
        yield


def adapt(strategy, *, is_local_update: Callable[[], bool], create: Callable) -> None:
    """Adapts the variables and updates of `strategy` to what `fit` does with them.

    Args:
        strategy: A strategy of TensorFlow's.
        is_local_update: Whether this thread updates only the variables of its own replica, with a
            gradient that is the same on all of them. TensorFlow then needs no merge_call, which is
            what lets an update stand inside `tf.cond`.
        create: Called as create(stock, next_creator, **kwargs) for variables.
    """
    _adapted.add(strategy)
    extended = strategy.extended
    uses_merge_call = extended._use_merge_call
    extended._use_merge_call = lambda: not is_local_update() and uses_merge_call()
    extended._create_variable = functools.partial(create, extended._create_variable)


def adapt_parameter_servers(
    strategy, *, is_local_update: Callable[[], bool], update: Callable, create: Callable
) -> None:
    """Adapts the variables and updates of a ParameterServerStrategy; see `adapt`.

    Args:
        strategy: A ParameterServerStrategy of TensorFlow's.
        is_local_update: As in `adapt`.
        update: Called as update(variable, function, args, kwargs, group) for such an update.
        create: Called as create(create_on, next_creator, **kwargs) for variables. What it calls in
            turn is create_on(server, in_parts, next_creator, **kwargs).
    """
    _adapted.add(strategy)
    extended = strategy.extended
    if extended._num_replicas_in_sync == 1:
        extended._use_merge_call = lambda: not is_local_update()
        names.overwrite(extended, "_replica_ctx_update", update)
    stock, partitioner = extended._create_variable, extended._variable_partitioner

    def create_on(server, in_parts, next_creator, **kwargs):
        extended._variable_partitioner = partitioner if in_parts else None
        # TensorFlow takes them in turn: this one is next.
        names.overwrite(extended, "_variable_count", server)
        return stock(next_creator, **kwargs)

    extended._create_variable = functools.partial(create, create_on)


def num_parameter_servers(strategy) -> int:
    """Returns how many tasks hold the variables; its `cluster_resolver` is None."""
    return strategy.extended._num_ps


def know_parts(optimizer, variable) -> None:
    """Lets an optimizer find the slots of a sharded variable by each of its parts."""
    indices = optimizer._trainable_variables_indices
    for part in variable.variables:
        indices[optimizer._var_key(part)] = indices[optimizer._var_key(variable)]


def variable_of_worker(like: tf.Variable, name: str) -> tf.Variable:
    """Returns a variable of the worker that runs the function which is being traced.

    TensorFlow's PerWorkerVariable has no automatic control dependencies, so that reads may come
    before writes.

    Args:
        like: A variable with its shape and dtype.
        name: Which one it is, among all of that worker's process.
    """
    return resource_variable_ops.BaseResourceVariable(
        **_arguments_of_worker(like, name), trainable=False
    )


def _arguments_of_worker(like, name) -> dict:
    return {
        "handle": tf.raw_ops.VarHandleOp(
            dtype=like.dtype, shape=like.shape, shared_name=name, container=""
        ),
        "handle_name": name,
        "unique_id": name,
        "shape": like.shape,
        "dtype": like.dtype,
        "in_graph_mode": True,
    }


class _CopyOfWorker(resource_variable_ops.BaseResourceVariable):
    """A variable of a worker that is read in the place of one on a parameter server.

    What is assigned to it is assigned to that one too.
    """

    original: tf.Variable

    def assign(self, value, *args, **kwargs):
        self.original.assign(value)
        return super().assign(value, *args, **kwargs)

    def assign_add(self, delta, *args, **kwargs):
        self.original.assign_add(delta)
        return super().assign_add(delta, *args, **kwargs)

    def assign_sub(self, delta, *args, **kwargs):
        self.original.assign_sub(delta)
        return super().assign_sub(delta, *args, **kwargs)


def copy_of_worker(original: tf.Variable, name: str, value: tf.Tensor) -> _CopyOfWorker:
    """Returns a copy on the worker that runs the function which is being traced.

    Args:
        original: A trainable variable on a parameter server.
        name: Which one it is, among all of that worker's process.
        value: What it holds.
    """
    arguments = _arguments_of_worker(original, name)
    handle = arguments["handle"]
    # The gradient of a loop asks for the shape of a variable without waiting for more than this.
    with tf.control_dependencies([tf.raw_ops.AssignVariableOp(resource=handle, value=value)]):
        arguments["handle"] = tf.identity(handle)
    copy = _CopyOfWorker(**arguments, trainable=True)
    copy.original = original
    return copy


def numbers_of_worker(name: str, count: int) -> tf.Tensor:
    """Returns what `note_numbers_of_worker` left on this worker: int64 [count], 0 before."""
    handle = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[count], shared_name=name)
    return tf.cond(
        tf.raw_ops.VarIsInitializedOp(resource=handle),
        lambda: tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64),
        lambda: tf.zeros([count], tf.int64),
    )


def note_numbers_of_worker(name: str, numbers: tf.Tensor) -> None:
    """Leaves numbers on the worker that runs the function which is being traced.

    Args:
        name: Which ones, among all of that worker's process.
        numbers: int64 [count].
    """
    handle = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=numbers.shape, shared_name=name)
    tf.raw_ops.AssignVariableOp(resource=handle, value=numbers)


@contextlib.contextmanager
def standing_in(variables: list[keras.Variable], values: list) -> Generator[None]:
    """Lets other variables of TensorFlow's stand in for those that Keras' variables hold."""
    own = [variable._value for variable in variables]
    for variable, value in zip(variables, values, strict=False):
        variable._value = value
    try:
        yield
    finally:
        for variable, value in zip(variables, own, strict=True):
            variable._value = value


def serialized(dataset: tf.data.Dataset) -> tf.Tensor:
    """Returns the GraphDef of a dataset, with all that is in it, as a scalar string."""
    return coordinator_values.serialize_dataset_to_graph(dataset)


def deserialized(graph: tf.Tensor, element_spec) -> tf.data.Dataset:
    """Returns a copy of a dataset, on whichever task it is called.

    Args:
        graph: Of `serialized`.
        element_spec: Of the dataset.
    """
    return coordinator_values.deserialize_dataset_from_graph(graph, element_spec)


def datasets_of_workers(coordinator, makers: list[Callable]):
    """Returns a dataset on each worker, for `iterators_of_workers`.

    TensorFlow's `create_per_worker_dataset` makes the same dataset on all of them. A worker that is
    started again gets its own anew.

    Args:
        coordinator: A ClusterCoordinator.
        makers: For each worker a function that returns its dataset.
    """
    functions = {id(make): tf.function(make).get_concrete_function() for make in makers}
    datasets = []
    for worker, make in zip(coordinator._cluster.workers, makers, strict=True):
        function = functions[id(make)]
        dataset = worker.create_resource(functools.partial(_call, function))
        dataset._type_spec = input_lib.get_iterator_spec_from_dataset(
            coordinator.strategy, function.structured_outputs
        )
        datasets.append(dataset)
    return coordinator_values.PerWorkerValues(tuple(datasets))


def _call(function):
    return function()


def iterators_of_workers(coordinator, datasets, state):
    """Returns an iterator on each worker, as one value to be passed to what is scheduled.

    Args:
        coordinator: A ClusterCoordinator.
        datasets: Of `datasets_of_workers`.
        state: Of `state_of`; of an iterator over the same dataset.
    """
    iterators = []
    for worker, dataset in zip(coordinator._cluster.workers, datasets._values, strict=True):
        iterator = worker.create_resource(
            functools.partial(iterator_over, state=state), args=(datasets,)
        )
        iterator._type_spec = dataset._type_spec
        iterators.append(iterator)
    return coordinator_values.PerWorkerDistributedIterator(tuple(iterators))


def state_of(iterator: Any) -> tf.Tensor | None:
    """Returns where an iterator stands, which random order it has included; None if unknown.

    TensorFlow's checkpoints can write it to a file only.
    """
    try:
        state = tf.raw_ops.SerializeIterator(
            resource_handle=iterator._iterator_resource,
            external_state_policy=options_lib.ExternalStatePolicy.IGNORE.value,
        )
    except tf.errors.UnimplementedError:  # Some datasets, such as those of a data service.
        return None
    return tf.io.serialize_tensor(state)


def iterator_over(dataset: tf.data.Dataset, state: tf.Tensor | None) -> tf.data.Iterator:
    """Returns an iterator that stands where another one over the same dataset stood."""
    iterator = iter(dataset)
    if state is not None:
        tf.raw_ops.DeserializeIterator(
            resource_handle=iterator._iterator_resource,
            serialized=tf.io.parse_tensor(state, tf.variant),
        )
    return iterator


def report_lost_workers(coordinator, *, on_lost: Callable, on_back: Callable) -> None:
    """Calls functions of a worker's index where TensorFlow logs pages of its transport's errors.

    Args:
        coordinator: A ClusterCoordinator.
        on_lost: Called once when a worker is lost.
        on_back: Called when it is there again.
    """
    for worker in coordinator._cluster.workers:
        _report_lost_worker(worker, on_lost, on_back)
    logger = tf.get_logger()
    logger.addFilter(lambda record: not str(record.msg).startswith(LOST_WORKER_MESSAGES))


def _report_lost_worker(worker, on_lost, on_back):
    is_lost = threading.Event()

    def after(stock, report, *, if_lost):
        def method(*args):
            if is_lost.is_set() == if_lost:
                (is_lost.clear if if_lost else is_lost.set)()
                report(worker.worker_index)
            return stock(*args)

        return method

    for name in ("_on_closure_failure", "_on_resource_closure_failure"):
        setattr(worker, name, after(getattr(worker, name), on_lost, if_lost=False))
    worker._on_worker_recovery = after(worker._on_worker_recovery, on_back, if_lost=True)


def stop(coordinator, wait_secs: float = 5.0) -> None:
    """Ends the threads of a coordinator before Python does: one that still runs aborts the process.

    Not TensorFlow's own way, which waits for every lost worker to come back.

    Args:
        coordinator: A ClusterCoordinator.
        wait_secs: How long to wait for a thread that runs something on a worker.
    """
    cluster = coordinator._cluster
    for worker in cluster.workers:
        worker.stop()
    cluster.closure_queue.stop()
    deadline = time.monotonic() + wait_secs
    for thread in threading.enumerate():
        if thread.name.startswith(COORDINATOR_THREADS):
            thread.join(max(0.0, deadline - time.monotonic()))


def concrete_function(coordinator, function, args: tuple):
    """Returns a function traced for arguments of `schedule`, which spares the chief a search."""
    queue = coordinator._cluster.closure_queue
    with coordinator.strategy.scope(), traced_for_workers(coordinator.strategy):
        closure = cluster_coordinator.Closure(function, queue._cancellation_mgr, args=args)
    return closure._concrete_function


@contextlib.contextmanager
def traced_for_workers(strategy) -> Generator[None]:
    """Tells a ParameterServerStrategy, which warns otherwise, that workers will run the trace."""
    names.overwrite(strategy.extended, "_being_scheduled", True)
    try:
        yield
    finally:
        names.overwrite(strategy.extended, "_being_scheduled", False)


def schedule(coordinator, concrete_function, args: tuple):
    """Schedules a function that is traced already, without what only tracing needs."""
    return coordinator._cluster.schedule(concrete_function, args, {})


def copy_results_first(coordinator) -> None:
    """Lets a coordinator announce a result when the chief has it.

    TensorFlow announces it before it has copied it from the worker: to fetch it from one that has
    halted meanwhile would block the caller for ever.
    """
    cluster = coordinator._cluster
    chief = f"/job:{context.get_server_def().job_name}/replica:0/task:0/device:CPU:0"

    def schedule(function, args, kwargs):
        queue = cluster.closure_queue
        closure = cluster_coordinator.Closure(function, queue._cancellation_mgr, args, kwargs)
        run = closure._function

        def run_and_copy(*args, **kwargs):
            outputs = run(*args, **kwargs)
            with tf.device(chief):
                return tf.nest.map_structure(_copy, outputs)

        closure._function = run_and_copy
        result = closure.build_output_remote_value()
        queue.put(closure)
        return result

    cluster.schedule = schedule


def _copy(output):
    return tf.identity(output) if tf.is_tensor(output) else output


def wait_for(result, secs: float) -> bool:
    """Waits until what was scheduled has ended, at most so long; returns whether it has."""
    return result._status_available_event.wait(secs)


def add_in_place(variable: keras.Variable, value) -> None:
    """Adds to a variable where it lives, in one operation."""
    with tf.device(variable._value.device):  # A constant need not be sent.
        variable._value.assign_add(tf.cast(value, variable._value.dtype), read_value=False)


def set_heartbeat_timeout(cluster: Cluster, secs: float) -> None:
    """Sets how long a worker may be silent; call it before the strategy is made.

    TensorFlow has no other way than its private one, and leaves alone what is set already.
    """
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{cluster.chief.job}/replica:0/task:{cluster.chief.index}",
        heartbeat_timeout_in_ms=int(secs * 1000),
        coordinated_jobs=[
            # Protocol buffers make their classes at run time.
            coordination_config_pb2.CoordinatedJob(  # ty: ignore[missing-attribute]
                name=job, num_tasks=len(addresses)
            )
            for job, addresses in cluster.jobs.items()
        ],
    )


def global_seed() -> int | None:
    """Returns the seed that the user gave TensorFlow; its public way to ask draws a number."""
    return context.global_seed()


def post_to_workers(key: str) -> None:
    """Sets a key at TensorFlow's coordination service, once."""
    context.context().set_config_key_value(key, "posted")


def is_posted_to_workers(key: str, *, secs: float) -> bool:
    """Waits until a worker has set a key, at most so long; returns whether one has."""
    try:
        context.context().get_config_key_value(key, int(secs * 1000))
    except tf.errors.DeadlineExceededError:
        return False
    return True


def report_error(message: str) -> None:
    """Lets the collectives of all other workers fail with a message."""
    context.context().report_error_to_cluster(tf.errors.UNAVAILABLE, message)


def check_not_started() -> None:
    """Checks that TensorFlow can still become part of a cluster.

    Raises:
        RuntimeError: It has made its devices already.
    """
    if context.context()._initialized:
        raise RuntimeError(
            "TensorFlow has started without the cluster: a tensor, a model or a list of devices "
            "was made before. Call `make_strategy` first in the program, right after the imports; "
            "TF_CONFIG must be set by then."
        )


def is_adapted(strategy) -> bool:
    """Whether `strategy` is one of ours."""
    return strategy in _adapted


def _is_stock(thing) -> bool:
    return str(getattr(thing, "__module__", "")).startswith("keras.src.")
