"""Writes checkpoints into their folder, also while training goes on, and keeps some of them."""

import contextlib
import errno
import time
from collections.abc import Callable
from concurrent import futures

import numpy as np
import tensorflow as tf

from kerasdist.checkpoints import process_name
from kerasdist.checkpoints.folder import Folder
from kerasdist.checkpoints.saved import Arrays, Record, SaveWeights, saver_of_copy
from kerasdist.status import task_status
from kerasdist.support import launch_note
from kerasdist.support.background import in_background
from kerasdist.support.users_line import warn

# A program may call `fit` in a loop.
_MOST_ENDS = 10
_END_SECS = 120.0


class Writer:
    """Writes one checkpoint at a time, and removes those that are not to be kept.

    If one cannot be written, it warns, and training goes on. A disk stays full: it warns again only
    after one has been written.

    Args:
        folder: Where they are.
        keep: How many to keep, the newest.
        keep_best: How many to keep in addition, the best.
        monitor: The value that says which are best.
        mode: "min" or "max", what is best.
        raises: Whether an error is raised instead.

    Attributes:
        has_failed: Whether the last checkpoint could not be written.
    """

    def __init__(
        self,
        folder: Folder,
        *,
        keep: int,
        keep_best: int,
        monitor: str,
        mode: str,
        raises: bool,
    ):
        self._folder, self._keep, self._keep_best = folder, keep, keep_best
        self._monitor, self._mode, self._raises = monitor, mode, raises
        self._writing: tuple[int, futures.Future] | None = None
        # What is there already is of a process that is gone. A clock, which may have been corrected
        # since, does not tell.
        self._found, self._has_told = folder.newest_record(), False
        self._has_told_of_room = False
        self.has_failed = False

    def begin(self) -> None:
        """Finds out before the first step whether this process may write into the folder."""
        self._try("Checkpoints", self._folder.try_out)

    def write(self, step: int, record: Record, arrays: Arrays, save_weights: SaveWeights) -> None:
        """Writes a checkpoint; the arguments are those of `Folder.write`.

        Those that `record["ends"]` names are kept, too: with them a program of several `fit` has
        what it had between them when it is started again.
        """
        self.wait()
        self._try(_named(step), lambda: self._write(step, record, arrays, save_weights))

    def write_beside(
        self, step: int, record: Record, arrays: Arrays, save_weights: SaveWeights
    ) -> None:
        """Does the same in a thread, from a copy of the present arrays and weights in memory."""
        self.wait()
        arrays = {name: np.array(each) for name, each in arrays.items()}
        saver = saver_of_copy(save_weights)
        self._writing = step, in_background(self._write, step, record, arrays, saver)

    def wait(self) -> None:
        """Waits until the thread has written its checkpoint."""
        if self._writing is None:
            return
        (step, writing), self._writing = self._writing, None
        self._try(_named(step), writing.result)

    def end(self) -> None:
        """Does the same when `fit` has ended, but not for ever: a disk may hang.

        What is still written then is what an error, such as the loss of a peer, has interrupted.
        """
        if self._writing is not None:
            step, writing = self._writing
            if not futures.wait([writing], _END_SECS).done:
                self._writing = None
                warn(f"{_named(step)} was not written to {self._folder.path!r} in {_END_SECS:g} s.")
        self.wait()

    def describe_newest(self) -> str:
        """Returns which checkpoint there is if the last one could not be written."""
        steps = []
        with contextlib.suppress(OSError, tf.errors.OpError):  # The disk may be gone altogether.
            steps = self._folder.steps()
        if not steps:
            return f"No checkpoint could be written to {self._folder.path}."
        return (
            "The last checkpoint could not be written. The newest is "
            f"{self._folder.path_of(steps[-1])}"
        )

    def _write(self, step: int, record: Record, arrays: Arrays, save_weights: SaveWeights):
        self._warn_of_others()
        began_at = time.time()
        try:
            self._folder.write(step, record, arrays, save_weights)
        except (OSError, tf.errors.OpError) as error:
            if not (_is_of_full_disk(error) and self._give_up_oldest(step, record)):
                raise
            self._folder.write(step, record, arrays, save_weights)
        launch_note.add_checkpoint(step)
        now = time.time()
        task_status.of_process().note_checkpoint(step, written_at=now, secs=now - began_at)
        self._folder.keep(self._kept(step, record, self._keep))

    def _kept(self, step: int, record: Record, num_newest: int) -> set[int]:
        """Returns which checkpoints stay when that of a step is the newest."""
        steps = self._folder.steps()
        # Later ones are damaged: training went on from one before them.
        newest = [each for each in steps if each <= step][-num_newest:]
        later = [each for each in steps if each > step]
        best = []
        if self._keep_best:  # Every record is read for it.
            ranked = self._folder.ranked(self._monitor, self._mode)
            best = [each for each in ranked if each <= step][: self._keep_best]
        return {*newest, *later, *best, *record.get("ends", ())[-_MOST_ENDS:]}

    def _give_up_oldest(self, step: int, record: Record) -> bool:
        """Removes the oldest checkpoint that is neither the newest, nor kept for another reason."""
        steps = self._folder.steps()
        spare = sorted(set(steps) - self._kept(step, record, 1))
        if self.has_failed or not spare:  # A disk that others fill costs one.
            return False
        self._folder.keep(set(steps) - {spare[0]})
        if not self._has_told_of_room:
            self._has_told_of_room = True
            warn(
                f"There is no room for {self._keep} checkpoints in {self._folder.path!r}: that of "
                f"step {spare[0]} is removed for that of step {step}, and so on. Make room, or "
                "lower `keep`."
            )
        return True

    def _warn_of_others(self):
        """Warns once if another process has written into the folder since this training began."""
        newest = {} if self._has_told else self._folder.newest_record()
        writer = newest.get("writer", process_name.own())
        if writer == process_name.own() or newest == self._found:
            return
        self._has_told = True
        pid, _, host = writer.partition("@")
        warn(
            f"Process {pid} on {host!r} writes checkpoints into {self._folder.path!r}, too. Each "
            "removes those of the other, and who starts next goes on from the newest of them. End "
            "one of the two, or give each a folder of its own."
        )

    def _try(self, what: str, write: Callable[[], None]):
        try:
            write()
        except (OSError, tf.errors.OpError) as error:
            if self._raises:
                raise
            if not self.has_failed:
                warn(
                    f"{what} cannot be written to {self._folder.path!r}: "
                    f"{getattr(error, 'message', error)}. Training goes on all the same; later "
                    "ones are tried, and the end of `fit` says if the last one fails, too."
                )
            self.has_failed = True
        else:
            self.has_failed = False


def _named(step: int) -> str:
    return f"The checkpoint of step {step}"


def _is_of_full_disk(error: Exception) -> bool:
    is_full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
    return is_full or isinstance(error, tf.errors.ResourceExhaustedError)
