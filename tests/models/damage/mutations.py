"""Damage of many kinds, drawn by a seed: to bytes, to texts and to what a folder holds."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from random import Random

# What people, scripts and broken tools have put in the place of a value.
_VALUES = [
    *("", " ", "0", "-1", "1.5", "1e308", "-1e308", "nan", "inf", "None", "true", "[]", "{}", ","),
    *("9" * 12, "9" * 30, "9" * 5000, "a" * 300, "caf\udce9", "\x1b]0;owned\x07", "a\nb", "="),
    *("../..", "train[", "train[:200%]", "train[5:2]+test", "fc4=1,fc4=2", "fc4=", "a:1,a:1", ":"),
    "\u202etxt",
]


def mutated(content: bytes, random: Random) -> bytes:
    """Returns other bytes: with one place flipped, overwritten, removed, doubled, or cut off."""
    while True:
        begin = random.randrange(len(content) + 1)
        end = min(begin + random.choice([1, 1, 4, 32, len(content)]), len(content))
        found = random.choice(_MUTATIONS)(content, begin, end, random)
        if found != content:
            return found


def mutated_text(text: str, random: Random) -> str:
    """Returns another text that a command line or a variable of the environment can hold."""
    begin, equals, value = text.rpartition("=")
    if random.random() < 0.5:
        return begin + equals + random.choice([each for each in _VALUES if each != value])
    content = mutated(os.fsencode(text), random).replace(b"\0", b"")
    return os.fsdecode(content)


def _flip_a_bit(content: bytes, begin: int, _: int, random: Random) -> bytes:
    rest = content[begin:]
    return content[:begin] + bytes([rest[0] ^ 1 << random.randrange(8)]) + rest[1:] if rest else b""


def _overwrite(content: bytes, begin: int, end: int, random: Random) -> bytes:
    value = random.choice([b"\0", b"\xff", b" ", b"\n", b"9"])
    return content[:begin] + value * (end - begin) + content[end:]


def _fill_with_noise(content: bytes, begin: int, end: int, random: Random) -> bytes:
    return content[:begin] + random.randbytes(end - begin) + content[end:]


def _insert_noise(content: bytes, begin: int, end: int, random: Random) -> bytes:
    return content[:begin] + random.randbytes(1 + random.randrange(9)) + content[begin:]


def _remove(content: bytes, begin: int, end: int, _: Random) -> bytes:
    return content[:begin] + content[end:]


def _double(content: bytes, begin: int, end: int, _: Random) -> bytes:
    return content[:end] + content[begin:]


def _cut_off(content: bytes, begin: int, _: int, __: Random) -> bytes:
    return content[:begin]


_MUTATIONS = [
    *(_flip_a_bit, _flip_a_bit, _flip_a_bit, _overwrite, _fill_with_noise, _insert_noise),
    *(_remove, _double, _cut_off),
]


def put_odd_entry(folder: Path, content: bytes, random: Random) -> None:
    """Puts something among the images of a class that no camera has written.

    Args:
        folder: Of the images of a class.
        content: That of an image.
        random: Draws what it is.
    """
    random.choice(_ODDITIES)(folder, content)


def _named(name: bytes, *, is_whole: bool) -> Callable[[Path, bytes], None]:
    def put(folder: Path, content: bytes) -> None:
        with open(os.path.join(os.fsencode(folder), name), "wb") as file:
            file.write(content if is_whole else b"no image")

    return put


def _linked(target: str, name: str) -> Callable[[Path, bytes], None]:
    return lambda folder, _: (folder / name).symlink_to(target)


def _bind(folder: Path, _: bytes) -> None:
    place = os.getcwd()
    os.chdir(folder)  # The path of a socket is short.
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket.png")
    os.chdir(place)


_STEERING = (b"caf\xe9.png", b"\x1b]0;owned\x07.png", b"a\nb.png", "\u202egnp.png".encode())
_ODDITIES: list[Callable[[Path, bytes], object]] = [
    *(_named(name, is_whole=True) for name in _STEERING),
    *(_named(name, is_whole=False) for name in (*_STEERING, b"x" * 251 + b".png")),
    *(_linked(target, "link.png") for target in ("nothing.png", "link.png", "..", "/dev/zero")),
    *(_linked(target, "labels.txt") for target in ("nothing", "..")),
    lambda folder, _: os.mkfifo(folder / "pipe.png"),
    lambda folder, _: os.mkfifo(folder.parents[1] / "labels.txt"),
    lambda folder, _: (folder.parents[1] / "labels.txt").mkdir(),
    lambda folder, _: (folder / "folder.png").mkdir(),
    lambda folder, _: (folder / "empty.png").touch(),
    lambda folder, _: folder.rename(folder.with_name("caf\udce9")),
    lambda folder, _: folder.rename(folder.with_name("\x1b[31mred")),
    _bind,
]
