"""Abandons what was scheduled before an error, so that the next call begins anew."""

import contextlib
import threading
from collections.abc import Generator

import tensorflow as tf

from kerasdist.private import coordinator_adapter
from kerasdist.training.hooks import graph_checks

_FORGET_SECS = 5.0
_Coordinator = tf.distribute.coordinator.ClusterCoordinator


@contextlib.contextmanager
def abandoned_after_errors(coordinator: _Coordinator, running: list) -> Generator[None]:
    """Raises errors of what runs on the workers as those of the user's code that they are.

    Args:
        coordinator: Of the workers.
        running: What was scheduled and is not awaited yet; emptied after an error.
    """
    try:
        yield
    except (tf.errors.OpError, *coordinator_adapter.INPUT_ERRORS) as error:
        abandon(coordinator, running)
        cause = coordinator_adapter.cause_of(error)
        raise graph_checks.explained(_of_user(cause)) from None
    except Exception:
        abandon(coordinator, running)
        raise


def abandon(coordinator: _Coordinator, running: list) -> None:
    """Lets the coordinator forget what was scheduled, after an error."""
    running.clear()
    # A thread does it, since it waits for every worker, also for one that is halted.
    thread = threading.Thread(target=_forget, args=(coordinator,), daemon=True)
    thread.start()
    thread.join(_FORGET_SECS)


def _forget(coordinator: _Coordinator) -> None:
    with contextlib.suppress(Exception):  # The error itself was raised; this may be any other.
        coordinator.join()


def _of_user(error: Exception) -> Exception:
    if isinstance(error, tf.errors.OutOfRangeError):
        return ValueError(
            "The data of a worker ended in the middle of an epoch. Call `repeat()` on it, so that "
            "it never ends, or give fewer `steps_per_epoch`."
        )
    return error
