"""Restores a checkpoint while a `fit` begins, each part of it when its turn comes.

The callbacks of a program change model and optimizer as a training and its epochs begin, and have
done so before the checkpoint was written. So it is restored in the midst of them.
"""

import contextlib
import os
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.checkpoints import (
    callback_states,
    configuration,
    earlier_fits,
    histories,
    model_state,
    variables,
)
from kerasdist.checkpoints.folder import Folder
from kerasdist.checkpoints.found_checkpoint import (
    MISSING,
    UNREADABLE,
    FoundCheckpoint,
    are_other_rates,
    check_agreement,
    describe_rates,
)
from kerasdist.checkpoints.record_file import CorruptCheckpointError
from kerasdist.checkpoints.saved import FILES, Saved, files_of, packed
from kerasdist.private import keras_fit, keras_optimizers
from kerasdist.support.terminal import say
from kerasdist.training.context import peers, running_call
from kerasdist.training.hooks import lazy_logs

# The names of the packed arrays that hold tf.data's state of an iterator before its first batch,
# and at the place of the checkpoint, of each worker.
_BEGIN, _NOW = "data/begin", "data/now"
_OF_RECORD = ("num_iterators", "num_parts", "texts", "num_steps", "is_begun")


def record_of_data(state: running_call.DataState | None) -> dict[str, Any] | None:
    """Returns what the record of a checkpoint says of the state of the data."""
    if state is None:
        return None
    record = {name: getattr(state, name) for name in _OF_RECORD}
    record["num_states"] = len(state.now)
    return record if state.next_size is None else {**record, "next_size": state.next_size}


def arrays_of_data(state: running_call.DataState | None) -> dict[str, np.ndarray]:
    """Returns the arrays of a checkpoint that hold the state of the data."""
    if state is None or state.begin is None:
        return {}
    now = {f"{_NOW}{worker}": packed(each) for worker, each in enumerate(state.now)}
    return {_BEGIN: packed(state.begin), **now}


def data_state_of(saved: Saved) -> running_call.DataState | None:
    """Returns what a checkpoint holds of the state of the data.

    Raises:
        CorruptCheckpointError: It is not what was written.
    """
    record = saved.record["data"]
    if record is None:
        return None
    begin = saved.unpacked(_BEGIN)
    now = [saved.unpacked(f"{_NOW}{worker}") for worker in range(record["num_states"])]
    return running_call.DataState(
        **{name: record[name] for name in _OF_RECORD},
        next_size=record.get("next_size"),
        begin=begin,
        now=() if begin is None or None in now else tuple(each for each in now if each),
    )


def agreed_newest(folder: Folder, strategy: tf.distribute.Strategy) -> Saved | None:
    """Returns the newest checkpoint that is whole, the same for all workers.

    Where the workers share no disk, it is copied to those that lack it.

    Raises:
        OSError: One that may be whole cannot be read, or the copy cannot be written.
        RuntimeError: The workers see different ones, which are not of one training.
    """
    saved, steps, are_of_one_run = _look(folder, strategy)
    if len(set(steps)) > 1 and UNREADABLE not in steps and are_of_one_run:
        _spread(folder, strategy, saved, steps)
        saved, steps, _ = _look(folder, strategy)
    check_agreement(folder.path, steps)
    return saved


def _look(folder: Folder, strategy: tf.distribute.Strategy) -> tuple[Saved | None, list[int], bool]:
    """Returns the newest checkpoint here, its step on each worker, and whether all are of one run.

    Raises:
        OSError: One that may be whole cannot be read.
    """
    saved = error = None
    try:
        saved = folder.newest(Saved.check)
    except OSError as caught:  # Others may be able to read it.
        error = caught
    step = UNREADABLE if error else saved.step if saved else MISSING
    run = zlib.crc32(saved.record["run"].encode()) if saved else 0
    found = peers.gather(strategy, np.array([step, run]))
    if error:
        raise error
    runs = {run for step, run in found if step != MISSING}
    return saved, [int(step) for step, _ in found], len(runs) == 1


def _spread(
    folder: Folder, strategy: tf.distribute.Strategy, saved: Saved | None, steps: list[int]
) -> None:
    """Gives the newest checkpoint of all workers to the machines that lack it."""
    source = steps.index(max(steps))
    is_source = peers.index_of(strategy) == source
    own = files_of(saved) if is_source and saved else {}
    files = {name: peers.send(strategy, own.get(name, b""), source=source) for name in FILES}
    is_here = steps[peers.index_of(strategy)] == steps[source]
    if not is_here and peers.is_first_on_machine(strategy):
        folder.write_copy(steps[source], files)
        step, worker = steps[source], peers.tasks(strategy)[source]
        say(f"The checkpoint of step {step} is copied from {worker} into {folder.path!r}.")
    peers.sum_over(strategy, 0)  # Others look for it when it is there.


def agreed_run(strategy: tf.distribute.Strategy, run: str) -> str:
    """Returns the name by which the chief calls a training that begins, the same on all workers."""
    return f"{int(peers.gather(strategy, np.array([int(run, 16)]))[0, 0]):012x}"


def agreed_end(
    folder: Folder, newest: FoundCheckpoint, strategy: tf.distribute.Strategy
) -> Saved | None:
    """Returns the last checkpoint of a `fit` that was over, if a later one has been trained since.

    None where that is not so, or where the checkpoint is no longer there; the same on all workers.

    Args:
        folder: Where the checkpoints are.
        newest: The newest of them, beside the `fit` that begins.
        strategy: That of its model.
    """
    step, saved = newest.end_of_fit, None
    if step is None:
        return None
    with contextlib.suppress(CorruptCheckpointError, OSError):
        saved = folder.read(step)
        saved.check()
    is_there = saved is not None and saved.record["is_finished"]
    is_there = is_there and saved.record["fit"] == newest.training.fit
    return None if peers.any_of(strategy, not is_there) else saved


class Resumption:
    """A `fit` that goes on from a checkpoint.

    Args:
        found: The checkpoint, beside the `fit` that begins.
        call: The running call of that `fit`.
        say: Is called with each line for the person at the terminal.
        is_passed_over: Whether a later `fit` has been trained since: nothing is left of this one.

    Attributes:
        saved: The checkpoint.
        is_over: Whether nothing is left to train.
        num_steps: The steps of its epoch that were trained before.
        first_epoch: The epoch with which the training began.
        first_rates: The learning rates with which it began.
    """

    def __init__(
        self,
        found: FoundCheckpoint,
        call: running_call.RunningCall,
        say: Callable[[str], None],
        *,
        is_passed_over: bool = False,
    ):
        self._found, self._is_passed_over = found, is_passed_over
        self.saved = saved = found.saved
        self.is_over = is_passed_over or found.is_over
        self.num_steps: int = saved.record["step"]
        self.first_epoch: int = saved.record["first_epoch"] or 0
        rates = model_state.learning_rates_of(call.model)
        self.first_rates: list[float] = saved.record.get("learning_rates", rates)
        self._logs: dict[str, Any] = {}  # Those of the steps that were trained before.
        self._call, self._say = call, say
        self._model = call.model

    def begin(self) -> None:
        """Restores weights and optimizer, and says where epochs and data begin."""
        rates = model_state.learning_rates_of(self._model)
        self._restore_weights()
        self.set_first_epoch()
        if self.is_over:
            self._say_end()
            return
        self._place_data()
        if found := configuration.differences_from(self.saved, self._model):
            self._say(self._found.describe_configuration(found))
        # In a later `fit` it is what the callbacks of an earlier one have left.
        if not self._found.training.fit and are_other_rates(self.first_rates, rates):
            restored = model_state.learning_rates_of(self._model)
            self._say(describe_rates(self.first_rates, restored, rates))
        # `on_train_begin` of other callbacks sees what it saw before; `go_on` restores it.
        variables_of_rates = keras_optimizers.learning_rates_of(self._model)
        for variable, rate in zip(variables_of_rates, rates, strict=True):
            variable.assign(rate)
        if missing := variables.missing_in(self.saved.arrays, self._model):
            self._say(f"{self.saved.path} does not hold {', '.join(missing)}, which begin anew.")

    def set_first_epoch(self) -> None:
        """Lets `fit` begin where it is to; BackupAndRestore, for one, may have said otherwise."""
        epoch = self._found.training.epochs if self.is_over else self.saved.record["epoch"]
        keras_fit.begin_at(self._model, epoch)

    def go_on(self) -> None:
        """Restores everything as its epoch begins, before other callbacks hear of it."""
        record = self.saved.record
        self._restore()
        history = getattr(self._model, "history", None)
        histories.extend(history, record["history"], lengths=record.get("num_logged"))
        states = record["callbacks"], self.saved.arrays
        if dropped := callback_states.without_callback(self._call.callbacks, *states):
            self._say(
                f"The state of {', '.join(dropped)} in {self.saved.path} is dropped: this `fit` "
                "has no such callback."
            )
        self._say_new_metrics()
        # A later `fit` begins with its own `initial_epoch`.
        keras_fit.begin_at(self._model, None)

    def go_on_in_epoch(self) -> None:
        """Restores once more in mid-epoch, when all callbacks have heard that the epoch begins.

        The checkpoint holds what they changed as it began, and by now they have changed it again:
        a learning rate that is halved in each epoch would be halved twice.
        """
        if self.num_steps:
            self._restore()

    def complete(self, logs: dict, num_steps: int) -> None:
        """Adds the results of before to the logs of an epoch of which no step was left."""
        if self.num_steps and num_steps == self.num_steps:
            # Before its first step, a model does not know what it logs.
            for name in lazy_logs.as_numbers(self._model.get_metrics_result()):
                logs.pop(name, None)
            logs |= self._logs

    def end(self) -> None:
        """Restores what a training that is over left, after what callbacks do at its end."""
        record = self.saved.record
        self._restore_weights()
        if not self._found.is_of_later_fit:  # It had callbacks of its own.
            callback_states.write(self._call.callbacks, record["callbacks"], self.saved.arrays)
        histories.extend(getattr(self._model, "history", None), self._found.history)

    def _restore_weights(self):
        if self._found.has_later_weights:
            return
        # A later `fit` with another optimizer restores the rest when it begins.
        is_other = self._found.has_other_optimizer
        model_state.restore(self._model, self.saved, with_optimizer=not is_other)

    def _restore(self):
        """Restores also what `fit`, the data and the callbacks have changed since it began."""
        self._restore_weights()
        record = self.saved.record
        callback_states.write(self._call.callbacks, record["callbacks"], self.saved.arrays)
        if self.num_steps:  # It may turn out to be the last one of its epoch.
            metrics = self._model.get_metrics_result()
            self._logs = record.get("logs") or lazy_logs.as_numbers(metrics)

    def _place_data(self):
        record = self.saved.record
        self._call.resume_at = running_call.DataPlace(
            epoch=record["epoch"] - self.first_epoch,
            step=record["step"],
            given=tuple(record["given"]),
            state=data_state_of(self.saved),
        )
        self._say(self._found.describe_resume())

    def _say_end(self):
        if self._is_passed_over:
            self._say(f"Nothing left to train in this `fit`, which ended with {self.saved.path}.")
            return
        directory = os.path.dirname(self.saved.path)
        is_of_another = earlier_fits.is_last_of_another(self._model, directory)
        self._say(self._found.describe_end(directory, is_of_another=is_of_another))

    def _say_new_metrics(self):
        metrics = self.saved.record.get("metrics")
        if metrics is None or not self.num_steps:
            return
        new = [each for each in variables.metrics_of(self._model) if each not in metrics]
        if names := dict.fromkeys(each.rpartition(" ")[0] for each in new):
            self._say(
                f"{self.saved.path} does not hold the metrics {', '.join(names)}: in this epoch "
                "they count only the steps that are left."
            )
