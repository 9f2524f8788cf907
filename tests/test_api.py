"""The public names, what they document, and what importing them does."""

import importlib.metadata
import inspect
import json
import os
import resource
import subprocess
import sys
import textwrap
import types
import typing
from pathlib import Path

import pytest

import kerasdist
from kerasdist import testing
from kerasdist.processes import settings

ROOT = Path(__file__).parents[1]

METHOD_TYPES = (types.FunctionType, classmethod, staticmethod, property)

PUBLIC_NAMES = [
    "Cluster",
    "ClusterStartError",
    "DeploymentConfig",
    "LaunchError",
    "Plan",
    "Task",
    "barrier",
    "global_mean",
    "global_sum",
    "is_chief",
    "launch",
    "make_strategy",
    "new_checkpoints",
    "plan_training",
    "undo",
    "warm_start",
]


def test_these_are_the_public_names():
    public = [name for name in dir(kerasdist) if not name.startswith("_")]
    names = [name for name in public if not inspect.ismodule(getattr(kerasdist, name))]

    assert sorted(names) == PUBLIC_NAMES
    assert {"callbacks", "schedules"} <= set(public)


def test_the_version_is_that_of_the_distribution():
    assert kerasdist.__version__ == importlib.metadata.version("kerasdist")
    assert "__version__" in dir(kerasdist)


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_public_name_is_documented(name):
    docstring = inspect.getdoc(getattr(kerasdist, name))

    assert docstring
    assert not docstring.startswith(f"{name}(")  # What a dataclass writes by itself.
    assert "Example:" in docstring


def test_the_names_for_tests_of_programs_are_documented():
    own = {n: each for n, each in vars(testing).items() if is_public_of(testing, n, each)}

    assert sorted(own) == ["TaskOutput", "run_cluster"]
    assert all(inspect.getdoc(each) for each in own.values())
    assert "Example:" in str(testing.run_cluster.__doc__)


def is_public_of(module, name, value) -> bool:
    """Whether what a module knows by a name is one of the names that it offers."""
    is_table = module.__name__ == "kerasdist.callbacks"  # Of what its files define.
    is_own = is_table or getattr(value, "__module__", None) == module.__name__
    return callable(value) and is_own and not name.startswith("_")


def test_examples_are_code_where_the_site_shows_them():
    members = [
        value
        for module in (kerasdist.callbacks, kerasdist.schedules)
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith(module.__name__)
    ]
    assert len(members) > 14

    # Without a fence it is a paragraph.
    assert not [
        value.__name__
        for value in [*(getattr(kerasdist, name) for name in PUBLIC_NAMES), *members]
        if "```python" not in (inspect.getdoc(value) or "").partition("Example:")[2]
    ]


def test_the_settings_of_launch_have_one_type_for_checkers_and_for_readers():
    hints = typing.get_type_hints(settings.SettingsOfLaunch)
    shown = typing.get_type_hints(kerasdist.launch)
    declared = typing.get_type_hints(settings.Settings)

    assert hints == declared == {name: shown[name] for name in hints}
    assert {"program", *hints} == set(inspect.signature(kerasdist.launch).parameters)


# `run_cluster` ends sooner.
@pytest.mark.parametrize(
    ("function", "differ"), [(kerasdist.launch, set()), (testing.run_cluster, {"timeout_secs"})]
)
def test_launch_and_run_cluster_show_the_defaults_of_the_settings(function, differ):
    shown = {name: each.default for name, each in inspect.signature(function).parameters.items()}
    names = shown.keys() & typing.get_type_hints(settings.Settings).keys() - differ

    assert len(names) >= 6
    assert {name: shown[name] for name in names} == {
        name: getattr(settings.DEFAULTS, name) for name in names
    }


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_public_methods_are_documented(name):
    members = vars(getattr(kerasdist, name)).items()
    methods = [(member, value) for member, value in members if isinstance(value, METHOD_TYPES)]

    assert not [
        member for member, value in methods if not value.__doc__ and not member.startswith("_")
    ]


@pytest.mark.processes
def test_config_and_cluster_load_without_tensorflow():
    loaded = run_python("""
        import sys
        import kerasdist.config, kerasdist.cluster
        kerasdist.config.DeploymentConfig(), kerasdist.cluster.Cluster.from_env({})
        print(*sys.modules)
    """).split()

    assert "kerasdist.cluster" in loaded
    assert not {"tensorflow", "keras", "numpy"} & set(loaded)


@pytest.mark.processes
def test_help_loads_no_tensorflow():
    loaded = run_python("""
        import runpy, sys
        sys.argv = ["kerasdist", "--help"]
        try:
            runpy.run_module("kerasdist", run_name="__main__", alter_sys=True)
        except SystemExit as exit:
            assert not exit.code
        print(*sys.modules)
    """).split()

    assert "kerasdist" in loaded
    assert not {"tensorflow", "keras", "numpy"} & set(loaded)


@pytest.mark.processes
def test_help_answers_in_300_milliseconds():
    def seconds():
        start = processor_seconds()
        command = [sys.executable, "-m", "kerasdist", "--help"]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        return processor_seconds() - start

    assert min(seconds() for _ in range(5)) < 0.3


def processor_seconds():
    """Returns the time of the processes that were started; other tests run beside them."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.mark.processes
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_another_keras_backend_fails_at_first_use(backend):
    error = error_of("import kerasdist; kerasdist.make_strategy()", KERAS_BACKEND=backend)

    assert error.startswith("RuntimeError")
    assert backend in error
    assert "KERAS_BACKEND=tensorflow" in error


@pytest.mark.processes
def test_another_keras_backend_in_the_file_of_keras_fails_at_first_use(tmp_path):
    (tmp_path / "keras.json").write_text(json.dumps({"backend": "jax"}))

    error = error_of("import kerasdist; kerasdist.make_strategy()", KERAS_HOME=str(tmp_path))

    assert error.startswith("RuntimeError")
    assert "KERAS_BACKEND=tensorflow" in error


@pytest.mark.processes
def test_importing_changes_nothing_of_keras_tensorflow_and_the_process():
    run_python("""
        import logging, os, signal, warnings
        import keras, tensorflow as tf

        MODULES = [keras, keras.callbacks, keras.layers, keras.losses, keras.metrics,
                   keras.optimizers, tf.data, tf.distribute]
        CLASSES = {base for module in MODULES for value in vars(module).values()
                   if isinstance(value, type) for base in value.__mro__}

        def snapshot():
            return {(owner, name): value for owner in [*MODULES, *CLASSES]
                    for name, value in vars(owner).items()} | {
                "environ": dict(os.environ),
                "logging": (logging.root.level, list(logging.root.handlers)),
                "warnings": list(warnings.filters),
                "signals": signal.getsignal(signal.SIGTERM),
            }

        before = snapshot()
        import kerasdist
        for name in dir(kerasdist):
            getattr(kerasdist, name)
        after = snapshot()

        assert keras.Model.fit in before.values()
        changed = {key for key in before.keys() | after.keys()
                   if before.get(key) is not after.get(key) and before.get(key) != after.get(key)}
        assert not changed, changed
    """)


def run_python(program: str, **environ: str) -> str:
    """Runs a program in a process of its own and returns what it prints."""
    result = start_python(program, environ)
    assert result.returncode == 0, result.stderr
    return result.stdout


def error_of(program: str, **environ: str) -> str:
    """Runs a program that must fail and returns the error, without its traceback."""
    result = start_python(program, environ)
    assert result.returncode == 1, result.stdout + result.stderr
    lines = result.stderr.splitlines()
    last_frame = max(index for index, line in enumerate(lines) if line.startswith("  "))
    return "\n".join(lines[last_frame + 1 :])


def start_python(program: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    # Nothing that this process, which has imported kerasdist, may have set.
    clean = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        env=clean | environ,
        text=True,
        capture_output=True,
        timeout=120,
        check=False,
    )
