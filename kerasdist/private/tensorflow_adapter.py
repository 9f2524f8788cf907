"""The private names of TensorFlow, each with its reason; larger parts of it stand beside.

A strategy of ours is one of TensorFlow's, of which `adapt` changes how it makes variables and
updates them. The rest is asked for where TensorFlow has no public way.

tests/private/test_tensorflow_adapter.py fails when one of these names moves. Written against
TensorFlow 2.20 and 2.21.
"""

import contextlib
import functools
import itertools
import os
import weakref
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import psutil
import tensorflow as tf
from tensorflow.python.distribute import (
    collective_all_reduce_strategy,
    sharded_variable,
    values,
)
from tensorflow.python.eager import context, record
from tensorflow.python.framework import auto_control_deps_utils, config, op_callbacks
from tensorflow.python.ops import (
    collective_ops,
)

from kerasdist.private import names

# What TensorFlow's ParameterServerStrategy makes of a variable that its partitioner divides.
ShardedVariable = sharded_variable.ShardedVariable

_READ_ONLY_INPUTS = auto_control_deps_utils.READ_ONLY_RESOURCE_INPUTS_ATTR
_collective_key_bases = itertools.count(1000, 1000)
_started_in: set[int] = set()  # The processes that had TensorFlow's threads when they were asked.


def is_adapted(strategy) -> bool:
    """Whether `strategy` is one of ours, which has a `training.context.deployment`."""
    return hasattr(strategy, "deployment")


def adapt(
    strategy, *, is_local_update: Callable[[], bool], create: Callable, run: Callable
) -> None:
    """Adapts the variables and updates of `strategy` to what `fit` does with them.

    Args:
        strategy: A strategy of TensorFlow's.
        is_local_update: Whether this thread updates only the variables of its own replica, with a
            gradient that is the same on all of them. TensorFlow then needs no merge_call, which is
            what lets an update stand inside `tf.cond`.
        create: Called as create(original, next_creator, **kwargs) for variables.
        run: See `_route_run`.
    """
    _route_run(strategy, run)
    extended = strategy.extended
    uses_merge_call = extended._use_merge_call
    extended._use_merge_call = lambda: not is_local_update() and uses_merge_call()
    extended._create_variable = functools.partial(create, extended._create_variable)


def _route_run(strategy, run: Callable) -> None:
    """Lets `strategy.run` of a program ask first.

    Args:
        strategy: A strategy.
        run: Called as run(original, function, args, kwargs). Its `function` is what AutoGraph makes
            of the program's; what it gives to `original` in turn stays as it is.
    """
    original = strategy.run
    compiled: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    def on_replicas(function, args, kwargs):
        return original(tf.autograph.experimental.do_not_convert(function), args, kwargs)

    @functools.wraps(original)  # As one of TensorFlow's, AutoGraph leaves it alone.
    def routed(fn, args=(), kwargs=None, options=None):
        if isinstance(fn, tf.types.experimental.PolymorphicFunction):
            # Replicas meet outside of it, as TensorFlow has it, too.
            python = fn.python_function
            if fn not in compiled:
                compiled[fn] = names.find(fn, "_clone")(
                    lambda *args, **kwargs: routed(python, args, kwargs)
                )
            return compiled[fn](*args, **(kwargs or {}))
        convert = tf.__internal__.autograph
        is_graph = not tf.executing_eagerly()
        converted = convert.tf_convert(fn, convert.control_status_ctx(), is_graph)
        return run(on_replicas, converted, args, kwargs or {})

    strategy.run = routed


def run(strategy, function, args=()):
    """Runs a function on each replica, as TensorFlow does: see `_route_run`."""
    return type(strategy).run(strategy, function, args)


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

    def send_wide(send, value, shape, dtype, *args):
        wide = _sendable(dtype)
        return send(value if wide == dtype else tf.cast(value, wide), shape, wide, *args)

    def receive_wide(receive, shape, dtype, *args):
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

    Raises:
        ValueError: It is no such profile.
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    try:
        return xplane_pb2.XSpace.FromString(content)  # ty: ignore[missing-attribute]
    except Exception as error:  # Protobuf's own, which TensorFlow brings with it.
        raise ValueError("it cannot be parsed") from error


def full_names(object_graph: bytes) -> dict[str, str]:
    """Returns the names of variables by their keys in a checkpoint of objects.

    TensorFlow has no public class to read the message in which such a checkpoint has them.

    Args:
        object_graph: That message, a TrackableObjectGraph.
    """
    from tensorflow.core.protobuf import trackable_object_graph_pb2 as protocol

    graph = protocol.TrackableObjectGraph.FromString(object_graph)  # ty: ignore[missing-attribute]
    attributes = (attribute for node in graph.nodes for attribute in node.attributes)
    return {each.checkpoint_key: each.full_name for each in attributes}


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
        update_outside: Called as update_outside(original, variable, function, args, kwargs, group)
            for all others.
        create: Called as create(create_on, next_creator, **kwargs) for variables. What it calls in
            turn is create_on(server, in_parts, next_creator, **kwargs).
    """
    extended = strategy.extended
    if extended._num_replicas_in_sync == 1:
        extended._use_merge_call = lambda: not is_local_update()
        names.overwrite(extended, "_replica_ctx_update", update)
    extended._update = functools.partial(update_outside, extended._update)
    original, partitioner = extended._create_variable, extended._variable_partitioner

    def create_on(server, in_parts, next_creator, **kwargs):
        extended._variable_partitioner = partitioner if in_parts else None
        # TensorFlow takes them in turn: this one is next.
        names.overwrite(extended, "_variable_count", server)
        return original(next_creator, **kwargs)

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


@contextlib.contextmanager
def held_by_first_replica(variable, strategy) -> Generator[None]:
    """Lets the variable that is made inside hold another one as that of its first replica.

    What was compiled for that one, as `predict` of another model, then goes on with what the
    replicas make of it. TensorFlow makes a variable of several replicas of one for each. Nothing is
    held where the first replica is on another device, as with parameter servers.

    Args:
        variable: From outside of scopes.
        strategy: Whose scope is entered inside.
    """
    held = [variable] if variable.device == strategy.extended.worker_devices[0] else []

    def create(next_creator, **kwargs):
        if not held:
            return next_creator(**kwargs)
        value = kwargs["initial_value"]  # On several workers a function, which gets the chief's.
        variable.assign(value() if callable(value) else value)
        # A variable of replicas says of both what its first one does.
        for name in ("synchronization", "aggregation"):
            names.overwrite(variable, f"_{name}", kwargs[name])
        return held.pop()

    with tf.variable_creator_scope(create):
        yield


def reset_graph(reset: Callable) -> None:
    """Lets the scopes that are entered stay so where TensorFlow makes a new default graph.

    It has them in the graph, and would fail to leave them there.

    Args:
        reset: TensorFlow's own function, which Keras' `clear_session` calls.
    """
    entered = tf.compat.v1.get_default_graph()
    reset()
    graph = tf.compat.v1.get_default_graph()
    names.overwrite(graph, "_thread_local", names.find(entered, "_thread_local"))


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

    def local_devices(original, self, cluster_resolver, worker_device):
        del original, cluster_resolver
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


def check_not_forked() -> None:
    """Checks that this process has the threads of TensorFlow, if TensorFlow has started.

    Raises:
        RuntimeError: It is a copy of a process in which TensorFlow had started: its first step, or
            already its first model, would wait for ever.
    """
    if not context.context()._initialized or os.getpid() in _started_in:
        return
    # Of a parent that nobody has asked, the copy has one thread, where TensorFlow starts several.
    if _started_in or psutil.Process().num_threads() == 1:
        raise RuntimeError(
            "This process was forked from one in which TensorFlow had started, and has none of its "
            "threads: `fit` would wait for ever. Start it with "
            '`multiprocessing.get_context("spawn")`, or fork before the first tensor, model or '
            "strategy is made."
        )
    _started_in.add(os.getpid())


def global_seed() -> int | None:
    """Returns the seed that the user gave TensorFlow; its public way to ask draws a number."""
    return context.global_seed()


def is_deterministic() -> bool:
    """Whether `tf.config.experimental.enable_op_determinism` was called: there is no public way."""
    return config.is_op_determinism_enabled()


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
    """Whether a variable reads so: by `read_first_replica`, or as it was made."""
    aggregation = getattr(variable, "aggregation", None)
    return aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA


def read_sum(variable) -> None:
    """Lets a variable with a value on each replica read as their sum, as it does at first."""
    if isinstance(variable, values.SyncOnReadVariable):
        variable._aggregation = tf.VariableAggregation.SUM


def called_graph(operation: tf.Operation) -> tf.Graph | None:
    """Returns the graph of the function that an operation calls; None if it calls none.

    An operation has its function by name alone, and a graph keeps what it calls to itself.
    """
    if operation.type not in ("PartitionedCall", "StatefulPartitionedCall"):
        return None
    graph: Any = operation.graph
    return getattr(graph._functions.get(operation.get_attr("f").name), "graph", None)


def without_gradient() -> contextlib.AbstractContextManager:
    """Returns a context in which no operation has a gradient; see `give_gradient`."""
    return record.stop_recording()


def is_recorded() -> bool:
    """Whether a `tf.GradientTape` records what this thread computes."""
    return record.could_possibly_record()


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
def operations_told(tell: Callable) -> Generator[None]:
    """Tells of each operation that runs at once, in this thread and in those of its replicas.

    TensorFlow's debugger has no other way either.

    Args:
        tell: Called as tell(type, inputs, outputs) after it has run, with tensors.
    """

    def look(kind, inputs, attributes, outputs, op_name=None, graph=None):
        if graph is None:  # Else it is traced.
            tell(tf.compat.as_str(kind), inputs, outputs)  # Those of functions are bytes.

    op_callbacks.add_op_callback(look)
    try:
        yield
    finally:
        op_callbacks.remove_op_callback(look)


def is_being_vectorized() -> bool:
    """Whether this is traced for `tf.vectorized_map` or `tape.jacobian`, in the graph around it."""
    scopes = tf.get_current_name_scope().split("/")
    return any(scope.startswith("loop_body") for scope in scopes)


def uses_of(variable: Any) -> list[tf.Operation]:
    """Returns what uses a variable so far in the function that is traced.

    Automatic control dependencies let whatever changes the variable wait for these.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    return graph.capture(variable.handle).consumers()


def addend_of(variable: Any, value):
    """Returns x where a value that is traced is `variable + x`; None where it is something else."""
    operation = _maker_of(value)
    if operation.type != "AddV2":
        return None
    first, second = operation.inputs
    is_first, is_second = (_maker_of(each) in _reads_of(variable) for each in (first, second))
    if is_first == is_second:
        return None
    return second if is_first else first


def is_read_for(variable: Any, value) -> bool:
    """Whether a value that is traced is computed with what a variable was."""
    reads, seen, found = _reads_of(variable), set(), [value.op]
    while found:
        operation = found.pop()
        if operation in reads:
            return True
        if operation not in seen:
            seen.add(operation)
            found.extend(each.op for each in operation.inputs)
    return False


def _maker_of(tensor) -> tf.Operation:
    while tensor.op.type == "Identity":
        (tensor,) = tensor.op.inputs
    return tensor.op


def _reads_of(variable: Any) -> list[tf.Operation]:
    return [each for each in uses_of(variable) if each.type == "ReadVariableOp"]


def only_read_in(graph: Any) -> list:
    """Returns the variables that a function reads and never sets, when it has been traced.

    Operations that call further functions keep a list of what those only read, by which automatic
    control dependencies order them.
    """
    try:
        variables = graph.variables
    except AssertionError:  # One of them is there no longer.
        return []
    handles = {id(outer): inner for outer, inner in graph.captures}
    return [
        each
        for each in variables
        if (handle := handles.get(id(each.handle))) is not None
        and all(_only_reads(user, handle) for user in handle.consumers())
    ]


def _only_reads(operation: tf.Operation, handle) -> bool:
    if operation.type in ("ReadVariableOp", "VariableShape"):
        return True
    if _READ_ONLY_INPUTS not in operation.node_def.attr:
        return False
    positions = {place for place, each in enumerate(operation.inputs) if each is handle}
    return positions <= set(operation.get_attr(_READ_ONLY_INPUTS))
