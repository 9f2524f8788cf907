"""Translate a command line of TF-Slim or of the Inception trainers, and say all that differs.

    python -m models.migrate -- python train_image_classifier.py --dataset_dir=data --num_clones=2
    python -m models.migrate -- bazel-bin/inception/imagenet_train --num_gpus=2 --data_dir=data

Prints the command line that does the same here, and what became of each flag: what is the same,
what has another name or default, what is done otherwise and how, and what is not there. Nothing is
run. The programs: train_image_classifier, eval_image_classifier, export_inference_graph,
freeze_graph, and the train and eval programs of the Inception trainers.
"""

import dataclasses
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from absl import flags

from . import command, legacy, programs
from .usage_error import UsageError, printable

_WIDTH = 100


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Translation:
    """A legacy command line, parsed, and the flags here that do the same.

    Args:
        program: The legacy program.
        given: Its flags.
        unknown: What it was given and does not know.
        words: The values of flags here, by name, in the order of the new command.
    """

    program: legacy.Program
    given: flags.FlagValues
    unknown: list[str]
    words: dict[str, Any]


def main(argv: Sequence[str]) -> int:
    """Prints the translation of the command line `argv` and returns the exit code."""
    is_whole = bool(argv) and not argv[0].startswith("-")  # The -- before it was forgotten.
    return command.run(
        _migrate,
        define_flags=lambda values: None,
        argv=["--", *argv] if is_whole else argv,
        description=__doc__,
        takes_files=True,
    )


def _migrate(values: flags.FlagValues, words: Sequence[str]) -> int:
    del values
    settings, program, arguments = _split(words)
    found = _translate(program, arguments)
    print("The new command:\n")
    print(_shown([*settings, *_launch(found), *_command(found)]))
    for title, lines in (
        ("The same", _same(found)),
        ("Another name, or another value", _renamed(found)),
        ("Not given, and another default here", _other_defaults(found)),
        ("No flag there, but one here", _without_flag(found)),
        ("Done otherwise", _otherwise(found)),
        ("Not there", _absent(found)),
        ("Unknown to that program, and left out", found.unknown),
    ):
        for number, line in enumerate(lines):
            if not number:
                print(f"\n{title}:")
            told = programs.as_called(line)
            print(textwrap.fill(told, _WIDTH, initial_indent="  ", subsequent_indent="    "))
    return 0


def _split(words: Sequence[str]) -> tuple[list[str], legacy.Program, list[str]]:
    """Returns the settings of the environment, the program and its arguments."""
    for word in words:
        if printable(word) != word:
            raise UsageError(f"{word!r} cannot be printed, and so not be a part of a command.")
    for number, word in enumerate(words):
        name = re.split(r"[/.]", word.removesuffix(".py"))[-1]
        if name in legacy.PROGRAMS:
            settings = [each for each in words[:number] if re.match(r"\w+=", each)]
            return settings, legacy.PROGRAMS[name], list(words[number + 1 :])
    raise UsageError(
        f"No legacy program is named in {shlex.join(words)!r}. Write its whole command line after "
        f"--: python -m models.migrate -- python train_image_classifier.py ... The programs: "
        f"{', '.join(legacy.PROGRAMS)}."
    )


def _translate(program: legacy.Program, arguments: list[str]) -> _Translation:
    given = _parser(program)
    _, *unknown = given(["", *arguments], known_only=True)
    words = {
        flag.here: given[name].value
        for name, flag in program.flags.items()
        if flag.here and (given[name].present or flag.always)
    }
    words |= {**program.fixed, **program.computed(given)}
    return _Translation(
        program=program,
        given=given,
        unknown=unknown,
        words={name: value for name, value in words.items() if value is not None},
    )


def _parser(program: legacy.Program) -> flags.FlagValues:
    """Returns the flags of a legacy program, each of the type of its default."""
    values = flags.FlagValues()
    types = {bool: flags.DEFINE_bool, int: flags.DEFINE_integer, float: flags.DEFINE_float}
    for name, flag in program.flags.items():
        define = types.get(type(flag.default), flags.DEFINE_string)
        define(name, flag.default, flag.answer, flag_values=values)
    return values


def _launch(found: _Translation) -> list[str]:
    """Returns what starts the tasks of slim's flags on one machine, if there are several."""
    words = found.words
    workers, servers = words.get("worker_replicas", 1), words.get("num_ps_tasks", 0)
    if workers == 1 and not servers:
        return []
    ps = ["--ps", str(servers)] if servers else []
    return ["python", "-m", "kerasdist", "launch", "--workers", str(workers), *ps, "--"]


def _command(found: _Translation) -> list[str]:
    return [
        *programs.words(found.program.command),
        *(_flag(name, value) for name, value in found.words.items()),
    ]


def _flag(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no{name}"
    return f"--{name}={value}"


def _shown(words: list[str]) -> str:
    """Returns a command line that a shell takes, in several lines."""
    first, *rest = map(shlex.quote, words)
    lines = [f"  {first}"]
    for word in rest:
        if len(lines[-1]) + len(word) + 3 > _WIDTH:  # With what ends the line.
            lines.append("     ")
        lines[-1] += f" {word}"
    return " \\\n".join(lines)


def _given(found: _Translation) -> Iterator[tuple[str, legacy.Flag, Any]]:
    """Yields the flags that the command line has: the name, what became of it, and the value."""
    for name, flag in found.program.flags.items():
        if found.given[name].present:
            yield name, flag, found.given[name].value


def _same(found: _Translation) -> list[str]:
    given = list(_given(found))
    kept = [
        name
        for name, flag, value in given
        if flag.here == name and found.words.get(name) == value and value not in flag.refused
    ]
    anyway = [name for name, flag, value in given if not flag.here and flag.happens_anyway(value)]
    return [
        *([_named(kept)] if kept else []),
        *([f"{_named(anyway)}: left out, it happens anyway"] if anyway else []),
    ]


def _named(names: Sequence[str]) -> str:
    return ", ".join(f"--{name}" for name in names)


def _renamed(found: _Translation) -> list[str]:
    return [
        f"{_flag(name, value)}: {_flag(flag.here, found.words[flag.here])}"
        for name, flag, value in _given(found)
        if flag.here in found.words and (flag.here != name or found.words[name] != value)
    ]


def _other_defaults(found: _Translation) -> list[str]:
    return [
        f"{_flag(flag.here, found.words[flag.here])}: {flag.always}"
        for name, flag in found.program.flags.items()
        if flag.always and flag.here in found.words and not found.given[name].present
    ]


def _without_flag(found: _Translation) -> list[str]:
    of_flags = {flag.here for flag in found.program.flags.values()}
    told = [_flag(name, value) for name, value in found.words.items() if name not in of_flags]
    return [", ".join(told)] if told else []


def _otherwise(found: _Translation) -> list[str]:
    lines = [
        f"{_flag(name, value)}: {flag.otherwise}"
        for name, flag, value in _given(found)
        if flag.otherwise and not flag.happens_anyway(value)
    ]
    return [*lines, *found.program.notes]


def _absent(found: _Translation) -> list[str]:
    told = (
        (_flag(name, value), flag.refused.get(value, flag.absent))
        for name, flag, value in _given(found)
        if not flag.happens_anyway(value)
    )
    return [f"{flag}: {reason}" for flag, reason in told if reason]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
