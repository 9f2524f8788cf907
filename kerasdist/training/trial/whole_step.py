"""A training step as one device makes it, on each replica of a strategy: with the whole batch."""

import contextlib
import warnings
from collections.abc import Generator

import tensorflow as tf

from kerasdist.private import custom_parts, keras_threads
from kerasdist.training.context import peers
from kerasdist.training.data import batches
from kerasdist.training.gradients import randomness
from kerasdist.training.hooks import lazy_logs
from kerasdist.training.hooks.graph_function import graph_function
from kerasdist.training.losses import batch_statistics
from kerasdist.training.replica import own_attributes, replicas
from kerasdist.training.step import replica_run
from kerasdist.training.step.step_function import StepFunction
from kerasdist.training.trial import assignments, rehearsal
from kerasdist.training.trial.watched_step import copies_of, slots_of


def run_whole(model, batch) -> dict:
    """Runs the train_step of `model` with a global batch on every replica; returns the logs.

    No replica speaks to another: each updates its own copy of the weights, as one device would.
    """
    strategy = model.distribute_strategy
    keras_state = keras_threads.thread_state()
    train_step = replica_run.inlined(model.train_step, strategy)

    def on_replica(data):
        keras_threads.inherit(keras_state)
        num_examples = batches.num_examples(data)
        step = replicas.Replica(
            replica_id=0,
            num_examples=num_examples,
            global_num_examples=num_examples,
            share=1.0,
            has_whole_batch=True,
            is_alone=True,
            may_be_empty=False,
            weighs_loss=False,
            keras_state=keras_state,
        )
        with replicas.entered(step), replica_run.after(data):
            return train_step(data)

    def run(data):
        return peers.on_replicas(strategy, on_replica, (data,))

    logs = (run if model.run_eagerly else graph_function(run))(batches.as_tensors(batch))
    return lazy_logs.as_numbers(
        tf.nest.map_structure(lambda log: strategy.experimental_local_results(log)[0], logs)
    )


def run_shares(model, batch) -> dict:
    """Runs the train_step of `model` as `fit` does, without its callbacks; returns the logs.

    Batch statistics are those of the global batch.
    """
    with (
        batch_statistics.synchronized(model),
        assignments.nobody_told(model),
        warnings.catch_warnings(),
    ):
        # They are said when `fit` makes its own; which losses see all examples is found here.
        warnings.simplefilter("ignore")
        step = StepFunction(
            model,
            model.train_step,
            returns_metrics=custom_parts.returns_original_metrics(model, "train_step"),
            weighs_loss=custom_parts.is_original_step(model.train_step),
            rehearse=rehearsal.warn_of_differences if rehearsal.is_due(model) else None,
        )
        return dict(step(iter([batch])))


@contextlib.contextmanager
def state_kept(model) -> Generator[None]:
    """Puts everything back that steps inside change: weights, slots, metrics, random numbers.

    Slots and metrics that the first step makes get the values that they were made with. What the
    user's own layers, metrics and optimizers keep in Python is put back as in a rehearsal.
    """
    strategy = model.distribute_strategy
    metrics = {id(metric) for metric in custom_parts.metrics_of(model)}
    kept = {id(copy): (copy, copy.numpy()) for copy in _state_of(model)}

    def create(next_creator, **kwargs):
        variable = next_creator(**kwargs)
        if tf.executing_eagerly():  # Else, as for metrics, its value is part of the trace.
            copies = strategy.experimental_local_results(variable)
            kept.update({id(copy): (copy, copy.numpy()) for copy in copies})
        return variable

    try:
        with (
            randomness.generators_kept(),
            own_attributes.kept(model),
            tf.variable_creator_scope(create),
        ):
            yield
    finally:
        for metric in custom_parts.metrics_of(model):
            if id(metric) not in metrics:
                metric.reset_state()
        for copy, value in kept.values():
            copy.assign(value)


def _state_of(model) -> list:
    """Returns TensorFlow's variables that a step of a model may change."""
    metrics = [each for metric in custom_parts.metrics_of(model) for each in metric.variables]
    generator = keras_threads.known_global_seed_generator()
    seeds = [generator.state] if generator else []
    variables = [*model.variables, *metrics, *slots_of(model), *seeds]
    return [copy for variable in variables for copy in copies_of(model, variable)]
