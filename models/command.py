"""A command of this application: parses its flags, runs it, and turns mistakes into exit codes.

Each command has flags of its own instead of absl's one global set, so that a recipe or a test
can call `train.main([...])` and `evaluate.main([...])` in the same process.
"""

import contextlib
import logging
import re
import sys
from collections.abc import Callable, Generator, Mapping, Sequence

from absl import flags

import kerasdist

from . import legacy, programs
from .usage_error import RunError, UsageError, in_one_line, printable

INTERRUPTED = 130  # The exit code that a shell reports for Ctrl-C.
_FAILURE = 1
_MISTAKE = 2
_LEGACY = """
With a command line of TF-Slim or of the Inception trainers, this prints the new one, and all that
differs: python -m models.migrate -- python train_image_classifier.py --train_dir=..."""


def run(
    action: Callable[..., int],
    *,
    define_flags: Callable[[flags.FlagValues], None],
    argv: Sequence[str],
    description: str | None,
    takes_files: bool = False,
    replaces: Mapping[str, legacy.Flag] | None = None,
) -> int:
    """Parses `argv` and returns the exit code of `action`.

    `action` is called with the flags and, if the command `takes_files`, with the other arguments.
    `replaces` are the flags of the legacy programs that the command takes the place of.
    The code is 1 if the cluster does not start, a file or an example cannot be used or training
    diverges; 2 for a mistake, 130 for Ctrl-C.
    """
    values = flags.FlagValues()
    define_flags(values)
    flags.DEFINE_bool("help", False, "Print this help.", short_name="h", flag_values=values)
    listed = values.get_help()  # Without the legacy flags.
    legacy.define_flags(values, replaces or {})
    try:
        files = _parse(values, argv, takes_files=takes_files)
        if values.help:
            # absl heads the flags of the main module with the path of its file.
            listed = listed.replace(f"\n{sys.argv[0]}:\n", "\nthis command:\n")
            told = f"{description}\nFlags:\n{listed}{_LEGACY if replaces else ''}"
            print(programs.as_called(told))
            return 0
        with _lines_as_they_are():
            return action(values, files) if takes_files else action(values)
    except flags.UnrecognizedFlagError as error:
        _say(f"error: {error}\n`--help` lists the flags.")
        return _MISTAKE
    except (flags.Error, UsageError) as error:
        # absl shows what is no bool as a tuple.
        told = re.sub(r"\('Non-boolean argument .*'\)$", "it is neither true nor false", str(error))
        _say(f"error: {in_one_line(told)}")
        return _MISTAKE
    except (kerasdist.ClusterStartError, RunError, OSError) as error:
        # One without a file may be of a lost task, of which the others are to hear.
        if isinstance(error, OSError) and error.filename is None:
            raise
        _say(f"error: {error}")
        return _FAILURE
    except KeyboardInterrupt:
        _say("\nInterrupted.")
        return INTERRUPTED


def examples(number: int) -> str:
    """Returns "1 example" or "1437 examples"."""
    return f"{number} example{'' if number == 1 else 's'}"


def _say(line: str) -> None:
    """Prints a line to stderr, after what was printed before it."""
    with contextlib.suppress(OSError, ValueError):  # It is full, or closed.
        sys.stdout.flush()
    lines = programs.as_called(line).split("\n")
    print("\n".join(map(printable, lines)), file=sys.stderr)


@contextlib.contextmanager
def _lines_as_they_are() -> Generator[None]:
    """Lets the lines about a training appear without a prefix, unless the caller logs otherwise.

    absl sets up Python's logging, with a prefix, as soon as it warns of anything.
    """
    logger = logging.getLogger("kerasdist")
    passes_on = logger.propagate
    logger.propagate = passes_on and logger.hasHandlers()
    try:
        yield
    finally:
        logger.propagate = passes_on


def _parse(values: flags.FlagValues, argv: Sequence[str], *, takes_files: bool) -> list[str]:
    """Sets the flags and returns the other arguments."""
    # absl takes the first argument for the program's name.
    _, *rest = values(["", *argv])
    unexpected = [] if takes_files else rest
    if unexpected:
        raise UsageError(
            f"Unexpected argument {unexpected[0]!r}. Write flags as --name=value; see --help."
        )
    for name in values:
        value = values[name].value
        if printable(value) != str(value):
            raise UsageError(
                f"--{name}={value!r} cannot be printed, or is not UTF-8 text, which TensorFlow "
                "needs. Give the path of a link to it."
            )
    return rest
