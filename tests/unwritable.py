"""Streams that take nothing, as the log of a task on a full disk."""

import errno
import io


class FullDisk(io.StringIO):
    """A stream that has room for nothing."""

    def write(self, text):
        raise OSError(errno.ENOSPC, "No space left on device")

    def flush(self):
        self.write("")


def closed() -> io.StringIO:
    """Returns a stream that was closed."""
    stream = io.StringIO()
    stream.close()
    return stream
