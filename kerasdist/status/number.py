"""A number that others may read, and the forms in which they do.

NUMBERS = [Number("step", 120, "Updates that the optimizer has made.")]
to_prometheus(NUMBERS, {"task_type": "worker"})   # kerasdist_step{task_type="worker"} 120
to_json(NUMBERS)                                  # {"step": 120}
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_PREFIX = "kerasdist_"


@dataclasses.dataclass(frozen=True, slots=True)
class Number:
    """A number at a moment.

    Attributes:
        name: As Prometheus has it, without "kerasdist_": with its unit, and with "_total" where it
            only grows while the process lives.
        value: What it is. NaN where a computation has given that.
        help: What it means, in a sentence.
        labels: What tells numbers of the same name apart, at most one label.
    """

    name: str
    value: float
    help: str
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)


def to_prometheus(numbers: Sequence[Number], labels: Mapping[str, str]) -> str:
    """Returns the text that Prometheus scrapes, in its format 0.0.4.

    Args:
        numbers: Those of one name may be anywhere: the text has them together, as it must.
        labels: Those of every number.
    """
    lines = []
    for name in dict.fromkeys(each.name for each in numbers):
        alike = [each for each in numbers if each.name == name]
        kind = "counter" if name.endswith("_total") else "gauge"
        lines.append(f"# HELP {_PREFIX}{name} {_escaped_help(alike[0].help)}")
        lines.append(f"# TYPE {_PREFIX}{name} {kind}")
        lines += [
            f"{_PREFIX}{name}{_in_braces({**labels, **each.labels})} {_as_text(each.value)}"
            for each in alike
        ]
    return "".join(f"{line}\n" for line in lines)


def to_json(numbers: Iterable[Number]) -> dict[str, Any]:
    """Returns values by name, those with a label by its value inside; None for NaN and infinity."""
    found: dict[str, Any] = {}
    for each in numbers:
        value = each.value if math.isfinite(each.value) else None
        if not each.labels:
            found[each.name] = value
        else:
            (key,) = each.labels.values()
            found.setdefault(each.name, {})[key] = value
    return found


def _in_braces(labels: Mapping[str, str]) -> str:
    texts = (f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{','.join(texts)}}}"


def _escaped_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _escaped(text: str) -> str:
    return _escaped_help(text).replace('"', r"\"")


def _as_text(value: float) -> str:
    if math.isfinite(value):
        return str(value if isinstance(value, int) else float(value))
    return "NaN" if math.isnan(value) else f"{'+' if value > 0 else '-'}Inf"
