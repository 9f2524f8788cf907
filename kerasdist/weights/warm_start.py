"""Starts a model with weights that were trained before."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kerasdist.weights.result import WarmStart

if TYPE_CHECKING:  # `import kerasdist` loads neither Keras nor TensorFlow.
    import keras


def warm_start(
    model: "keras.Model",
    source: Any,
    *,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    rename: Mapping[str, str] | Sequence[Sequence[Any]] | None = None,
    ignore_missing: bool = False,
    reshape: bool = False,
    averages: bool = False,
) -> WarmStart:
    """Gives the variables of a model the values of a checkpoint, all or some, also renamed.

    It works under every strategy, before or after `compile`. Everything is checked before anything
    changes. No code in a file is run: only the weights of a `.keras` file are read. Existing
    optimizer state is kept, except that the averages of `use_ema` begin with the new weights. On
    several workers all of them call it, and the chief prints what was done.

    Args:
        model: A built model.
        source: A checkpoint of `callbacks.Checkpoint` (the folder of the run, one `step-...` in it,
            or a copy of one); a `.keras`, `.weights.h5` or older `.h5` file, such as those of
            keras.applications; a checkpoint of TensorFlow, object-based or name-based as in TF-Slim
            (a prefix, or the folder, for the latest one in it); or a dict of arrays by name.
        include: Regular expressions that match the whole of `variable.path`, or names that it
            begins with. None means all variables.
        exclude: The same for variables to leave alone.
        rename: How names in the source become paths in the model: a dict of what they begin with,
            such as {"conv0": "stem"}, or a list of pairs (regular expression, replacement), as in
            `re.sub`; the replacement is a str or a function. TF-Slim's `weights` and `biases`
            become `kernel` and `bias` without it.
        ignore_missing: Whether variables that the source has nothing for keep their values.
        reshape: Whether a value of another shape but the same size is reshaped.
        averages: Whether variables get their moving averages, if they have one, instead of their
            weights.

    Returns:
        What was restored, left alone, missing and unused.

    Raises:
        TypeError: `include` or `exclude` is not a list of regular expressions, `rename` is neither
            a dict nor a list of pairs, or `source` is neither a path nor a dict.
        ValueError: A pattern or name matches nothing, or is not a regular expression; nothing would
            be restored; a variable is missing in the source, or has another shape; or the source
            cannot be read.

    Example:
        ```python
        kerasdist.warm_start(model, "runs/1", exclude=["predictions"])
        ```

    Source: `assign_from_checkpoint_fn` and `get_variables_to_restore` of TF-Slim.
    """
    from kerasdist.weights import matching, renaming, sources

    include, exclude = (
        matching.checked_patterns(name, patterns)
        for name, patterns in (("include", include), ("exclude", exclude))
    )
    rules = renaming.checked_rules(rename)
    return matching.restore(
        model,
        sources.read(source, averages=averages).values,
        name=source if isinstance(source, str | os.PathLike) else "a dict",
        include=include,
        exclude=exclude,
        rules=rules,
        ignore_missing=ignore_missing,
        reshape=reshape,
    )
