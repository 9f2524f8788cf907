"""Starting a model with weights that were trained before."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WarmStart:
    """What `warm_start` did; `str` of it is what it prints.

    Attributes:
        source: Where the values came from.
        restored: The names in the source, by the paths of the variables that got them.
        left_alone: Paths of variables that `include` and `exclude` have left out.
        missing: Paths of variables that the source has nothing for.
        unused: Names in the source that no variable asked for.
    """

    source: str
    restored: Mapping[str, str]
    left_alone: tuple[str, ...]
    missing: tuple[str, ...]
    unused: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"Warm start from {self.source}: {len(self.restored)} variables restored"]
        for title, names in (
            ("left alone", self.left_alone),
            ("missing in the source", self.missing),
            ("unused in the source", self.unused),
        ):
            if names:
                shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
                lines.append(f"  {title} ({len(names)}): {shown}")
        return "\n".join(lines)


def warm_start(
    model,
    source: Any,
    *,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    rename: Mapping[str, str] | Sequence[tuple[str, Any]] | None = None,
    ignore_missing: bool = False,
    reshape: bool = False,
    averages: bool = False,
) -> WarmStart:
    """Gives the variables of a model the values of a checkpoint, in part or under other names.

    Works under every strategy, before or after `compile`. All is checked before anything changes.
    Nothing of a file is run: of a `.keras` only the weights are read. Slots of an optimizer that is
    built stay; the averages of `use_ema` begin with the new weights. On several workers all of them
    call it, and the chief prints what was done.

    Args:
        model: A model that is built.
        source: A checkpoint of `callbacks.Checkpoint` (its folder, or one `step-...` in it); a
            `.keras`, `.weights.h5` or older `.h5` file, such as those of keras.applications; a
            checkpoint of TensorFlow, by objects or by names as of TF-Slim (a prefix, or the folder
            with the latest); or a dict of arrays by name.
        include: Regular expressions that match the whole of `variable.path`, or names that it
            begins with. None is all.
        exclude: The same, of variables to leave alone.
        rename: How names in the source become paths in the model: a dict of what they begin with,
            such as {"conv0": "stem"}, or a list of (regular expression, replacement: a str or a
            function, as in `re.sub`). TF-Slim's `weights` and `biases` are `kernel` and `bias` by
            themselves.
        ignore_missing: Whether variables may keep what they have where the source has nothing.
        reshape: Whether a value of another shape and the same size is reshaped.
        averages: Take moving averages instead of the weights, of the variables that have them.

    Returns:
        What was restored, left alone, missing and unused.

    Raises:
        TypeError: `include` or `exclude` is no list of regular expressions.
        ValueError: A pattern or name matches nothing; nothing would be restored; a variable is
            missing in the source, or of another shape; the source cannot be read.

    Example:
        ```python
        kerasdist.warm_start(model, "runs/1", exclude=["predictions"])
        ```

    Source: `assign_from_checkpoint_fn` and `get_variables_to_restore` of TF-Slim.
    """
    from kerasdist.weights import matching, sources

    include, exclude = (
        matching.checked_patterns(name, patterns)
        for name, patterns in (("include", include), ("exclude", exclude))
    )
    values = sources.read(source, averages=averages)
    return matching.restore(
        model,
        values,
        name=source if isinstance(source, str | os.PathLike) else "a dict",
        include=include,
        exclude=exclude,
        rename=rename,
        ignore_missing=ignore_missing,
        reshape=reshape,
    )
