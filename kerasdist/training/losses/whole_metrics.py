"""Update custom metrics with all examples on every replica.

Keras' metrics add up: each replica counts its own examples, and the sum over the replicas is what
one device counts. A metric of one's own may be a maximum, the last value, or a function such as
`metrics=[rmse]`, which gives a number per batch. Each replica therefore shows the others what such
a metric is given, and all of them compute it from all examples, as one device does. They hold the
same numbers, of which the first replica's are read.
"""

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import custom_parts, variable_adapter
from kerasdist.support import memory
from kerasdist.support.replaced_method import method_replaced
from kerasdist.support.users_line import warn
from kerasdist.training.context import peers, traits
from kerasdist.training.losses import all_examples
from kerasdist.training.replica import custom_attributes, replicas
from kerasdist.training.replica.replicas import Part, Replica


def prepare(model: keras.Model) -> None:
    """Lets those metrics of `model` read what the first replica holds, before they are reset."""
    for metric in _prepared(model):
        _read_first(metric)


@contextlib.contextmanager
def updated_with_all(model: keras.Model) -> Generator[None]:
    """Updates those metrics of `model` with all examples, in a step that is run inside."""
    with contextlib.ExitStack() as stack:
        for metric in _prepared(model):
            stack.enter_context(method_replaced(metric, "update_state", _update, metric))
        yield


def note_others(model: keras.Model, *, are_whole: bool) -> None:
    """Lets metrics of the user's that a step has updated by another method read as they count.

    Args:
        model: Of which a step has been traced, which makes metrics.
        are_whole: Whether each replica had the whole batch, of which the first one's numbers are
            read then; otherwise they are sums over the replicas.
    """
    if are_whole:
        for metric in custom_parts.metrics_of(model):
            _read_first(metric)
        return
    for metric in _prepared(model):
        if not memory.of_part(metric).is_updated_with_all:
            # What a checkpoint has given to each replica counts once.
            _keep_first(metric, model.distribute_strategy)
            _read_sum(metric)


def read_as_counted(model: keras.Model, *, are_whole: bool) -> None:
    """Lets all metrics of `model` read as the steps count that come next.

    Args:
        model: A compiled model.
        are_whole: Whether each replica counts the whole batch.
    """
    notes = memory.of_model(model)
    if notes.counts_whole_batches == are_whole:
        return
    notes.counts_whole_batches = are_whole
    for metric in custom_parts.metrics_of(model):
        if not are_whole and memory.of_part(metric).is_updated_with_all:
            continue
        for variable in metric.variables:
            total = variable.value.read_value()  # Before the others forget their part of it.
            (variable_adapter.read_first_replica if are_whole else variable_adapter.read_sum)(
                variable.value
            )
            variable.value.assign(total)


def update_function(
    replica: Replica, original: Callable, metric: keras.Metric, *args: Any, **kwargs: Any
) -> Any:
    """Stands before `update_state` of a metric that is made of a function, the user's or Keras'.

    `compile` makes such a metric when it first sees predictions.
    """
    if custom_parts.adds_up(metric):
        return original(metric, *args, **kwargs)

    def update_state(*args: Any, **kwargs: Any) -> Any:
        return original(metric, *args, **kwargs)

    return _update(update_state, metric, *args, **kwargs)


def _prepared(model: keras.Model) -> list:
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync == 1 or traits.is_async(strategy):
        return []
    return custom_parts.custom_metrics_of(model)


def _update(update_state: Callable, metric: keras.Metric, *args: Any, **kwargs: Any) -> Any:
    replica = replicas.current()
    if not isinstance(replica, Part):
        return update_state(*args, **kwargs)
    reason = all_examples.reason_to_stay_apart((args, kwargs), replica)
    if reason is not None:
        _add_up(metric, reason)
        return update_state(*args, **kwargs)
    memory.of_part(metric).is_updated_with_all = True
    _read_first(metric)
    args, kwargs = all_examples.of_all((args, kwargs), replica)
    # What a metric holds in Python, lists as a rule, exists once for all replicas here.
    first, *_ = peers.local_replicas(tf.distribute.get_strategy())
    others = [] if peers.replica_id() == first else [metric]
    with all_examples.as_one_device(replica), custom_attributes.each_kept(others):
        return update_state(*args, **kwargs)


def _read_first(metric: keras.Metric) -> None:
    for variable in metric.variables:
        variable_adapter.read_first_replica(variable.value)


def _keep_first(metric: keras.Metric, strategy: tf.distribute.Strategy) -> None:
    """Lets the first replica alone hold what all do; in a trace, before the step that it is of."""
    if tf.executing_eagerly():  # The step has run, and they hold their shares.
        return
    with tf.init_scope():
        for variable in metric.variables:
            if variable_adapter.reads_first_replica(variable.value):
                copies = strategy.experimental_local_results(variable.value)
                has_first = peers.local_replicas(strategy).start == 0
                for copy in copies[has_first:]:
                    copy.assign(tf.zeros_like(copy))


def _read_sum(metric: keras.Metric) -> None:
    for variable in metric.variables:
        variable_adapter.read_sum(variable.value)


def _add_up(metric: keras.Metric, reason: str) -> None:
    _read_sum(metric)
    warn(
        f"The metric '{metric.name}' is updated {reason}, so each replica updates it with its own "
        "examples alone. Its result is that of the sums of its variables, which is another one "
        "than on one device unless they add up, as totals and counts do."
    )
