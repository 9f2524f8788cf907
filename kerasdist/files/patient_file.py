"""A file that HDF5 can write to even if the disk is full."""

import io
import os
from types import TracebackType
from typing import Any


class PatientFile(io.BytesIO):
    """A file on the disk that raises only at the end what went wrong.

    HDF5 does not survive a write that fails: when it closes the file, the process ends with a
    segmentation fault. So what the disk cannot hold is kept in memory, and the end of the `with`
    raises.

    Args:
        path: Of the file; an old one is replaced.

    Raises:
        OSError: It cannot be made, or, at the end, the disk could not hold all of it.

    Example:
        with PatientFile("model.weights.h5") as file:
            model.save_weights(file)
    """

    def __init__(self, path: str):
        super().__init__()
        self._path = path
        self._disk = open(path, "w+b", buffering=0)  # noqa: SIM115  `__exit__` closes it.
        self._error: OSError | None = None

    def __str__(self) -> str:
        return self._path  # Keras looks at the suffix.

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ):
        if exc_type is not None and self._error is None:
            # Keras leaves its HDF5 file open after an error; it writes more when it is collected.
            self._take_into_memory(OSError("Given up."), self.tell())
        self._disk.close()
        if exc_type is not None:
            return
        self.close()
        if self._error is not None:
            raise self._error

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        position = self.tell()
        while len(rest) and self._error is None:
            try:
                rest = rest[self._disk.write(rest) :]
            except OSError as error:
                self._take_into_memory(error, position)
                rest = memoryview(data).cast("B")
        if len(rest):
            super().write(rest)
        return size

    def readinto(self, buffer: Any) -> int:
        return self._disk.readinto(buffer) if self._error is None else super().readinto(buffer)

    def read(self, size: int | None = -1) -> bytes:
        return self._disk.read(size) if self._error is None else super().read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        place: Any = self._disk if self._error is None else super()
        return place.seek(offset, whence)

    def tell(self) -> int:
        return self._disk.tell() if self._error is None else super().tell()

    def truncate(self, size: int | None = None) -> int:
        if self._error is None:
            position = self.tell()
            try:
                return self._disk.truncate(size)
            except OSError as error:
                self._take_into_memory(error, position)
        if size is not None and size > len(self.getbuffer()):  # BytesIO can only shrink.
            position = super().tell()
            super().seek(size - 1)
            super().write(b"\0")
            super().seek(position)
            return size
        return super().truncate(size)

    def flush(self) -> None:
        pass  # Nothing is buffered.

    def _take_into_memory(self, error: OSError, position: int):
        self._disk.seek(0)
        super().seek(0)
        super().write(self._disk.read())
        super().seek(position)
        self._error = error
