"""The error of a cluster that cannot start."""

import functools
import sys
from collections.abc import Callable
from types import TracebackType

from kerasdist.support.exit_codes import PEER_FAILED
from kerasdist.support.terminal import end_process


class ClusterStartError(RuntimeError):
    """The tasks of the cluster did not come together, or do not fit together.

    Raised before TensorFlow's servers start, with the same message on every task that could be
    reached. A program that does not catch it ends with exit code 138 if tasks have not come, since
    they may come to another attempt, and with 1 if they contradict each other.

    Attributes:
        is_absence: Whether tasks have not come.

    Example:
        ```python
        try:
            strategy = kerasdist.make_strategy()
        except ClusterStartError as error:
            sys.exit(f"No cluster: {error}")
        ```
    """

    is_absence = False


def error_of(reason: str, *, is_absence: object) -> ClusterStartError:
    """Returns the error of tasks that have not come, or of some that do not fit together."""
    error = ClusterStartError(reason)
    if is_absence is True:
        error.is_absence = True
        sys.excepthook = functools.partial(_hook, absence=error, previous=sys.excepthook)
    return error


def _hook(
    error_class: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
    *,
    absence: ClusterStartError,
    previous: Callable,
) -> None:
    previous(error_class, error, trace)
    # `from_env` adds to the message; a program may do so, too.
    if absence in (error, error.__cause__, error.__context__):
        end_process(PEER_FAILED)
