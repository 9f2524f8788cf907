"""Tells what can show a trace, and whether it is installed here."""

import importlib.metadata
import shlex

# The former package of TensorBoard's profile tab, which loaded parts of TensorFlow that are gone.
_OLD_PLUGIN = "tensorboard-plugin-profile"
_OLD_VERSIONS = (2, 20)


def ways_to_look(path: str) -> str:
    """Returns the commands that show a trace in Chrome's format, and what they need."""
    return (
        f"python -m kerasdist trace {shlex.quote(path)}, or open it at ui.perfetto.dev; for "
        f"TensorBoard's profile tab {_profile_tab()}"
    )


def _profile_tab() -> str:
    missing = [name for name in ("tensorboard", "xprof") if _version(name) is None]
    old = _version(_OLD_PLUGIN)
    if "xprof" in missing and old and tuple(map(int, old.split(".")[:2])) < _OLD_VERSIONS:
        return f"{_OLD_PLUGIN} {old} is too old: pip install {' '.join(missing)}"
    if missing:
        return f"pip install {' '.join(missing)}"
    return "run tensorboard --logdir on the folder of the run"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
