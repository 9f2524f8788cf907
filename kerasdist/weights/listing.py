"""Lists what a checkpoint holds, as text, and how two differ."""

import numpy as np

from kerasdist.support.text import counted, in_columns
from kerasdist.training.trial.tolerances import absolute_differences
from kerasdist.weights.sources import Source, Value, read


def listing(path: str) -> str:
    """Returns where a checkpoint is from, and its weights with shapes, dtypes and sizes.

    Raises:
        ValueError: It cannot be read.
    """
    source = read(path)
    values = source.values
    rows = [
        (value.name, value.dtype, str(list(value.shape)), f"{_bytes(value):,}") for value in values
    ]
    total = f"{counted(len(values), 'array')}, {sum(map(_bytes, values)):,} bytes"
    return "\n".join([_about(path, source), *in_columns(rows), total])


def comparison(first: str, second: str) -> str:
    """Returns how the weights in two checkpoints differ, by name.

    Raises:
        ValueError: One cannot be read.
    """
    ours, theirs = ({value.name: value for value in read(path).values} for path in (first, second))
    lines = []
    for name in dict.fromkeys([*ours, *theirs]):
        if name not in theirs:
            lines.append(f"{name}: only in {first}")
        elif name not in ours:
            lines.append(f"{name}: only in {second}")
        elif difference := _difference(ours[name], theirs[name]):
            lines.append(f"{name}: {difference}")
    num_equal = len(ours.keys() & theirs.keys()) - sum(": only in" not in line for line in lines)
    return "\n".join(
        [*lines, f"{counted(num_equal, 'array is', 'arrays are')} equal, {len(lines)} differ"]
    )


def _about(path: str, source: Source) -> str:
    if source.checkpoint is None:
        return path
    about = source.checkpoint.record
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return (
        f"{source.checkpoint.path}: step {source.checkpoint.step}, epoch {about['epoch']} and "
        f"{about['step']} steps of the next, written {about['written']} with {versions}"
    )


def _difference(ours: Value, theirs: Value) -> str:
    if ours.shape != theirs.shape:
        return f"shape {list(ours.shape)} and {list(theirs.shape)}"
    first, second = (np.asarray(each.load(), "float64") for each in (ours, theirs))
    largest = absolute_differences(first, second).max(initial=0.0)
    return f"differs by {largest:.3g} at most" if largest else ""


def _bytes(value: Value) -> int:
    return int(np.prod(value.shape)) * np.dtype(value.dtype).itemsize
