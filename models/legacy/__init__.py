"""The legacy programs: what each of their flags is here, or what to do instead.

One table for two uses: the commands answer a legacy flag from it, and models.migrate translates a
whole command line with it.
"""

from collections.abc import Mapping

from absl import flags

from .flag import Flag as Flag
from .flag import Program as Program
from .flag import default_is as default_is
from .inception import PROGRAMS as OF_INCEPTION
from .slim import ABSENT_NETS as ABSENT_NETS
from .slim import NETS as NETS
from .slim import PROGRAMS as OF_SLIM

PROGRAMS: dict[str, Program] = {**OF_SLIM, **OF_INCEPTION}


def flags_of(command: str) -> dict[str, Flag]:
    """Returns the flags of all programs that a command such as "train" takes the place of."""
    return {
        name: flag
        for program in PROGRAMS.values()
        if program.command == command
        for name, flag in program.flags.items()
    }


def define_flags(values: flags.FlagValues, legacy: Mapping[str, Flag]) -> None:
    """Defines the legacy flags that are not there; they take only what happens anyway.

    With any other value, parsing raises an error that says what to do instead.
    """
    for name, flag in legacy.items():
        if name in values:
            continue
        define = flags.DEFINE_bool if isinstance(flag.default, bool) else flags.DEFINE_string
        define(name, None, flag.answer, flag_values=values)
        flags.register_validator(
            name,
            lambda value, flag=flag: value is None or flag.happens_anyway(value),
            message=f"there is no --{name} here: {flag.answer}.",
            flag_values=values,
        )
