"""Takes the checkpoints of one `fit`: collects where and what it is, for the `Writer`."""

import functools
import math
import time
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from kerasdist.checkpoints import (
    callback_states,
    configuration,
    earlier_fits,
    histories,
    model_state,
    process_name,
    resumption,
    variables,
)
from kerasdist.checkpoints.folder import Folder
from kerasdist.checkpoints.writer import Writer
from kerasdist.private import keras_optimizers
from kerasdist.support.text import short_list
from kerasdist.support.users_line import warn
from kerasdist.training.context import peers, running_call, traits
from kerasdist.training.hooks import slots
from kerasdist.training.report.update_counter import updates_of


class Snapshots:
    """Saves a `fit`, and keeps what its checkpoints say of it.

    It is made when the model has the weights and the optimizer with which `fit` begins, or goes on.

    Args:
        call: The running call of that `fit`.
        folder: Where its checkpoints are.
        writer: Writes them.
        fit: How many `fit` of this model into this folder have ended in this process.
        run: What all checkpoints of this training are named by.
        epochs: The last epoch it is to train.
        first_rates: The learning rates with which it begins, if it does not go on.
        resumed: What it goes on from, of which nothing may be left to train; None if it begins.
        writes: Whether this worker writes; all take part in what is saved.

    Attributes:
        last_step: That of the last checkpoint that was asked for; of the one that it goes on from,
            or 0, before.
        num_steps: Steps of the present epoch that were trained.
        is_cut: Whether the data ran out in the middle of an epoch.
        logs: Of the last step of an epoch that may be over with it, read when it is saved.
        monitored: The value that says how good the weights of the epoch before are, by its name.
    """

    def __init__(
        self,
        call: running_call.RunningCall,
        folder: Folder,
        writer: Writer,
        *,
        fit: int,
        run: str,
        epochs: int,
        first_rates: list[float],
        resumed: resumption.Resumption | None,
        writes: bool,
    ):
        self._call, self._folder, self._writer = call, folder, writer
        self._model, self._strategy = call.model, call.model.distribute_strategy
        self._batch_size = call.batch_size  # Validation comes with one of its own.
        self._fit, self._run, self._epochs = fit, run, epochs
        self._writes = writes
        self._first_epoch: int | None = None
        self._first_rates = first_rates
        if resumed is not None and not resumed.is_over:
            self._first_epoch, self._first_rates = resumed.first_epoch, resumed.first_rates
        self.last_step = resumed.saved.step if resumed else 0
        # A program may have called one before that it uses no more.
        self._lost_before: dict = _counts_of_lost_optimizers(self._model)
        # A callback may compile the model anew.
        for optimizer in keras_optimizers.optimizers_of(self._model):
            self._lost_before[optimizer.name] = math.inf
        self._has_warned = False
        # Callbacks may change it later.
        self._configuration = configuration.packed_of(self._model)
        self._num_updates = updates_of(self._model)
        self._num_before = self._num_left_behind(resumed)
        # The step of the checkpoint that ended the `fit` before, if this one begins after it.
        ends = earlier_fits.ends(self._model, folder.path)
        self._end_before = ends[-1] if ends and not resumed else None
        self._epoch = self.num_steps = 0
        self.logs: Mapping[str, Any] | None = None
        self._cut: dict | None = None  # The arrays of an epoch in which the data ran out.
        self._num_logged: Any = None  # Entries of the history before this epoch.
        self._last_step_function: Any = self._model.train_function
        # A checkpoint may be written again before its next step.
        self.monitored: dict = resumed.saved.record.get("monitored", {}) if resumed else {}

    @property
    def is_cut(self) -> bool:
        return self._cut is not None

    @property
    def _step_function(self):
        """The one that runs, or the last one if a callback has compiled the model since."""
        self._last_step_function = self._model.train_function or self._last_step_function
        return self._last_step_function

    def warn_of_callbacks(self) -> None:
        """Warns of the callbacks whose state it will leave out."""
        if peers.is_chief(self._strategy):
            callback_states.read(self._call.callbacks)

    def begin_epoch(self, epoch: int) -> None:
        """Notes that an epoch begins, from 0."""
        self._epoch, self.num_steps, self._cut, self.logs = epoch, 0, None, None
        if self._first_epoch is None:
            self._first_epoch = epoch

    def note_history(self) -> None:
        """Notes how long the history is before the present epoch."""
        self._num_logged = histories.lengths_of(self._history)

    def note_cut(self, num_expected: int) -> None:
        """Keeps what an epoch in which the data ran out needs to go on if there is more later.

        The validation that follows resets the metrics.

        Args:
            num_expected: Steps of an epoch; 0 if it is unknown.
        """
        if traits.has_remote_variables(self._strategy):
            self._step_function.finish()
            self.num_steps = self._step_function.num_steps_of_epoch
        if self.is_cut or self.num_steps >= num_expected:
            return
        if not peers.any_of(self._strategy, self._model.stop_training):
            self._cut = variables.read(self._strategy, variables.variables_of(self._model))

    def save(self, step: int, *, beside: bool = False) -> bool:
        """Saves before a step of the present epoch, from 0.

        Args:
            step: How many steps of the epoch were trained.
            beside: Whether the files are written while training goes on.

        Returns:
            False if there is nothing to save, because the epoch is over.
        """
        if traits.has_remote_variables(self._strategy):  # Workers may be ahead of `fit`.
            num_done = self._step_function.finish()
            if step and num_done is None:  # The epoch is over, which `fit` has not seen yet.
                return False
            step = num_done if step else 0
        self._write({"epoch": self._epoch, "step": step, "is_finished": False}, beside=beside)
        return True

    def save_end(self) -> None:
        """Saves when `fit` is over."""
        if self.is_cut:
            progress = {"epoch": self._epoch, "step": self.num_steps}
        else:
            if traits.has_remote_variables(self._strategy):
                self._step_function.finish()
            progress = {"epoch": self._epoch + 1, "step": 0}
        self._write({**progress, "is_finished": True}, beside=False)

    def end(self) -> None:
        """Waits until everything is written, and lets go of what is traced."""
        self._last_step_function = None
        self._writer.end()

    def _write(self, progress: dict[str, Any], *, beside: bool) -> None:
        slots.make(self._model)  # Before the first step there are none.
        arrays = model_state.read(self._model)
        is_finished = progress["is_finished"]
        if is_finished and self._cut is not None:
            arrays |= self._cut
        self._note_updates()
        is_of_end_before = self._num_before + self._num_updates == self._end_before
        has_begun = is_finished or (progress["epoch"], progress["step"]) != (self._first_epoch, 0)
        if is_of_end_before and has_begun:  # Steps without an update, as with accumulation.
            self._num_before += 1
        self.last_step = self._num_before + self._num_updates
        state = self._call.data_state(step=progress["step"], is_over=is_finished)
        logs = histories.plain(dict(self.logs)) if progress["step"] and self.logs else {}
        if not self._writes:
            return
        # Started again, the program makes what it did between the two `fit` once more.
        if is_of_end_before and not has_begun and self._folder.is_finished(self.last_step):
            return
        arrays |= self._configuration
        arrays |= resumption.arrays_of_data(state)
        self._warn_of_lost_optimizers()
        states, of_callbacks = callback_states.read(self._call.callbacks)
        record = {
            **progress,
            **self._record(
                is_finished=is_finished, is_epoch_over=is_finished or not progress["step"]
            ),
            "data": resumption.record_of_data(state),
            "given": list(self._call.given) if progress["step"] else [],
            "callbacks": states,
            "logs": logs,
        }
        write = self._writer.write_beside if beside else self._writer.write
        save_weights = functools.partial(model_state.save_weights, self._model)
        write(self.last_step, record, arrays | of_callbacks, save_weights)

    def _warn_of_lost_optimizers(self) -> None:
        if self._has_warned:
            return
        counts = _counts_of_lost_optimizers(self._model)
        used = [name for name, count in counts.items() if count > self._lost_before.get(name, 0)]
        if used:
            self._has_warned = True
            names = short_list(map(repr, used), 3)
            warn(
                f"The train_step of '{self._model.name}' calls an optimizer that the model does "
                f"not hold ({names}): a checkpoint does not have its state, and a training that "
                "is resumed begins with a new one. Make it an attribute of the model."
            )

    def _record(self, *, is_finished: bool, is_epoch_over: bool) -> dict[str, Any]:
        """Returns what the training is, beside where it is."""
        is_cut = is_finished and self.is_cut
        return {
            # Those from before an epoch that goes on are enough: its own come again.
            "num_logged": self._num_logged if is_cut else None,
            "monitored": self.monitored if is_epoch_over else {},
            "run": self._run,
            "fit": self._fit,
            "first_epoch": self._first_epoch,
            "updates": self._num_updates,
            "epochs": self._epochs,
            "history": histories.read(self._history),
            "earlier_histories": earlier_fits.histories(self._model, self._folder.path)[
                : self._fit
            ],
            "ends": earlier_fits.ends(self._model, self._folder.path)[: self._fit],
            "variables": variables.signature_of(self._model),
            "metrics": variables.metrics_of(self._model),
            "other_optimizers": variables.other_optimizers_of(self._model),
            "batch_size": self._batch_size,
            "learning_rates": self._first_rates,
            "time": time.time(),
            "writer": process_name.own(),
            "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "versions": {"keras": keras.__version__, "tensorflow": tf.__version__},
        }

    @property
    def _history(self):
        return getattr(self._model, "history", None)  # A list of callbacks can be without.

    def _note_updates(self) -> None:
        updates = updates_of(self._model)
        if updates < self._num_updates:  # A callback has compiled the model within this `fit`.
            self._num_before += self._num_updates
        self._num_updates = updates

    def _num_left_behind(self, resumed: resumption.Resumption | None) -> int:
        """Returns how many updates there were before those that the optimizer counts.

        After another `compile` it counts from 0, but its checkpoints must be the newest.
        """
        if resumed is not None:
            return resumed.saved.step - resumed.saved.record["updates"]
        newest = max(self._folder.steps(), default=0)
        return max(0, newest - self._num_updates)


def _counts_of_lost_optimizers(model: keras.Model) -> dict[str, int]:
    """Returns by name how many updates those have made that no checkpoint has."""
    lost = variables.lost_optimizers_of(model)
    return {each.name: int(tf.convert_to_tensor(each.iterations)) for each in lost}
