"""Root, bound by the permissions of files as everybody else is."""

import contextlib
import ctypes
from collections.abc import Generator

# Of linux/capability.h: 64 bits of each set, in two words.
_VERSION = 0x20080522
_EFFECTIVE, _NUM_WORDS = 0, 6
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1 << 1, 1 << 2


@contextlib.contextmanager
def respected() -> Generator[None]:
    """Takes from this thread the right to read and write what the permissions of a file forbid."""
    words = _capabilities()
    rights = words[_EFFECTIVE] & ~_DAC_OVERRIDE & ~_DAC_READ_SEARCH
    _set_capabilities([rights, *words[1:]])
    try:
        yield
    finally:
        _set_capabilities(words)


def _capabilities() -> list[int]:
    words = (ctypes.c_uint32 * _NUM_WORDS)()
    _call("capget", words)
    return list(words)


def _set_capabilities(words: list[int]) -> None:
    _call("capset", (ctypes.c_uint32 * _NUM_WORDS)(*words))


def _call(name: str, words) -> None:
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)  # Of this thread.
    if getattr(ctypes.CDLL(None, use_errno=True), name)(header, words):
        raise OSError(ctypes.get_errno(), name)
