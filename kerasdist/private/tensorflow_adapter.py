"""The private names of TensorFlow, each with its reason; those of its coordinator stand beside.

A strategy of ours is one of TensorFlow's, of which `adapt` changes how it makes variables and
updates them. The rest is asked for where TensorFlow has no public way.

tests/private/test_tensorflow_adapter.py fails when one of these names moves. Written against
TensorFlow 2.20 and 2.21.
"""

import contextlib
import functools
import itertools
import random
import re
import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.data.experimental.ops import distribute as tf_distribute
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.data.ops import options as options_lib
from tensorflow.python.distribute import (
    collective_all_reduce_strategy,
    distribute_lib,
    sharded_variable,
    values,
)
from tensorflow.python.distribute.coordinator import values as coordinator_values
from tensorflow.python.eager import context, record
from tensorflow.python.ops import (
    collective_ops,
    gen_random_ops,
    gen_resource_variable_ops,
    gen_state_ops,
    gen_stateful_random_ops,
    gen_stateless_random_ops,
    gen_stateless_random_ops_v2,
)

from kerasdist.private import names

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
# What TensorFlow's ParameterServerStrategy makes of a variable that its partitioner divides.
ShardedVariable = sharded_variable.ShardedVariable

_collective_key_bases = itertools.count(1000, 1000)
_adapted = weakref.WeakSet()


def is_adapted(strategy) -> bool:
    """Whether `strategy` is one of ours."""
    return strategy in _adapted


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


def owner_of(variable):
    """Returns the strategy in whose scope a variable was created; None outside of scopes.

    TensorFlow's public `variable_created_in_scope` asks one strategy.
    """
    return getattr(variable, "_distribute_strategy", None)


@contextlib.contextmanager
def wide_broadcasts() -> Generator[None]:
    """Lets several workers make variables of all dtypes of numbers.

    TensorFlow sends the first value from the chief, and cannot send bfloat16 or int8, for example:
    these are sent as a wider one, which keeps every value.
    """
    send, receive = collective_ops.broadcast_send, collective_ops.broadcast_recv

    def send_wide(value, shape, dtype, *args):
        wide = _sendable(dtype)
        return send(value if wide == dtype else tf.cast(value, wide), shape, wide, *args)

    def receive_wide(shape, dtype, *args):
        wide = _sendable(dtype)
        value = receive(shape, wide, *args)
        return value if wide == dtype else tf.cast(value, dtype)

    replaced = {
        (collective_ops, "broadcast_send"): send_wide,
        (collective_ops, "broadcast_recv"): receive_wide,
    }
    with names.replaced(replaced):
        yield


def _sendable(dtype: tf.DType) -> tf.DType:
    if dtype.size >= 4 or dtype == tf.float16 or dtype == tf.bool:
        return dtype
    # Whether float8 is called floating depends on the version of ml_dtypes.
    return tf.int32 if dtype.is_integer else tf.float32


def parsed_profile(content: bytes):
    """Returns the profile of `tf.profiler.experimental.stop`, an XSpace message.

    TensorFlow writes it, and has no public class to read it.
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    return xplane_pb2.XSpace.FromString(content)  # ty: ignore[missing-attribute]


def adapt_parameter_servers(
    strategy,
    *,
    is_local_update: Callable[[], bool],
    update: Callable,
    update_outside: Callable,
    create: Callable,
) -> None:
    """Adapts the variables and updates of a ParameterServerStrategy; see `adapt`.

    Args:
        strategy: A ParameterServerStrategy of TensorFlow's.
        is_local_update: As in `adapt`.
        update: Called as update(variable, function, args, kwargs, group) for such an update.
        update_outside: Called as update_outside(stock, variable, function, args, kwargs, group) for
            all others.
        create: Called as create(create_on, next_creator, **kwargs) for variables. What it calls in
            turn is create_on(server, in_parts, next_creator, **kwargs).
    """
    _adapted.add(strategy)
    extended = strategy.extended
    if extended._num_replicas_in_sync == 1:
        extended._use_merge_call = lambda: not is_local_update()
        names.overwrite(extended, "_replica_ctx_update", update)
    extended._update = functools.partial(update_outside, extended._update)
    stock, partitioner = extended._create_variable, extended._variable_partitioner

    def create_on(server, in_parts, next_creator, **kwargs):
        extended._variable_partitioner = partitioner if in_parts else None
        # TensorFlow takes them in turn: this one is next.
        names.overwrite(extended, "_variable_count", server)
        return stock(next_creator, **kwargs)

    extended._create_variable = functools.partial(create, create_on)


def let_variables_be_numbers() -> None:
    """Lets variables of several devices, or in several parts, be arrays and numbers.

    As variables of one device are: `float(optimizer.learning_rate.value)`. TensorFlow has them
    raise TypeError and ValueError, so that nothing becomes different where it worked.
    """

    def as_array(variable, dtype=None, copy=None):
        return np.array(variable.numpy(), dtype, copy=copy)

    methods = {
        "__array__": as_array,
        "__float__": lambda variable: float(variable.numpy()),
        "__int__": lambda variable: int(variable.numpy()),
    }
    for kind in (values.DistributedVariable, ShardedVariable):
        for name, method in methods.items():
            setattr(kind, name, method)


def num_parameter_servers(strategy) -> int:
    """Returns how many tasks hold the variables; the public `cluster_resolver` is None here."""
    return strategy.extended._num_ps


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


def global_seed() -> int | None:
    """Returns the seed that the user gave TensorFlow; its public way to ask draws a number."""
    return context.global_seed()


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

    def backward(gradient):
        return [weigh(differentiable_sum, gradient) if weigh else differentiable_sum(gradient)]

    with without_gradient():
        (summed,) = sum_over_replicas([tf.identity(tensor)])
    give_gradient([summed], [tensor], backward, name="SumOverReplicas")
    return summed


def read_first_replica(variable) -> None:
    """Lets a variable with a value on each replica read as that of the first one of this worker."""
    if isinstance(variable, values.SyncOnReadVariable):
        variable._aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA


def reads_first_replica(variable) -> bool:
    """Whether that is so, or TensorFlow has been asked for it."""
    aggregation = getattr(variable, "aggregation", None)
    return aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA


def read_sum(variable) -> None:
    """Lets a variable with a value on each replica read as their sum, as it does at first."""
    if isinstance(variable, values.SyncOnReadVariable):
        variable._aggregation = tf.VariableAggregation.SUM


def without_gradient() -> contextlib.AbstractContextManager:
    """Returns a context in which no operation has a gradient; see `give_gradient`."""
    return record.stop_recording()


def give_gradient(outputs: list, inputs: list, backward: Callable, *, name: str) -> None:
    """Gives outputs that were computed without one a gradient.

    TensorFlow's public `custom_gradient` walks through the graph, of all replicas, for variables.

    Args:
        outputs: Tensors.
        inputs: The tensors that they depend on.
        backward: Called with the gradients of the outputs; returns those of the inputs. What it
            computes with the outputs and inputs is differentiable in turn.
        name: Of the operation, for TensorFlow's messages.
    """
    record.record_operation(name, outputs, inputs, backward)


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


def _value_of(handle):
    """Returns what a variable holds; None for one that is being made."""
    if not gen_resource_variable_ops.var_is_initialized_op(handle):
        return None
    dtype = handle._handle_data.shape_and_type[0].dtype
    with record.stop_recording():
        return gen_resource_variable_ops.read_variable_op(handle, dtype)


@contextlib.contextmanager
def one_replica_seen(is_seen: Callable[[], bool]) -> Generator[list]:
    """Lets programs see one replica in the threads where `is_seen()`: it has nobody to add up with.

    Nor has it somebody to gather from, and it is the first. TensorFlow's strategies compute with a
    number of their own, and work as they do.

    Yields:
        A list with an item for each time that the number of replicas was asked for there.
    """
    questions: list = []
    strategy, replica = distribute_lib.StrategyBase, distribute_lib.ReplicaContextBase
    gatherer = distribute_lib.ReplicaContext
    stock_number, stock_reduce = strategy.num_replicas_in_sync.fget, replica.all_reduce
    stock_id, stock_gather = replica.replica_id_in_sync_group.fget, gatherer.all_gather

    def number(owner):
        if not is_seen():
            return stock_number(owner)
        questions.append(owner)
        return 1

    def all_reduce(owner, reduce_op, value, options=None):
        if not is_seen():
            return stock_reduce(owner, reduce_op, value, options)
        return tf.nest.map_structure(tf.identity, value, expand_composites=True)

    def all_gather(owner, value, axis, options=None):
        if not is_seen():
            return stock_gather(owner, value, axis, options)
        return tf.nest.map_structure(tf.identity, value)

    def replica_id(owner):
        # Programs find their own part of what is gathered by it.
        return tf.constant(0) if is_seen() else stock_id(owner)

    replaced = {
        (strategy, "num_replicas_in_sync"): property(number),
        (replica, "all_reduce"): all_reduce,
        (gatherer, "all_gather"): all_gather,
        (replica, "replica_id_in_sync_group"): property(replica_id),
    }
    with names.replaced(replaced):
        yield questions


def uses_of(variable: Any) -> list[tf.Operation]:
    """Returns what uses a variable so far in the function that is traced.

    Automatic control dependencies let whatever changes the variable wait for these.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    return graph.capture(variable.handle).consumers()


def batch_size_of(dataset) -> int | None:
    """Returns the number that a dataset batches by, its last one where there are several.

    None where it finds none: a dataset does not say what it is made of, but for its inputs.
    """
    while isinstance(dataset, tf.data.Dataset):
        size = tf.get_static_value(getattr(dataset, "_batch_size", None))
        inputs = dataset._inputs()
        if size is not None or len(inputs) != 1:
            return None if size is None else int(size)
        [dataset] = inputs
    return None


def num_shuffled(dataset) -> int:
    """Returns how many elements the shuffles, and other buffers, of a dataset hold at most."""
    sizes = (tf.get_static_value(getattr(each, "_buffer_size", 0)) for each in _chain(dataset))
    return sum(max(int(size or 0), 0) for size in sizes)


def calls_python(dataset) -> bool:
    """Whether Python makes elements of a dataset: a generator, a `py_function`."""
    functions = [wrapper.function for each in _chain(dataset) for wrapper in each._functions()]
    left, seen = [getattr(function, "graph", None) for function in functions], set()
    while left:  # Not by its GraphDef, which has copies of all constants.
        graph = left.pop()
        if graph is None:  # Of a function that was loaded, as of a SavedModel.
            continue
        if any("PyFunc" in operation.type for operation in graph.get_operations()):
            return True
        for name, function in graph._functions.items():
            if name not in seen:
                seen.add(name)
                left.append(getattr(function, "graph", None))
    return False


def cache_files(dataset) -> list[str]:
    """Returns the paths that a dataset was given for `cache`."""
    paths = (tf.get_static_value(getattr(each, "_filename", None)) for each in _chain(dataset))
    return [path.decode() for path in paths if path]


def _chain(dataset):
    """Yields a dataset and those that it is made of; none for what is no dataset of tf.data."""
    seen, left = set(), [dataset]
    while left:  # Long chains and datasets that are in several places: each is looked at once.
        each = left.pop()
        if id(each) not in seen and isinstance(each, tf.data.Dataset):
            seen.add(id(each))
            yield each
            left.extend(each._inputs())


def iterator_state(iterator) -> bytes | None:
    """Returns what tf.data needs to make an iterator of a dataset of its kind go on here.

    None where that says not all: for Python generators and random operations, and for what is no
    iterator of tf.data alone. TensorFlow makes it public through files only.
    """
    if not isinstance(iterator, iterator_ops.OwnedIterator):
        return None
    try:
        state = tf.raw_ops.SerializeIterator(
            resource_handle=iterator._iterator_resource,
            external_state_policy=tf.data.experimental.ExternalStatePolicy.FAIL.value,
        )
    except tf.errors.OpError:
        return None
    return tf.io.serialize_tensor(state).numpy()


def set_iterator_state(iterator, state: bytes) -> bool:
    """Gives an iterator a state of `iterator_state`; returns False where it is of another dataset.

    TensorFlow takes what it finds of it, and looks for no difference.
    """
    now = iterator_state(iterator)
    if now is None or _names_in(now) != _names_in(state):
        return False
    try:
        content = tf.io.parse_tensor(state, tf.variant)
        tf.raw_ops.DeserializeIterator(
            resource_handle=iterator._iterator_resource, serialized=content
        )
    except tf.errors.OpError:
        return False
    return True


def _names_in(state: bytes) -> set[bytes]:
    """Returns what a state is of, such as Iterator::Root::BatchV2::Shuffle."""
    return set(re.findall(rb"Iterator::Root[\w:\[\]]*", state))


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


def num_source_texts(dataset: tf.data.Dataset) -> int:
    """Returns how many texts, perhaps names of files, are the one source of a dataset; or 0.

    A dataset does not say what it is made of, but for its inputs.
    """
    while inputs := dataset._inputs():
        if len(inputs) > 1:
            return 0
        [dataset] = inputs
    spec = dataset.element_spec
    if not isinstance(spec, tf.TensorSpec) or spec.dtype != tf.string or spec.shape.rank != 0:
        return 0
    return max(int(dataset.cardinality()), 0)


def computed_batch_size(dataset: tf.data.Dataset) -> int | None:
    """Returns the size of a dataset's batches but for the last one, as TensorFlow computes it.

    It is what divides a batch between workers: None where batches may have any size.
    """
    size = int(tf_distribute.compute_batch_size(dataset))
    return size if size > 0 else None


def shard_by_file(dataset: tf.data.Dataset, num_shards: int, index: int):
    """Returns the part of a dataset that is in every `num_shards`-th of its files, or None.

    None where TensorFlow finds nothing that reads files.

    Args:
        dataset: Yields global batches of dense tensors, of a `computed_batch_size`.
        num_shards: Number of parts.
        index: Which part.

    Returns:
        Dataset of this part's share of each global batch.
    """
    batch_size = int(tf_distribute.compute_batch_size(dataset))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    try:
        shard = tf_distribute._AutoShardDataset(dataset.with_options(options), num_shards, index)
    except tf.errors.NotFoundError:
        return None
    return shard.rebatch((batch_size + num_shards - 1 - index) // num_shards)


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
