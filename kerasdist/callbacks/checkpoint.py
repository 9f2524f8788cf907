"""Checkpoints, from which the same script goes on as if it had never been interrupted."""

import os
import signal
import sys
import uuid
import weakref
from typing import Any

from kerasdist.checkpoints import (
    Folder,
    Preemption,
    Resumption,
    Saved,
    Snapshots,
    Writer,
    earlier_fits,
    histories,
    model_state,
    resumption,
    variables,
)
from kerasdist.checkpoints.found_checkpoint import FoundCheckpoint, Training
from kerasdist.private import keras_fit
from kerasdist.status import task_status
from kerasdist.support.checks import (
    check_bool,
    check_choice,
    check_int,
    check_steps_or_secs,
    check_text,
    checked_folder,
)
from kerasdist.support.exit_codes import SIGNALED
from kerasdist.support.remote_path import absolute, is_remote
from kerasdist.support.terminal import say
from kerasdist.support.text import short_list
from kerasdist.support.users_line import warn
from kerasdist.training.context import peers, running_call
from kerasdist.training.hooks import slots
from kerasdist.training.hooks.update_callback import UpdateCallback
from kerasdist.training.report.update_counter import UpdateCounter, updates_of

# A log with one of these in its name is best where it is largest.
_RISING = ("acc", "auc", "precision", "recall", "f1", "iou")


class Checkpoint(UpdateCallback):
    """Saves the training now and then, and resumes it when the same script is started again.

    A checkpoint holds weights, optimizers, metrics, random seeds, the states of recurrent layers,
    the `tf.Variable` and `tf.random.Generator` of your classes, the state of callbacks
    (`EarlyStopping`, `ReduceLROnPlateau`, `ModelCheckpoint`, those of kerasdist, and all with
    `get_state()` and `set_state(state)`, which exchange a dict of arrays), the history, and the
    place in the data. When `fit` begins and the folder holds one, training goes on there: in the
    middle of an epoch, with the same history at its end. Give the program a seed
    (`keras.utils.set_random_seed`), so that what comes next is drawn as it would have been.

    The checkpoint holds the place in a `tf.data` pipeline whose buffers are small (10,000 elements,
    4 MiB). In other pipelines, `fit` skips what comes before, and only decides its order again,
    without `map` and `batch`. What Python makes, what is in a `cache`, and what draws random
    numbers in a `map` is read again; a line says which of these happens.

    If a model is trained by several `fit` in a row, give each of them the same folder: those that
    are over train nothing, and leave the model and their callbacks as they left them before. The
    numbers of the checkpoints keep rising even if the model is compiled in between and the
    optimizer counts from 0. If the training is finished, a line says so, and model, history and
    callbacks are as it left them. With more `epochs` or data it goes on, also in an epoch in which
    the data ran out.

    The chief writes. A checkpoint is complete or absent, whenever its writer is killed. A damaged
    one is skipped with a warning; one that cannot be read for another reason, such as its
    permissions, is an error. The weights load with plain Keras:
    `model.load_weights("<directory>/step-00000120/model.weights.h5")`.

    Args:
        directory: Folder of the run; any path that `tf.io.gfile` supports.
        every_steps: Updates of the optimizer between two checkpoints. Without it and `every_secs`
            there is one after each epoch. There is always one at the end.
        every_secs: Seconds between two checkpoints instead, and at most a step more; several
            workers agree on the step, at most 50 steps before it. The files are written while
            training goes on; it stops only to copy weights and optimizer in memory. A kill during
            the writing costs the steps since the checkpoint before.
        keep: How many to keep, the newest; and those with which the last ten `fit` ended.
        keep_best: How many checkpoints to keep in addition: those of the epochs with the best
            `monitor`. There is then a checkpoint after each epoch.
        monitor: The log of an epoch that says which are best, such as "val_loss".
        mode: "min" or "max", what is best; "auto" takes "max" for names that contain "acc", "auc",
            "precision", "recall", "f1" or "iou".
        weights_if_changed: What to do if the model has other layers, or trains with another
            optimizer or batch size (of arrays, or of a dataset that ends with `batch`): False
            raises an error that lists the differences; True takes only the weights, which must fit,
            and trains from the first epoch.
        save_on_term: Whether SIGTERM, as sent by a scheduler that takes the machine back, is
            answered with a checkpoint after the running step, or at the end of `fit` after the
            last one, the same on all workers, and exit code 143.
        on_every_machine: Whether the first worker of each machine writes the same checkpoint, as
            the chief does, so that the loss of a machine loses none. It is for a `directory` on
            disks that the machines do not share: on a shared one, they remove each other's.
        on_error: What to do if a checkpoint cannot be written, which is tried out before the first
            step: "warn" goes on training, and tries again with the next one; on a full disk, the
            oldest makes room for it; the end of `fit` says which is the newest if the last one
            could not be written. "raise" stops.

    Attributes:
        resumed_from: The checkpoint that the last `fit` went on from; None for a fresh start.
        best: The checkpoint with the best `monitor` in the folder; None if none has a value of it.

    Raises:
        TypeError, ValueError: Both of `every_steps` and `every_secs` are given; `every_steps` or
            `keep` is not an int of at least 1; `keep_best` is not an int, or negative; `every_secs`
            is not a number, or negative; `monitor` is not a str; `weights_if_changed`,
            `save_on_term` or `on_every_machine` is not a bool; `mode` or `on_error` is not one of
            these; or `directory` is not the path of a folder.
        Checkpoint.MismatchError: A ValueError, when `fit` begins: the checkpoint is of another
            model, optimizer or batch size.
        ValueError: When `fit` begins: this Checkpoint has seen another model trained to its end in
            this process.
        OSError: When `fit` begins: a checkpoint that may be whole cannot be read.

    Example:
        ```python
        model.fit(dataset, epochs=10, callbacks=[Checkpoint("runs/1", every_steps=1000)])
        ```
    """

    class MismatchError(ValueError):
        """The checkpoint is of another model, optimizer or batch size."""

    # It saves and restores before other callbacks hear of a step: they change what is saved.
    encloses_training = True

    def __init__(
        self,
        directory: str | os.PathLike,
        *,
        every_steps: int | None = None,
        every_secs: float | None = None,
        keep: int = 5,
        keep_best: int = 0,
        monitor: str = "val_loss",
        mode: str = "auto",
        weights_if_changed: bool = False,
        save_on_term: bool = True,
        on_every_machine: bool = False,
        on_error: str = "warn",
    ):
        super().__init__()
        check_steps_or_secs(every_steps=every_steps, every_secs=every_secs, may_be_none=True)
        check_int("keep", keep, at_least=1)
        check_int("keep_best", keep_best, at_least=0)
        check_bool("weights_if_changed", weights_if_changed)
        check_bool("save_on_term", save_on_term)
        check_bool("on_every_machine", on_every_machine)
        check_text("monitor", monitor)
        check_choice("mode", mode, ("auto", "min", "max"))
        check_choice("on_error", on_error, ("warn", "raise"))
        self.directory = absolute(checked_folder("directory", directory))
        _check_not_in_the_way(self.directory)
        self.every_steps, self.every_secs, self.keep = every_steps, every_secs, keep
        self.keep_best, self.monitor = keep_best, monitor
        self.mode = _mode_of(monitor) if mode == "auto" else mode
        self.weights_if_changed, self.on_error = weights_if_changed, on_error
        self.save_on_term, self.on_every_machine = save_on_term, on_every_machine
        self.resumed_from: str | None = None
        self._last_model: weakref.ref | None = None  # The one of the last `fit` that has ended.
        self._preemption = Preemption()
        self._folder = Folder(self.directory)
        self._has_missed = False
        self._run = uuid.uuid4().hex[:12]

    @property
    def best(self) -> str | None:  # Documented in the class.
        ranked = self._folder.ranked(self.monitor, self.mode)
        return self._folder.path_of(ranked[0]) if ranked else None

    def clear(self) -> None:
        """Removes all checkpoints in the folder, so that the next `fit` starts over.

        Nothing else in it is removed: of a link, only the link. One process calls it, before `fit`.

        Raises:
            OSError, tf.errors.OpError: One cannot be removed.
        """
        self._folder.clear()

    def describe(self):
        return ""

    def on_train_begin(self, logs: dict[str, Any] | None = None):
        call = self._checked_call()
        call.keeps_data_state = True
        self._is_due, self._num_epochs_here = False, 0
        self.resumed_from = None
        if self.save_on_term:
            self._preemption.watch(self.model)
        first_rates = model_state.learning_rates_of(self.model)
        fit = earlier_fits.count(self.model, self.directory)
        saved = self._agreed_newest()
        updates_of(self.model)  # Optimizers of layers count from here, before they are restored.
        # It is kept until the epoch in which `fit` goes on is over.
        self._resumption = self._begin(call, fit, saved)
        self._writer = self._make_writer()
        is_over = self._resumption is not None and self._resumption.is_over
        strategy = self.model.distribute_strategy
        writes = peers.is_chief(strategy)
        if self.on_every_machine:
            writes = writes or peers.is_first_on_machine(strategy)
            self._run = resumption.agreed_run(strategy, self._run)
        if not is_over and writes:
            self._writer.begin()
        self._snapshots = Snapshots(
            *(call, self._folder, self._writer),
            fit=fit,
            run=self._run,
            epochs=self._epochs(),
            first_rates=first_rates,
            resumed=self._resumption,
            writes=writes,
        )
        running_call.at_end(self.model, self._end_writing)
        self._counter = self._make_counter()

    def _checked_call(self) -> running_call.RunningCall:
        call = running_call.training_of(self.model)
        if call is None:
            raise RuntimeError(
                "Checkpoint takes part in `fit` alone. Give it to `model.fit(callbacks=[...])`."
            )
        if sum(isinstance(each, Checkpoint) for each in call.callbacks) > 1:
            raise ValueError(
                "`callbacks` has several Checkpoint, each of which would resume `fit` by itself. "
                "Give one: `every_steps` or `every_secs` say when it saves, and `keep_best` keeps "
                "the best."
            )
        return call

    def _make_writer(self) -> Writer:
        return Writer(
            self._folder,
            keep=self.keep,
            keep_best=self.keep_best,
            monitor=self.monitor,
            mode=self.mode,
            raises=self.on_error == "raise",
        )

    def _end_writing(self):
        self._snapshots.end()
        if self._writer.has_failed:
            self._say(self._writer.describe_newest())

    def _make_counter(self) -> UpdateCounter | None:
        if self.every_steps is None and self.every_secs is None:
            return None
        return UpdateCounter(self.model, every_steps=self.every_steps, every_secs=self.every_secs)

    def on_train_begun(self):
        if self._resumption is not None:
            self._resumption.set_first_epoch()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None):
        is_first = not self._num_epochs_here
        if is_first:
            self._snapshots.warn_of_callbacks()
        else:
            self._resumption = None
        self._snapshots.begin_epoch(epoch)
        is_saved = True
        if self._resumption is not None:
            self._snapshots.num_steps = self._resumption.num_steps
            self._resumption.go_on()
        elif self._is_due or (self._counter is None and not is_first):
            self._save(0, beside=self.every_secs is not None)
        else:
            is_saved = False
        self._num_epochs_here += 1
        self._snapshots.note_history()
        # After the next step in the middle of an epoch: what is saved is of an epoch that begins.
        if not self._snapshots.num_steps and self._preemption.is_due(self.model):
            if not is_saved:
                self._save(0)
            self._leave()

    def on_epoch_begun(self, epoch: int):
        if self._resumption is not None:
            self._resumption.go_on_in_epoch()

    def on_test_begin(self, logs: dict[str, Any] | None = None):
        super().on_test_begin(logs)
        self._snapshots.note_cut(self._steps_of_epoch() or 0)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None):
        self._snapshots.note_cut(self._steps_of_epoch() or 0)
        if logs is not None and self._resumption is not None:
            self._resumption.complete(logs, self._snapshots.num_steps)
        if not self.keep_best:
            return
        self._is_due = True
        value = (logs or {}).get(self.monitor)
        if value is None and not self._has_missed:
            warn(
                f"Checkpoint(keep_best={self.keep_best}) finds no {self.monitor!r} among the logs "
                f"of the epoch, which are: {', '.join(logs or ())}. It keeps only the newest."
            )
            self._has_missed = True
        self._snapshots.monitored = {self.monitor: None if value is None else float(value)}

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None):
        if self._is_due:
            self._save(batch, beside=self.every_secs is not None)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None):
        num_steps = running_call.num_steps_of_epoch(self.model, batch)
        self._snapshots.num_steps = num_steps
        # Written before the next step, when all callbacks have seen this one.
        if self._counter is not None and self._counter.advance(batch):
            self._is_due = True
        # Of data whose end nobody knows, this may have been the last step.
        self._snapshots.logs = None if self._steps_of_epoch() else logs
        is_last = num_steps == self._steps_of_epoch()
        if not is_last and self._preemption.is_due(self.model):
            self._save(num_steps)
            self._leave()

    def on_train_end(self, logs: dict[str, Any] | None = None):
        keras_fit.begin_at(self.model, None)
        self._last_model = weakref.ref(self.model)
        if self._resumption is not None and not self._num_epochs_here:  # Nothing was left to train.
            self._resumption.end()
        else:
            self._is_due = False
            self._snapshots.save_end()
        history = histories.read(getattr(self.model, "history", None))
        earlier_fits.note(self.model, self.directory, history, self._snapshots.last_step)
        self._resumption = None
        # It leaves before the next `fit`, or whatever else the program would do now.
        if self.save_on_term and self._preemption.is_due_at_end(self.model):
            self._leave()

    def _save(self, step: int, *, beside: bool = False):
        if self._snapshots.save(step, beside=beside):
            self._is_due = False

    def _leave(self):
        self._writer.wait()
        saved = f"checkpoint saved in {self.directory}. Start the same command to resume."
        if self._writer.has_failed:
            saved = "its checkpoint could not be written."
        told = short_list(self._preemption.told, 4)
        self._say(f"Received SIGTERM{f' on {told}' if told else ''}: {saved}")
        raise SystemExit(SIGNALED + signal.SIGTERM)

    def _agreed_newest(self) -> Saved | None:
        """Returns the newest checkpoint that is whole, the same for all workers."""
        saved = resumption.agreed_newest(self._folder, self.model.distribute_strategy)
        if saved is None and self._folder.steps():
            warn(f"No checkpoint in {self.directory!r} can be read: training starts over.")
        return saved

    def _begin(
        self, call: running_call.RunningCall, fit: int, saved: Saved | None
    ) -> Resumption | None:
        """Resumes a checkpoint if it is one of this `fit`."""
        if saved is None:
            return None
        slots.make(self.model)
        training = Training(
            fit=fit,
            epochs=self._epochs(),
            batch_size=call.batch_size,
            steps_per_epoch=self._steps_of_epoch(),
            num_batches=call.num_batches,
            variables=variables.signature_of(self.model),
            other_optimizers=variables.other_optimizers_of(self.model),
        )
        found = FoundCheckpoint(saved, training)
        if found.is_of_earlier_fit:
            return None
        if self._last_model and self._last_model() is not self.model:
            raise ValueError(
                f"{saved.path} is of another model, which this Checkpoint has seen trained in this "
                "process. Give each model, such as that of a fold, a Checkpoint and a folder of "
                "its own."
            )
        end = resumption.agreed_end(self._folder, found, self.model.distribute_strategy)
        if end is not None:
            saved, found = end, FoundCheckpoint(end, training)
        if differences := found.differences():
            self._refuse(saved, short_list(differences, 6, separator="; "))
            return None
        resumed = Resumption(found, call, self._say, is_passed_over=end is not None)
        resumed.begin()
        self.resumed_from, self._run = saved.path, saved.record["run"]
        call.is_resumed = True
        if not resumed.is_over:
            call.resumed_time = saved.record.get("time", 0.0)
        written_at = saved.record.get("time", 0.0)
        task_status.of_process().note_checkpoint(saved.step, written_at=written_at)
        return resumed

    def _refuse(self, saved: Saved, differences: str):
        if not self.weights_if_changed:
            raise self.MismatchError(
                f"{saved.path} is of another training: {differences}. Restore the model, optimizer "
                "and batch size, use another folder, or take only the weights with "
                "weights_if_changed=True."
            )
        model_state.restore(self.model, saved, with_optimizer=False)
        self._say(
            f"Weights taken from {saved.path}; the rest is of another training: {differences}."
        )

    def _steps_of_epoch(self) -> int | None:
        return (self.params or {}).get("steps")

    def _epochs(self) -> int:
        return (self.params or {}).get("epochs", sys.maxsize)

    def _say(self, line: str):
        if peers.is_chief(self.model.distribute_strategy):
            say(line)


def _check_not_in_the_way(path: str):
    """Raises a ValueError if a path is something else than a folder, which can be none later."""
    if is_remote(path) or os.path.isdir(path) or not os.path.lexists(path):
        return
    found = "a link to nothing" if os.path.islink(path) and not os.path.exists(path) else "a file"
    raise ValueError(
        f"`directory` must be the path of a folder. Received: directory={path!r}, which is "
        f"{found}. Name a folder, or remove it."
    )


def _mode_of(monitor: str) -> str:
    return "max" if any(word in monitor.lower() for word in _RISING) else "min"
