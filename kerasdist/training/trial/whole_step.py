"""Run a real training step as one device does, on each replica, and as `fit` does."""

import warnings
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import custom_parts, keras_threads
from kerasdist.training.context import peers
from kerasdist.training.data import batches
from kerasdist.training.hooks import lazy_logs
from kerasdist.training.hooks.graph_function import graph_function
from kerasdist.training.losses import batch_statistics
from kerasdist.training.replica import replicas
from kerasdist.training.step import replica_run
from kerasdist.training.step.step_function import StepFunction
from kerasdist.training.trial import assignments, fit


def run_whole(model: keras.Model, batch: Any) -> dict:
    """Runs the train_step of `model` with a global batch on every replica; returns the logs.

    No replica speaks to another: each updates its own copy of the weights, as one device would.
    """
    strategy = model.distribute_strategy
    keras_state = keras_threads.thread_state()
    train_step = replica_run.inlined(model.train_step, strategy)

    def on_replica(data: Any) -> Any:
        keras_threads.inherit(keras_state)
        num_examples = batches.num_examples(data)
        replica = replicas.OneDevice(
            replica_id=0,
            num_examples=num_examples,
            global_num_examples=num_examples,
            share=1.0,
            keras_state=keras_state,
        )
        with replicas.entered(replica), replica_run.after(data):
            return train_step(data)

    def run(data: Any) -> Any:
        return peers.on_replicas(strategy, on_replica, (data,))

    logs = (run if model.run_eagerly else graph_function(run))(batches.as_tensors(batch))
    return lazy_logs.as_numbers(
        tf.nest.map_structure(lambda log: strategy.experimental_local_results(log)[0], logs)
    )


def run_shares(model: keras.Model, batch: Any) -> dict:
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
            trial=fit.TrialOfFit.warn_of_differences if fit.is_due(model) else None,
        )
        return dict(step(iter([batch])))
