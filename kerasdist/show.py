"""Runs as a picture and a few sentences, from their event files, for use without a browser."""

import collections
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from kerasdist.support.text import short_list
from kerasdist.support.usage_error import UsageError, arguments_checked
from kerasdist.training.report import worker_share
from kerasdist.training.report.limit import limit_of

Curves = dict[str, dict[int, float]]

# Each panel with the tags of its curves.
_PANELS = (
    ("loss", ("loss", "epoch_loss")),
    ("learning rate", ("learning_rate", "epoch_learning_rate")),
    ("examples/s", ("examples_per_second",)),
)
# Several optimizers have one each, by its name.
_RATE_OF_ONE = re.compile("(epoch_)?learning_rate_.+")
_FEW_POINTS = 30
# The curves of one panel differ by these.
_STYLES = ("-", "--", ":", "-.")
_ROLES = ("train", "validation")


def show(runs: Sequence[Path], output: Path) -> str:
    """Draws one or several runs into a PNG; returns a sentence about each.

    Args:
        runs: Folders with event files, such as the `log_dir` of `callbacks.Summaries`; or folders
            of such folders, each of which is then drawn.
        output: The PNG; without a suffix it gets ".png", and a folder gets "run.png".

    Raises:
        UsageError: No run has numbers in it, or any that are drawn, or matplotlib is missing.
    """
    unreadable: list[Path] = []
    runs = list(dict.fromkeys(run for folder in runs for run in _runs_in(folder)))
    curves, empty = _read_all(runs, unreadable)
    panels = _panels(curves)
    if not panels:
        folders = ", ".join(map(os.path.abspath, runs))
        raise UsageError(
            f"There are no losses, rates or epoch logs to draw in {folders}. "
            "Name the log_dir of callbacks.Summaries or TensorBoard."
        )
    output = _file_of(output)
    _draw(panels, list(curves), output)
    told = [sentence_on(name, each) for name, each in curves.items()]
    notes = [f"No numbers yet: {short_list(empty, 3)}."] if empty else []
    return "\n".join([*told, *notes, *_note_on(unreadable), f"Written: {output}"])


def _read_all(runs: list[Path], unreadable: list[Path]) -> tuple[dict[str, Curves], list[str]]:
    """Returns the numbers of runs by their names, and the names of those that have none."""
    curves, errors = {}, {}
    for run in runs:
        name = _name_of(run, runs)
        try:
            curves[name] = read(run, unreadable)
        except UsageError as error:  # Such as one that has just begun.
            errors[name] = error
    if not curves:
        raise next(iter(errors.values()))
    return curves, list(errors)


def read(run: Path, unreadable: list[Path] | None = None) -> Curves:
    """Returns the numbers in the event files of a run: by role and tag, the value of each step.

    Args:
        run: A folder.
        unreadable: Gets the files that cannot be read, or not to their ends.

    Raises:
        UsageError: There are none.
    """
    curves: Curves = collections.defaultdict(dict)
    damaged: list[Path] = []
    for path in _event_files_in(run):
        role = path.parent.relative_to(run).as_posix()
        try:
            for tag, step, value in _numbers(path):
                curves[tag if role == "." else f"{role}/{tag}"][step] = value
        except Exception:  # TensorFlow's or protobuf's, of what is no event.  # noqa: BLE001
            damaged.append(path)
    if not curves:
        raise UsageError(
            " ".join(
                [
                    f"There are no numbers in {os.path.abspath(run)}.",
                    *_note_on(damaged),
                    "Name the folder that event files are written to, such as the log_dir of "
                    "callbacks.Summaries.",
                ]
            )
        )
    if unreadable is not None:
        unreadable += damaged
    return dict(curves)


def _event_files_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("events.out.tfevents.*")) if folder.is_dir() else []


def _runs_in(folder: Path) -> list[Path]:
    """Returns the runs in a folder: itself, unless all event files are in those of others."""
    parents = [path.parent for path in _event_files_in(folder)]
    runs = {each.parent if each.name in _ROLES and each != folder else each for each in parents}
    return [folder] if folder in runs or not runs else sorted(runs)


def _file_of(output: Path) -> Path:
    """Returns the file of a picture."""
    if output.is_dir():
        return output / "run.png"
    return output if output.suffix else output.with_name(f"{output.name}.png")


def _note_on(unreadable: list[Path]) -> list[str]:
    if not unreadable:
        return []
    return [f"Not read, or not to the end: {short_list(map(str, unreadable), 3)}."]


def sentence_on(name: str, curves: Curves) -> str:
    """Returns in a sentence how far a run got, how fast it was, and what limited it."""
    parts = []
    # A folder of event files itself, or one with a folder for each role.
    train = "train/" if any(tag.startswith("train/") for tag in curves) else ""
    for title in (f"{train}loss", f"{train}epoch_loss", "validation/epoch_loss"):
        if title in curves:
            step, value = max(curves[title].items())
            # Keras' TensorBoard counts epochs there, from 0.
            when = "in the last epoch" if "epoch_" in title else f"at step {step}"
            parts.append(f"{title} {value:.4g} {when}")
    means = {
        tag.removeprefix(train): _mean(line)
        for tag, line in curves.items()
        if tag.startswith(train)
    }
    if "examples_per_second" in means:
        parts.append(f"{means['examples_per_second']:.0f} examples/s")
    text = f"{name}: {', '.join(parts) or 'no losses'}."
    workers = worker_share.of_tags(means)
    if not workers or "step_ms" not in means:
        return text
    limit = limit_of(
        workers,
        ms_per_step=means["step_ms"],
        pace=worker_share.pace_in(means),
    )
    return f"{text} {limit}"


def _numbers(path: Path) -> Iterator[tuple[str, int, float]]:
    import tensorflow as tf

    try:
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    yield value.tag, event.step, value.simple_value
                elif value.metadata.plugin_data.plugin_name == "scalars":
                    number = tf.make_ndarray(value.tensor)
                    if number.size == 1:  # Others write several under this name.
                        yield value.tag, event.step, number.item()
    except tf.errors.DataLossError as error:
        if "truncated" not in str(error):  # The last event of a run that was killed.
            raise


def _panels(curves: dict[str, Curves]) -> list[tuple[str, dict]]:
    """Returns the titles of the panels that have curves, each with these by run and tag."""
    panels = [(title, _of_panel(curves, tags)) for title, tags in _PANELS]
    return [(title, lines) for title, lines in [*panels, *_metrics(curves)] if lines]


def _draw(panels: list[tuple[str, dict]], runs: list[str], output: Path):
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(
            "`show` needs matplotlib, which is not installed: pip install 'kerasdist[plot]'."
        ) from None
    figure = Figure(figsize=(9, 2.6 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), squeeze=False)[:, 0]
    for axis, (title, lines) in zip(axes, panels, strict=True):
        for (run, tag), line in lines.items():
            steps = sorted(line)
            axis.plot(
                steps,
                [line[step] for step in steps],
                label=_as_plain_text(f"{run} {tag}"),
                marker="o" if len(steps) < _FEW_POINTS else "",
                markersize=3,
                **_look_of(run, tag, runs=runs, tags=list(dict.fromkeys(tag for _, tag in lines))),
            )
        axis.set_title(_as_plain_text(title), loc="left")
        axis.grid(alpha=0.3)
        axis.xaxis.get_major_locator().set_params(integer=True)
        # Beside the panel: inside, that of several runs would cover their curves.
        axis.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
        axis.set_xlabel(_unit_of(lines))
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with arguments_checked():  # The suffix names the format.
            figure.savefig(output, dpi=120)
    except OSError as error:
        raise UsageError(
            f"`output` cannot be written. Received: output='{output}' ({error.strerror}). Name "
            "another file."
        ) from error


def _unit_of(lines: dict) -> str:
    """Returns what the numbers of a panel are drawn over."""
    count_epochs = {_counts_epochs(tag, line) for (_, tag), line in lines.items()}
    return " or ".join(
        name for name, each in (("step", False), ("epoch", True)) if each in count_epochs
    )


def _counts_epochs(tag: str, line: dict[int, float]) -> bool:
    """Whether the points of a curve are epochs, as in Keras' TensorBoard; in Summaries steps."""
    steps = sorted(line)
    is_each = steps == list(range(steps[0], steps[0] + len(steps)))
    return _without_role(tag).startswith("epoch_") and is_each and (len(steps) > 1 or not steps[0])


def _look_of(run: str, tag: str, *, runs: list[str], tags: list[str]) -> dict[str, str]:
    """Returns the colour of a curve, which is that of its run if there are several, and style."""
    index = tags.index(tag)
    color = runs.index(run) if len(runs) > 1 else index
    return {"color": f"C{color}", "linestyle": _STYLES[index % len(_STYLES)]}


def _as_plain_text(label: str) -> str:
    """Returns a label that matplotlib shows as it is: no formula, and not left out."""
    text = label.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _of_panel(curves: dict[str, Curves], tags: Iterable[str]) -> dict:
    return {
        (run, title): line
        for run, each in curves.items()
        for title, line in sorted(each.items())
        if _is_one_of(_without_role(title), tags)
    }


def _is_one_of(name: str, tags: Iterable[str]) -> bool:
    return name in tags or ("learning_rate" in tags and _RATE_OF_ONE.fullmatch(name) is not None)


def _metrics(curves: dict[str, Curves]) -> list:
    """Returns a panel for each further log of the epochs."""
    known = {tag for _, tags in _PANELS for tag in tags}
    names = {
        _without_role(title)
        for each in curves.values()
        for title in each
        if _without_role(title).startswith("epoch_")
    }
    return [
        (name.removeprefix("epoch_"), _of_panel(curves, (name,)))
        for name in sorted(names - {"epoch_examples_per_second"})
        if not _is_one_of(name, known)
    ]


def _without_role(title: str) -> str:
    return title.split("/", 1)[1] if title.startswith(("train/", "validation/")) else title


def _mean(line: dict[int, float]) -> float:
    return sum(line.values()) / len(line)


def _name_of(run: Path, runs: Sequence[Path]) -> str:
    names = {Path(os.path.abspath(each)).name for each in runs}  # That of "." is empty.
    return (Path(os.path.abspath(run)).name or str(run)) if len(names) == len(runs) else str(run)
