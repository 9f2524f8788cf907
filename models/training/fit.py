"""The one `fit` of a training, whose errors are explained in terms of the flags."""

import contextlib
import math
import re
import sys
import warnings
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from absl import flags

import kerasdist
from kerasdist import callbacks

from .. import command, deployment, input_pipeline
from ..datasets import Dataset
from ..files.train_dir import TrainDir
from ..usage_error import UsageError
from .ctrl_c import CtrlC
from .divergence import DivergedError


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What `fit` did: values per epoch, the number of global steps, and whether Ctrl-C ended it."""

    history: dict[str, list[float]]
    step: int
    interrupted: bool

    @property
    def exit_code(self) -> int:
        """The exit code of the command if nothing else goes wrong."""
        return command.INTERRUPTED if self.interrupted else 0


def fit(
    values: flags.FlagValues,
    cluster: kerasdist.Cluster,
    model: keras.Model,
    train: Dataset,
    test: Dataset | None,
    *,
    pipeline: Mapping[str, Any],
    train_dir: TrainDir,
    kept: Sequence[keras.callbacks.Callback],
) -> Run:
    """Trains until --max_number_of_steps or Ctrl-C, and measures on `test` after each epoch.

    Args:
        values: The flags.
        cluster: What this process is a part of.
        model: A compiled one.
        train: What to train on.
        test: What to measure on, if there is such a split.
        pipeline: How examples become batches: arguments of `input_pipeline.test_batches`.
        train_dir: Where the event files go.
        kept: The other callbacks.

    Raises:
        UsageError: --train_dir holds another training.
        DivergedError: The loss or a gradient is not finite.
        UnreadableDataError: An example cannot be used.
    """
    begun = int(model.optimizer.iterations.numpy())  # By TF-Slim.
    last_step = values.max_number_of_steps
    per_step = _batches_per_step(values, cluster)
    steps_per_epoch = _steps_per_epoch(train, pipeline["global_batch_size"], per_step)
    history = keras.callbacks.History()
    tensorboard = _TensorBoard(
        train_dir.path, write_graph=False, update_freq=values.log_every_n_steps or "epoch"
    )
    ctrl_c = CtrlC(is_on=cluster.is_local)
    interrupted = False
    try:
        with _errors_of_flags(values, train, test, train_dir), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Your input ran out of data")
            model.fit(
                # If a callback stopped, several workers would end one step later.
                batches(values, train, last_step and (last_step - begun) * per_step, pipeline),
                validation_data=input_pipeline.test_batches(test, **pipeline) if test else None,
                **_epochs(values, begun, steps_per_epoch),
                steps_per_epoch=steps_per_epoch,
                callbacks=[history, tensorboard, callbacks.StopOnNonFinite(), *kept, ctrl_c],
                shuffle=False,  # The pipeline shuffles; Keras warns about the default.
            )
    except (KeyboardInterrupt, SystemExit) as error:
        if isinstance(error, SystemExit) and not ctrl_c.was_pressed:
            raise
        interrupted = True
    finally:
        ctrl_c.unwatch()
    step = int(model.optimizer.iterations.numpy())
    return Run(history=history.history, step=step, interrupted=interrupted)


def examples_of_epoch(
    values: flags.FlagValues, cluster: kerasdist.Cluster, train: Dataset, global_batch_size: int
) -> int:
    """Returns how many examples an epoch of `fit` has, whose last batch is as full as the others.

    Args:
        values: The flags.
        cluster: What this process is a part of.
        train: What to train on.
        global_batch_size: Examples of a batch.
    """
    per_step = _batches_per_step(values, cluster)
    num_batches = _steps_per_epoch(train, global_batch_size, per_step) * per_step
    return num_batches * min(global_batch_size, train.num_examples)


def _steps_per_epoch(train: Dataset, global_batch_size: int, per_step: int) -> int:
    return math.ceil(train.num_examples / global_batch_size / per_step)


def _epochs(values: flags.FlagValues, begun: int, steps_per_epoch: int) -> dict[str, int]:
    """Returns `epochs` and `initial_epoch` of a `fit` that goes on after `begun` steps."""
    num_steps = (values.max_number_of_steps or sys.maxsize) - begun
    first = begun // steps_per_epoch
    return {"initial_epoch": first, "epochs": first + math.ceil(num_steps / steps_per_epoch)}


def batches(
    values: flags.FlagValues,
    train: Dataset,
    num_batches: int | None,
    pipeline: Mapping[str, Any],
) -> tf.data.Dataset:
    """Returns what is trained on; each time the same.

    Args:
        values: The flags.
        train: What to train on.
        num_batches: After how many batches it ends; None for no end.
        pipeline: As in `fit`.
    """
    return input_pipeline.train_batches(
        train, seed=values.seed, num_readers=values.num_readers, num_batches=num_batches, **pipeline
    )


def _batches_per_step(values: flags.FlagValues, cluster: kerasdist.Cluster) -> int:
    """Returns how many batches of the data make a step; with parameter servers, each a worker's."""
    return deployment.num_to_aggregate(values, cluster) if cluster.num_ps else 1


@contextlib.contextmanager
def _errors_of_flags(
    values: flags.FlagValues, train: Dataset, test: Dataset | None, train_dir: TrainDir
) -> Generator[None]:
    """Raises errors of `fit` again as messages about the flags, if these are the cause."""
    try:
        with input_pipeline.damage_named(values, train, test):
            yield
    except callbacks.Checkpoint.MismatchError as error:
        # What it says to do is for programs.
        differences, _, _ = str(error).partition(" Restore the model")
        told = (
            f"--train_dir {str(train_dir.path)!r} holds another training. Give its flags again, "
            f"choose another directory, or replace it with --overwrite. {differences}"
        )
        if re.search(r"batch size \d+ in the checkpoint", told):
            told += (
                " --batch_size is per clone: with more or fewer clones or workers, give the one "
                "that makes the same batch."
            )
        raise UsageError(told) from error
    except FloatingPointError as error:
        raise DivergedError(error) from error


class _TensorBoard(keras.callbacks.TensorBoard):
    """Writes each epoch. Keras' own drops it unless `update_freq` divides its last step."""

    def on_epoch_end(self, epoch: int, logs: dict | None = None):
        with tf.summary.record_if(True):
            super().on_epoch_end(epoch, logs)
