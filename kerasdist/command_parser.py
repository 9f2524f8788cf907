"""The parser of a command that has subcommands: it names what was meant."""

import argparse
import importlib.metadata
import platform
import re
from typing import Any

from kerasdist.support.text import did_you_mean
from kerasdist.support.version import installed_version


class CommandParser(argparse.ArgumentParser):
    """A parser whose subcommands refuse what they do not know themselves, and name what is near."""

    def __init__(self, **options: Any):
        self._flags: list[str] = []
        self._counts: list[str] = []
        self._commands: Any = None
        super().__init__(allow_abbrev=False, **options)

    def add_argument(self, *names: str, **options: Any):
        """Adds an argument, as usual."""
        self._flags += names
        # Some take a number or a word, as in N or MIN:MAX.
        self._counts += names if str(options.get("metavar")).split()[0] == "N" else ()
        return super().add_argument(*names, **options)

    def add_subparsers(self, **options: Any):
        """Adds the commands, as usual."""
        self._commands = super().add_subparsers(**options)
        return self._commands

    def error(self, message: str):
        """Ends the program with exit code 2, and names the command that was meant."""
        unknown = re.search("invalid choice: '(.*?)'", message)
        if unknown and self._commands:
            known = [*self._commands.choices, "--help", "--version"]
            message += _with_help(did_you_mean(unknown[1], known, cutoff=0.7))
        super().error(message)

    def parse_known_args(self, args: Any = None, namespace: Any = None):
        """Parses, and ends the program with exit code 2 where an argument is unknown."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._hint(unknown[0])}")
        return parsed, unknown

    def _hint(self, unknown: str) -> str:
        if unknown == "-m" and "program" in self._flags:  # As other launchers have it.
            return f"\nPython runs a module, after --: {self.prog} -- python -m MODULE"
        if re.fullmatch("-[a-z][=0-9]*", unknown):  # As in -w 2, which other launchers have.
            flags = [flag for flag in self._counts if flag[2] == unknown[1]]
            return _with_help(did_you_mean(flags[0], flags)) if len(flags) == 1 else ""
        flags = [flag for flag in self._flags if flag.startswith("--")]
        return _with_help(did_you_mean(unknown.partition("=")[0], flags))


class PrintVersions(argparse.Action):
    """Prints what a report of an error should name."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: Any,
        values: Any,
        option_string: str | None = None,
    ):
        """Prints them and ends the program."""
        # A nightly, or TensorFlow for CPUs, comes in a distribution of another name.
        names = importlib.metadata.packages_distributions()
        versions = [f"kerasdist {installed_version() or '(not installed)'}"]
        versions += [
            f"{name} {importlib.metadata.version(names[name.lower()][0])}"
            for name in ("Keras", "TensorFlow")
        ]
        print(", ".join([*versions, f"Python {platform.python_version()}"]))
        parser.exit()


def _with_help(question: str) -> str:
    return f"\n{question.strip()} --help explains all of them." if question else ""
