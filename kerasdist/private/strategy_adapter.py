"""Adapts TensorFlow's strategies to ours, and says how many replicas programs see.

A strategy of ours is one of TensorFlow's, of which `adapt` changes how it makes variables and
updates them. Importing this file changes nothing.

tests/private/test_strategy_adapter.py fails when one of these names moves. Written against
TensorFlow 2.20 and 2.21.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable, Generator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import collective_all_reduce_strategy, distribute_lib

from kerasdist.private import names
from kerasdist.support import memory


def is_adapted(strategy: object) -> bool:
    """Whether `strategy` is one of ours, which has a `training.context.deployment`."""
    return hasattr(strategy, "deployment")


def adapt(
    strategy: tf.distribute.Strategy,
    *,
    is_local_update: Callable[[], bool],
    create: Callable,
    run: Callable,
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
    _check_data(strategy)
    extended = strategy.extended
    uses_merge_call = extended._use_merge_call
    extended._use_merge_call = lambda: not is_local_update() and uses_merge_call()
    extended._create_variable = functools.partial(_unless_undone(create), extended._create_variable)


def _check_data(strategy: tf.distribute.Strategy) -> None:
    """Lets Keras' own `fit`, `evaluate` and `predict`, which begin with this, be an error."""
    distribute = _unless_undone(strategy.experimental_distribute_dataset)
    strategy.experimental_distribute_dataset = distribute


def _unless_undone(function: Callable) -> Callable:
    @functools.wraps(function)
    def check_and_call(*args: Any, **kwargs: Any):
        _check_not_undone()
        return function(*args, **kwargs)

    return check_and_call


def _check_not_undone() -> None:
    """Checks that functions of Keras are replaced: without them, weights would be wrong.

    Raises:
        RuntimeError: `kerasdist.undo` was called since.
    """
    if not memory.PROCESS.replacements:
        raise RuntimeError(
            "`kerasdist.undo()` has given Keras its functions back, and this model, layer or loop "
            "belongs to a strategy of kerasdist, which needs others. Call "
            "`kerasdist.make_strategy` again to train it, or make a model outside of "
            "`strategy.scope()`."
        )


def _route_run(strategy: tf.distribute.Strategy, run: Callable) -> None:
    """Lets `strategy.run` of a program ask first.

    Args:
        strategy: A strategy.
        run: Called as run(original, function, args, kwargs). Its `function` is what AutoGraph makes
            of the program's; what it gives to `original` in turn stays as it is.
    """
    original, run = strategy.run, _unless_undone(run)
    compiled: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    def on_replicas(function: Callable, args: tuple, kwargs: dict):
        return original(tf.autograph.experimental.do_not_convert(function), args, kwargs)

    @functools.wraps(original)  # AutoGraph leaves TensorFlow's own alone.
    def routed(fn: Any, args: tuple = (), kwargs: dict | None = None, options: Any = None):
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


def run(strategy: tf.distribute.Strategy, function: Callable, args: tuple = ()):
    """Runs a function on each replica, as TensorFlow does: see `_route_run`."""
    _check_not_undone()
    return type(strategy).run(strategy, function, args)


def adapt_parameter_servers(
    strategy: tf.distribute.Strategy,
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

    def create_on(server: int, in_parts: bool, next_creator: Callable, **kwargs: Any):
        extended._variable_partitioner = partitioner if in_parts else None
        # TensorFlow takes them in turn: this one is next.
        names.overwrite(extended, "_variable_count", server)
        return original(next_creator, **kwargs)

    extended._create_variable = functools.partial(_unless_undone(create), create_on)
    _check_data(strategy)


def num_parameter_servers(strategy: tf.distribute.Strategy) -> int:
    """Returns how many tasks hold the variables; the public `cluster_resolver` is None here."""
    return strategy.extended._num_ps


def separate_collectives(strategy: tf.distribute.Strategy) -> None:
    """Gives a strategy collective keys of its own; call it before TensorFlow's constructor.

    All strategies of a process start at the same key, and a group of other devices under a key that
    is taken fails with "InternalError: CollectiveReduceV2" in every later strategy as well.
    """
    names.overwrite(strategy, "_collective_key_base", next(memory.PROCESS.collective_keys))


@contextlib.contextmanager
def devices_of_worker(devices: Sequence[str]) -> Generator[None]:
    """Makes a multi-worker strategy, constructed inside, use `devices` of its own worker.

    TensorFlow lets the cluster resolver name a number of GPUs, and always takes one CPU.
    """
    extended = collective_all_reduce_strategy.CollectiveAllReduceExtended

    def local_devices(original: Callable, self, cluster_resolver: Any, worker_device: str):
        del original, cluster_resolver
        own = tuple(f"{worker_device}/device:{device}" for device in devices)
        return own, devices[0].partition(":")[0]

    with names.replaced({(extended, "_initialize_local_devices"): local_devices}):
        yield


def num_replicas(strategy: tf.distribute.Strategy) -> int:
    """Returns the number of replicas there are, whatever programs see."""
    return strategy.extended._num_replicas_in_sync


def replica_id() -> int:
    """Returns the position of the replica of this thread, whatever programs see."""
    position = tf.distribute.get_replica_context()._replica_id_in_sync_group
    return position if isinstance(position, int) else int(tf.get_static_value(position))


@contextlib.contextmanager
def one_replica_seen(
    is_seen: Callable[[], bool],
    *,
    all_reduce: Callable = lambda original, reduce_op, value: original(value),
) -> Generator[list]:
    """Lets programs see one replica in the threads where `is_seen()`: it has nobody to add up with.

    Nor has it somebody to gather from, and it is the first. TensorFlow's strategies compute with a
    number of their own, and work as they do.

    Args:
        is_seen: Whether the program in this thread is to see one.
        all_reduce: Called as all_reduce(original, reduce_op, value), also where it sees one.

    Yields:
        A list with an item for each time that the number of replicas was asked for there.
    """
    questions: list = []
    strategy, replica = distribute_lib.StrategyBase, distribute_lib.ReplicaContextBase
    gatherer = distribute_lib.ReplicaContext

    def number(original: Callable, owner: Any):
        if not is_seen():
            return original(owner)
        questions.append(owner)
        return 1

    def reduce(original: Callable, owner: Any, reduce_op: Any, value: Any, options: Any = None):
        def reduce_own(value: Any):
            own = _on_device(value)
            return own if is_seen() else original(owner, reduce_op, own, options)

        return all_reduce(reduce_own, reduce_op, value)

    def all_gather(original: Callable, owner: Any, value: Any, axis: Any, options: Any = None):
        if not is_seen():
            return original(owner, _on_device(value), axis, options)
        return tf.nest.map_structure(tf.identity, value)

    def replica_id(original: Callable, owner: Any):
        # Programs find their own part of what is gathered by it.
        return tf.constant(0) if is_seen() else original(owner)

    replaced = {
        (strategy, "num_replicas_in_sync"): number,
        (replica, "all_reduce"): reduce,
        (gatherer, "all_gather"): all_gather,
        (replica, "replica_id_in_sync_group"): replica_id,
    }
    with names.replaced(replaced):
        yield questions


def _on_device(value: Any):
    # Made on the replica's device: TensorFlow asks for one, which a batch on a worker has not.
    return tf.nest.map_structure(tf.identity, value, expand_composites=True)
