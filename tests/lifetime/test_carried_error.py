"""What one task catches, the others catch too."""

import errno

import pytest
import tensorflow as tf

from kerasdist.lifetime import carried_error


class OwnError(ValueError):
    pass


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), OSError),
        (PermissionError(errno.EACCES, "Permission denied", "m.keras"), PermissionError),
        (OSError("h5py has no number for it"), OSError),
        (OwnError("no layers"), ValueError),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates"), ValueError),
        (ExceptionGroup("two", [OSError(), OSError()]), Exception),
        (ZeroDivisionError(), ZeroDivisionError),
        (NotImplementedError("get_config"), NotImplementedError),
        (FileNotFoundError("without a number"), FileNotFoundError),
        (tf.errors.ResourceExhaustedError(None, None, "full"), tf.errors.ResourceExhaustedError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_an_error_is_of_the_same_kind_on_another_task(error, kind):
    made = carried_error.from_text(carried_error.to_text(error, "worker 0 failed"))

    assert type(made) is kind
    assert "worker 0 failed" in str(made)
    assert getattr(made, "errno", None) == getattr(error, "errno", None)
