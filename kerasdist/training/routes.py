"""The routes: which functions of Keras ask us first, and what we answer.

The constructor of each of our strategies calls `routes.adapt(strategy)`.
"""

import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import (
    coordinator_adapter,
    custom_parts,
    keras_layers,
    keras_routes,
    runtime,
    scopes,
    strategy_adapter,
    variable_adapter,
)
from kerasdist.support import memory
from kerasdist.training.context import (
    agreement,
    deployment,
    legacy_keras,
    peers,
    running_call,
    traits,
)
from kerasdist.training.data import batches, data_checks
from kerasdist.training.epochs.epoch_iterator import EpochIterator
from kerasdist.training.gradients import (
    custom_apply,
    delivered_updates,
    gradient_aggregation,
    randomness,
    whole_gradients,
)
from kerasdist.training.hooks import (
    divided_values,
    forgotten_scope,
    scope_checks,
    slots,
    update_callback,
    xla,
)
from kerasdist.training.hooks.graph_function import graph_function
from kerasdist.training.hooks.lazy_logs import LazyLogs, RecentLogs
from kerasdist.training.hooks.train_function import TrainFunction
from kerasdist.training.losses import batch_statistics, global_loss, loss_scale, whole_metrics
from kerasdist.training.parameter_servers import delivery as remote_delivery
from kerasdist.training.parameter_servers import sharded_variables
from kerasdist.training.parameter_servers import step_function as worker_step_function
from kerasdist.training.parameter_servers.epoch_iterator import WorkerEpochIterator
from kerasdist.training.parameter_servers.predict_function import WorkerPredictFunction
from kerasdist.training.parameter_servers.step_function import WorkerStepFunction
from kerasdist.training.replica import replicas
from kerasdist.training.replica.delivery import LocalDelivery
from kerasdist.training.replica.replicas import (
    OF_STEP,
    Divided,
    Part,
    Peer,
    Replica,
    StepOptions,
)
from kerasdist.training.report import chief, model_file
from kerasdist.training.report.callback_list import CallbackList
from kerasdist.training.step import (
    custom_functions,
    inner_functions,
    reduction_notes,
    replica_run,
    variable_creation,
)
from kerasdist.training.step.predict_function import PredictFunction
from kerasdist.training.step.step_function import StepFunction
from kerasdist.training.synchronous_servers import choice
from kerasdist.training.trial import evaluate, fit, predict


def adapt(strategy: tf.distribute.Strategy) -> None:
    """Makes `fit`, `evaluate` and `predict` of models created in `strategy`'s scope ours."""
    lay(strategy)
    is_local_update = replicas.is_local_update
    if traits.has_remote_variables(strategy):
        num_servers = strategy_adapter.num_parameter_servers(strategy)
        strategy_adapter.adapt_parameter_servers(
            strategy,
            is_local_update=is_local_update,
            update=remote_delivery.update_in_place,
            update_outside=sharded_variables.update_outside,
            create=_refusing_legacy_keras(sharded_variables.ByteBalance(num_servers).create),
        )
    else:
        create = _refusing_legacy_keras(variable_creation.creator_for(strategy))
        run = functools.partial(replica_run.run_custom_loop, strategy)
        strategy_adapter.adapt(strategy, is_local_update=is_local_update, create=create, run=run)


def _refusing_legacy_keras(create: Callable):
    """Returns `create`, which looks for tf_keras first: its models make variables to begin with."""

    def look_and_create(*args: Any, **kwargs: Any):
        legacy_keras.refuse(strategy_adapter.is_adapted)
        return create(*args, **kwargs)

    return look_and_create


def lay(strategy: tf.distribute.Strategy) -> None:
    """Replaces functions of Keras and TensorFlow for `strategy`, unless that is done.

    `kerasdist.undo` gives all of them back.

    Raises:
        RuntimeError: Keras was imported anew since; see `keras_routes.check_is_loaded_once`.
    """
    keras_routes.check_is_loaded_once()
    _lay()
    if deployment.of(strategy).remote:
        _lay_for_workers(strategy)


@functools.cache
def _lay():
    keras_routes.route(_FUNCTIONS)
    variable_adapter.let_variables_be_numbers()
    reduction_notes.hide()
    memory.PROCESS.replacements.append(_lay.cache_clear)


@functools.cache
def _lay_for_workers(strategy: tf.distribute.Strategy):
    remote = deployment.remote_workers(strategy)
    coordinator_adapter.before_each_seed(remote.occupation.make_way)
    coordinator_adapter.before_each_new_function(remote.watch.wait_for_halted_workers)
    coordinator_adapter.let_control_flow_ask_at_call_time()
    coordinator_adapter.hide_lost_workers()
    memory.PROCESS.replacements.append(_lay_for_workers.cache_clear)


def _is_ours(model: keras.Model | None) -> bool:
    return model is not None and strategy_adapter.is_adapted(scopes.strategy_of(model))


def _make_train_function(original: Callable, model: keras.Model, force: bool = False):
    if not _is_ours(model):
        return original(model, force)
    training = running_call.training_of(model)
    callbacks = training.update_callbacks if training else ()
    if force or not _fits(model.train_function, callbacks):
        _check(model)
        element_spec = training.element_spec if training else None
        if callbacks and element_spec is not None and model.train_function is None:
            _make_variables(model, element_spec)
        with model.distribute_strategy.scope():
            for callback in callbacks:
                callback.prepare(model)
                callback.prepared_for = weakref.ref(model)
        model.train_function = _make_step(
            model,
            model.train_step,
            returns_metrics=custom_parts.returns_original_metrics(model, "train_step"),
            weighs_loss=custom_parts.is_original_step(model.train_step),
            callbacks=callbacks,
            before_first=functools.partial(slots.make, model),
            trial=fit.TrialOfFit.warn_of_differences if fit.is_due(model) else None,
        )
    if training:
        training.joins_batches = model.train_function.joins_batches
    model.train_function.restart()
    custom_functions.note_ours(model.train_function)
    return model.train_function


def _check(model: keras.Model):
    """Refuses what a step cannot do here, before callbacks prepare for it or anything is traced."""
    scope_checks.check(model)
    if traits.is_async(model.distribute_strategy):
        worker_step_function.check(model)
    elif traits.has_remote_variables(model.distribute_strategy):
        worker_step_function.check_compiled(model)


def _make_step(
    model: keras.Model, step: Callable, *, trial: Any, **arguments: Any
) -> TrainFunction:
    strategy = model.distribute_strategy
    if traits.has_remote_variables(strategy):
        if traits.is_async(strategy) or not arguments.get("trains", True):
            return WorkerStepFunction(model, step, **arguments)
        training = running_call.training_of(model)
        dataset = training.dataset if training else None
        return choice.make_step(model, step, dataset=dataset, **arguments)
    whole_metrics.prepare(model)
    return StepFunction(model, step, trial=trial, **arguments)


def _fits(train_function: Any, callbacks: Any) -> bool:
    """Whether a compiled step has these callbacks in it, with the variables they hold now."""
    return (
        train_function is not None
        and train_function.callbacks == callbacks
        and all(callback.prepared_for() is callback.model for callback in callbacks)
    )


def _make_test_function(original: Callable, model: keras.Model, force: bool = False):
    if not _is_ours(model):
        return original(model, force)
    batch_statistics.synchronize(model)
    batch_statistics.synchronize_workers(model)
    if isinstance(model.train_function, TrainFunction):
        model.train_function.wait()  # In a callback of `fit`: Keras resets the metrics next.
    if model.test_function is None or force:
        _check(model)
        is_tried = evaluate.is_due(model)
        model.test_function = _make_step(
            model,
            model.test_step,
            returns_metrics=custom_parts.returns_original_metrics(model, "test_step"),
            weighs_loss=False,
            trains=False,
            trial=evaluate.TrialOfEvaluate.warn_of_differences if is_tried else None,
        )
    model.test_function.restart()
    custom_functions.note_ours(model.test_function)
    return model.test_function


def _compile(original: Callable, model: keras.Model, *args: Any, **kwargs: Any):
    if isinstance(model, keras.Model) and scopes.strategy_of(model) is None:
        scope_checks.adopt_if_inside(model)
    if not _is_ours(model):
        original(model, *args, **kwargs)
        return scope_checks.check_outsider(model, "compiled")
    with scopes.outside_scopes(), model.distribute_strategy.scope():
        result = original(model, *args, **kwargs)
    given = inspect.signature(original).bind(model, *args, **kwargs).arguments
    if given.get("jit_compile", "auto") != "auto":  # Keras reads what it was, which resolves it.
        memory.of_model(model).auto_xla = None
    return result


def _resolve_auto_jit(original: Callable, model: keras.Model) -> bool:
    return xla.resolve_auto(original, model) if _is_ours(model) else original(model)


def _outside_scopes(original: Callable, model: keras.Model, *args: Any, **kwargs: Any):
    """Calls a method of a model where `with strategy.scope():` around it makes no difference.

    Counters, logs and what callbacks make would be variables of the strategy in a scope, which all
    workers must make, and which are no plain numbers. A model from outside is read outside.
    """
    if not _is_ours(model):
        is_inside = strategy_adapter.is_adapted(tf.distribute.get_strategy())
        with scopes.outside_scopes() if is_inside else contextlib.nullcontext():
            return original(model, *args, **kwargs)
    runtime.check_not_forked()
    with scopes.outside_scopes(), custom_functions.adapted(model):
        return original(model, *args, **kwargs)


def _train_on_batch(original: Callable, model: keras.Model, *args: Any, **kwargs: Any):
    if not _is_ours(model):
        scope_checks.check_outsider(model, "trained")
    return _outside_scopes(original, model, *args, **kwargs)


def _write(original: Callable, model: keras.Model, *args: Any, **kwargs: Any):
    # Keras makes an optimizer, with its variables, to save a model.
    outside = functools.update_wrapper(functools.partial(_outside_scopes, original), original)
    with model_file.being_written():
        return chief.write(outside, model, *args, **kwargs)


def _write_file(original: Callable, model: keras.Model, *args: Any, **kwargs: Any):
    if not _is_ours(model) or model_file.is_being_written():
        return original(model, *args, **kwargs)
    whole = functools.update_wrapper(functools.partial(model_file.write, original), original)
    return _write(whole, model, *args, **kwargs)


def _write_by_function(
    name: str, original: Callable, model: keras.Model, *args: Any, **kwargs: Any
):
    """Writes a file by a function of Keras', which a program calls by `name`."""

    @functools.wraps(original)
    def write(*args: Any, **kwargs: Any):
        return original(*args, **kwargs)

    write.__name__ = name
    return _write_file(write, model, *args, **kwargs)


def _fit(original: Callable, model: keras.Model, *args: Any, **kwargs: Any):
    callbacks = ()
    if not _is_ours(model):
        scope_checks.check_outsider(model, "trained")
        if scopes.strategy_of(model) is None:
            forgotten_scope.warn_if_forgotten(model)
    else:
        given = None
        with contextlib.suppress(TypeError):  # Keras itself names wrong arguments.
            given = inspect.signature(original).bind_partial(model, *args, **kwargs)
            callbacks = update_callback.flattened(given.arguments.get("callbacks"))
        if given is not None:
            agreement.check_fit(model, update_callback.among(callbacks), given)
    known = {"callbacks": callbacks, "update_callbacks": update_callback.among(callbacks)}
    strategy = scopes.strategy_of(model)
    # TensorFlow waits for what runs on workers where a program sets its random seed.
    remote = deployment.of(strategy).remote
    freed = remote.occupation.ended_behind() if remote else contextlib.nullcontext()
    # Watched also while it ends: where a thread has lost a peer, the watch ends this process.
    with peers.watched(strategy), running_call.entered("fit", model, **known), freed:
        return _outside_scopes(original, model, *args, **kwargs)


def _evaluate(
    original: Callable, model: keras.Model, *args: Any, callbacks: Any = None, **kwargs: Any
):
    with contextlib.ExitStack() as stack:
        if isinstance(callbacks, CallbackList):  # Only `fit` hands over a list that is made.
            for callback in update_callback.of_step(running_call.update_callbacks_of(model)):
                stack.enter_context(callback.validating(model))
        stack.enter_context(running_call.entered("evaluate", model))
        stack.enter_context(peers.watched(scopes.strategy_of(model)))
        results = _outside_scopes(original, model, *args, callbacks=callbacks, **kwargs)
        if _is_ours(model) and model.test_function is not None:
            data_checks.check_equal_lengths(
                model.distribute_strategy, model.test_function.num_examples
            )
        return results


def _predict(original: Callable, model: keras.Model, *args: Any, **kwargs: Any):
    data_checks.check_can_predict(model, args[0] if args else kwargs.get("x"))
    with running_call.entered("predict", model):
        return _outside_scopes(original, model, *args, **kwargs)


def _make_predict_function(original: Callable, model: keras.Model, force: bool = False):
    if not _is_ours(model):
        return original(model, force)
    batch_statistics.synchronize(model)
    if model.predict_function is None or force:
        scope_checks.check_variables(model)
        is_remote = traits.has_remote_variables(model.distribute_strategy)
        describe = predict.describe_difference
        model.predict_function = (
            WorkerPredictFunction(model)
            if is_remote
            else PredictFunction(model, describe_difference=describe)
        )
    model.predict_function.restart()
    return model.predict_function


def _build(original: Callable, model: keras.Model, iterator: Any = None, data_batch: Any = None):
    if not _is_ours(model):
        return original(model, iterator, data_batch)
    if model.train_function is None:
        scope_checks.check(model)
    spec = data_batch if iterator is None else iterator.element_spec
    if not custom_parts.has_original_steps(model):
        # Whether such a step calls the model, and with what, is for its first trace to say.
        training = running_call.training_of(model)
        if iterator is not None and training:
            training.element_spec = spec
        return
    try:
        with model.distribute_strategy.scope():
            keras_layers.build_from_spec(model, spec)
    except Exception as error:  # noqa: BLE001
        # What cannot be built now ends in the first trace, with the error of the user's own code.
        # Where workers differ or are lost, there is no model to trace.
        of_workers = variable_creation.error_of_workers(error)
        if of_workers is not None:
            raise of_workers from None


def _make_variables(model: keras.Model, element_spec: Any):
    """Traces the train_step of the user's for the variables that it makes."""
    strategy = model.distribute_strategy
    spec = tf.nest.map_structure(
        lambda leaf: None if leaf is None else tf.TensorSpec(leaf.shape, leaf.dtype), element_spec
    )

    step = replica_run.inlined(model.train_step, strategy)
    is_remote = traits.has_remote_variables(strategy)
    make_delivery = remote_delivery.RemoteDelivery if is_remote else LocalDelivery

    def run(batch: Any):
        # Any examples do, and what a step may not do with a share is said by the step that counts.
        shares = batches.whole_for_each(batch, strategy)
        replica_run.run(strategy, step, shares, options=StepOptions(make_delivery=make_delivery))

    traced = coordinator_adapter.traced_for_workers if is_remote else contextlib.nullcontext
    num_weights = len(model.weights)
    try:
        with traced(strategy), custom_apply.routed(model):
            graph_function(run).get_concrete_function(spec)
    except Exception:
        # With the weights, the step may do something else, or show this again.
        if len(model.weights) == num_weights:
            raise


def _epoch_logs(original: Callable, model: keras.Model, logs: dict):
    if not isinstance(logs, LazyLogs):
        return original(model, logs)
    if isinstance(logs, RecentLogs):
        return original(model, logs.exact())
    callbacks = update_callback.of_step(running_call.update_callbacks_of(model))
    averages = [each for callback in callbacks for each in callback.variables_of_replicas()]
    is_fit = running_call.is_fit()
    with peers.end_of_epoch(model.distribute_strategy) if is_fit else contextlib.nullcontext():
        batch_statistics.synchronize_workers(model, averages)
        return original(model, logs.nested())


def _make_epoch_iterator(
    original: Callable, *args: Any, distribute_strategy: Any = None, **kwargs: Any
):
    make = original
    is_remote = traits.has_remote_variables(distribute_strategy)
    if is_remote and not running_call.reads_whole_data():
        make = WorkerEpochIterator
        if running_call.is_fit() and running_call.is_first_data():
            remote = deployment.remote_workers(distribute_strategy)
            kwargs["batches_per_step"] = remote.num_to_aggregate
    elif strategy_adapter.is_adapted(distribute_strategy):
        make = EpochIterator
    return make(*args, distribute_strategy=distribute_strategy, **kwargs)


def _gradient(
    original: Callable, tape: tf.GradientTape, target: Any, sources: Any, *args: Any, **kwargs: Any
):
    try:
        found = sharded_variables.gradient(original, tape, target, sources, *args, **kwargs)
    except ValueError:
        scope_checks.check_on_replica("`tape.gradient`")
        raise
    replica = replicas.current()
    return found if replica is None else whole_gradients.of_batch(replica, found, target, sources)


def _reset_graph(original: Callable):
    # In `fit` a scope around it is left for its callbacks.
    if strategy_adapter.is_adapted(tf.distribute.get_strategy()) or running_call.is_fit():
        return scopes.reset_graph(original)
    return original()


def _embed(original: Callable, layer: keras.layers.Layer, inputs: Any):
    is_plain = not layer.lora_enabled and layer.quantization_mode is None
    # While a model is built from shapes alone, there is no variable yet.
    is_plain = is_plain and divided_values.is_variable(layer.embeddings.value)
    if is_plain and traits.has_remote_variables(tf.distribute.get_strategy()):
        return sharded_variables.embed(layer, inputs)
    return original(layer, inputs)


def _make_callback_list(
    original: Callable, made: keras.callbacks.CallbackList, *args: Any, **kwargs: Any
):
    if type(made) is keras.callbacks.CallbackList and _is_ours(kwargs.get("model")):
        # Python cannot take a `__new__` back that a class had from `object`.
        made.__class__ = CallbackList
        return made.__init__(*args, **kwargs)
    return original(made, *args, **kwargs)


def _on(kind: type | tuple, function: Callable) -> Callable:
    """Returns a route that asks `function` on a replica of some kind, and is Keras' own elsewhere.

    Args:
        kind: One or more classes of `Replica`.
        function: Called as function(replica, original, ...).
    """

    def route(original: Callable, *args: Any, **kwargs: Any) -> Any:
        replica = replicas.current()
        if not isinstance(replica, kind):
            return original(*args, **kwargs)
        return function(replica, original, *args, **kwargs)

    return route


# Those before Keras' own, by the names in `keras_routes.ROUTABLE`.
_FUNCTIONS = {
    "make_train_function": _make_train_function,
    "make_test_function": _make_test_function,
    "compile": _compile,
    "resolve_auto_jit": _resolve_auto_jit,
    "fit": _fit,
    "evaluate": _evaluate,
    "predict": _predict,
    "train_on_batch": _train_on_batch,
    "test_on_batch": _outside_scopes,
    "predict_on_batch": _outside_scopes,
    "make_predict_function": _make_predict_function,
    "save": _write_file,
    "save_weights": _write_file,
    "export": _write,
    "save_file": functools.partial(_write_by_function, "save_model"),
    "save_weights_file": functools.partial(_write_by_function, "save_weights"),
    "save_h5_file": functools.partial(_write_by_function, "save_model"),
    "symbolic_build": _build,
    "epoch_logs": _epoch_logs,
    "epoch_iterator": _make_epoch_iterator,
    "callback_list": _make_callback_list,
    "apply": gradient_aggregation.apply,
    "apply_scaled": gradient_aggregation.apply,
    "clip": _on(Replica, delivered_updates.clip),
    "assign_number": _on(Replica, delivered_updates.assign_number),
    "average": _on(Replica, delivered_updates.average),
    "decay": _on(Replica, delivered_updates.decay),
    "all_reduce": _on(Replica, gradient_aggregation.all_reduce),
    "scale_loss": _on(Replica, loss_scale.scale_loss),
    "scale_scaled_loss": _on(Replica, loss_scale.scale_loss),
    "reduce_loss": _on(OF_STEP, global_loss.reduce_weighted_values),
    "scale_for_distribution": global_loss.scale_for_distribution,
    "unscale_for_distribution": global_loss.scale_for_distribution,
    "build_losses": global_loss.build_losses,
    "compiled_loss": _on(OF_STEP, global_loss.compiled_loss),
    "call_loss": _on(OF_STEP, global_loss.call_loss),
    "add_loss": _on(Replica, global_loss.add_loss),
    "own_losses": _on(Replica, global_loss.own_losses),
    "clear_losses": _on(Replica, global_loss.clear_losses),
    "update_mean": _on(OF_STEP, global_loss.update_mean),
    "update_function": _on(Part, whole_metrics.update_function),
    "moments": _on(Divided, batch_statistics.moments),
    "global_seed_generator": randomness.global_seed_generator,
    "next_seed": _on(Replica, randomness.next_seed),
    "make_layer": variable_creation.note_scope,
    "make_metric": variable_creation.note_scope,
    "make_variable": variable_creation.make_variable,
    "make_slot": variable_creation.make_slot,
    "assign": delivered_updates.assign,
    "assign_add": delivered_updates.assign_add,
    "gradient": _gradient,
    "call_function": _on(Peer, inner_functions.call),
    "reset_graph": _reset_graph,
    "embed": _embed,
}
