"""What the README, CONTRIBUTING and docs tell people to type works as it stands.

Every ```python block of a page runs, in one process from top to bottom, and every line of its
```bash blocks is checked. Both run in a directory of their own, so that files go there; it holds
`train.py`, which is what the README calls its first script.
"""

import ast
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from kerasdist import callbacks, schedules
from tests import fork_server
from tests.cases import named
from tests.schedulers.commands import BY_OTHER_LAUNCHERS
from tests.test_api import PUBLIC_NAMES, is_public_of

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[1]
PAGES = [
    *("README.md", "CONTRIBUTING.md", "docs/clusters.md", "docs/doctor.md", "docs/training.md"),
    *("docs/parameter_servers.md", "docs/watching.md", "docs/resuming.md", "docs/warm_start.md"),
    *("docs/application.md", "docs/versions.md", "docs/trust.md", "deploy/README.md"),
    *("docs/callbacks.md", "docs/tutorial_kubernetes.md", "docs/tutorial_tf_slim.md"),
    *("docs/tutorial_tf_keras.md", "docs/tutorial_horovod.md"),
]
# One page for each public name.
REFERENCE = sorted(path.stem for path in (ROOT / "docs/reference").glob("*.md"))
# Runs each of some programs by itself: one import of TensorFlow is enough for all.
RUN_EACH = """
import json, sys
for name, program in json.load(sys.stdin).items():
    print(name, flush=True)
    exec(program, {"__name__": "__main__"})
"""

# Each with the reason.
NOT_RUN = {
    "source .venv/bin/activate",  # The environment is there: it runs this test.
    "tensorboard --logdir runs",  # Serves until it is stopped.
    "ruff check --fix",  # Changes the files.
    "ruff format",
}


# Behind a command that needs a cluster, or changes what is outside; the files that it names exist.
ELSEWHERE = "# Not run here."


def blocks(page: str, language: str) -> list[str]:
    """Returns the fenced blocks of a page in one language, with joined continuation lines."""
    text = (ROOT / page).read_text()
    found = re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return [re.sub(r" *\\\n *", " ", block) for block in found]


# What several pages say stands once: with the first of them.
BASH = {
    block: f"{page}-{index}"
    for page in reversed(PAGES)
    for index, block in enumerate(blocks(page, "bash"))
}
# Commands of kinds that other blocks have as well, with more rows, steps, programs or tasks: the
# doctor's table, its comparison, the application, and a launch.
LIKE_OTHERS = {
    *("docs/versions.md-1", "docs/doctor.md-0", "docs/doctor.md-1", "docs/application.md-4"),
    *("docs/clusters.md-2", "README.md-4"),
}


def test_the_pages_have_code_and_commands():
    assert blocks("README.md", "python")
    assert len(BASH) >= 3


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_python_blocks_run(page, tmp_path):
    output = run([sys.executable, "-c", "\n".join(blocks(page, "python"))], cwd=tmp_path)

    assert "0.0000e+00" not in output, "This is a metric that nobody updates."
    assert "warning: No task called" not in output


def test_the_documentation_begins_with_the_example_of_the_readme():
    assert blocks("docs/index.md", "python") == blocks("README.md", "python")[:1]


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) < 900


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_numbers_of_a_page_are_those_of_the_tables(page):
    rows = re.findall(
        r"^\|.*\| (.*) \| (.*) \|$", (ROOT / "docs/parity.md").read_text(), re.MULTILINE
    )
    rows = [row for row in rows if row[0] not in ("stock Keras", "---")]
    stock, ours = (sum(": " in row[number] for row in rows) for number in (0, 1))
    step = re.search(
        r"^\| 2 mirrored replicas, `fit` \| (\S+)",
        (ROOT / "docs/cost.md").read_text(),
        re.MULTILINE,
    )

    text = " ".join((ROOT / page).read_text().split())
    assert ours == 0 and len(rows) > 70 and step
    assert re.search(rf"\b{len(rows)}\b.*\b{stock}\b.*\b{step[1]}\b", text)


def test_the_first_script_imports_nothing_that_the_package_does_not_bring():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    brought = {re.split("[><=]", each)[0] for each in project["dependencies"]}

    parsed = ast.walk(ast.parse(blocks("README.md", "python")[0]))
    imports = {each.names[0].name for each in parsed if isinstance(each, ast.Import)}
    assert imports <= {"kerasdist", *brought}
    assert "\nfrom " not in blocks("README.md", "python")[0]


def test_every_public_name_has_a_page():
    names = [*PUBLIC_NAMES, "testing.run_cluster"]
    for module in (callbacks, schedules):
        own = (name for name, value in vars(module).items() if is_public_of(module, name, value))
        names += [f"{module.__name__.removeprefix('kerasdist.')}.{name}" for name in own]

    assert sorted(names) == REFERENCE
    for name in REFERENCE:
        assert f"\n::: kerasdist.{name}\n" in (ROOT / f"docs/reference/{name}.md").read_text()


# The one that joins a cluster wants TensorFlow as it was before any other.
@pytest.mark.parametrize("names", [REFERENCE[:2], REFERENCE[2:]], ids=["cluster", "the others"])
def test_the_example_of_every_public_name_runs(names, tmp_path):
    assert ("ClusterStartError" in names) == (names == REFERENCE[:2])
    programs = {name: blocks(f"docs/reference/{name}.md", "python") for name in names}

    assert all(len(each) == 1 for each in programs.values())
    given = json.dumps({name: program for name, (program,) in programs.items()})
    run([sys.executable, "-c", RUN_EACH], cwd=tmp_path, given=given)


def test_the_commands_for_other_launchers_are_those_that_their_tests_run():
    assert {line for block in BASH for line in block.splitlines()} >= BY_OTHER_LAUNCHERS


@pytest.mark.timeout(600)  # Each command loads TensorFlow.
@pytest.mark.parametrize(
    "block", named({name: block for block, name in BASH.items()}, exhaustive=LIKE_OTHERS)
)
def test_commands_work(block, tmp_path):
    (tmp_path / "train.py").write_text(blocks("README.md", "python")[0])
    for line in block.splitlines():
        words = shlex.split(line, comments=True)
        variables = list(itertools.takewhile(lambda word: "=" in word, words))
        command = words[len(variables) :]
        match command:
            case []:
                continue
            case _ if line in BY_OTHER_LAUNCHERS:
                continue  # tests/schedulers runs it.
            case _ if line.endswith(ELSEWHERE):
                named_files = [word for word in command if word.startswith("deploy/")]
                assert all((ROOT / word).is_file() for word in named_files), line
            case ["make", *_]:
                # Not the target itself: `make test` is what runs this test.
                run([*command, "--dry-run"], cwd=ROOT)
            case ["python", "-m", "pytest", *_]:
                run([sys.executable, *command[1:], "--collect-only", "--quiet"], cwd=ROOT)
            case ["python", *arguments]:
                assert "warning: No task called" not in run(
                    [sys.executable, *arguments], cwd=tmp_path, variables=variables
                )
            case ["mkdir", *_]:
                run(command, cwd=tmp_path)
            case _:
                assert shlex.join(command) in NOT_RUN, f"This test cannot check `{line}`."


def run(command: list[str], *, cwd: Path, given: str = "", variables: Sequence[str] = ()) -> str:
    environ = {key: os.environ[key] for key in os.environ if not key.startswith("MAKE")}
    environ |= dict(variable.split("=", 1) for variable in variables)
    environ["PYTHONPATH"] = str(ROOT)
    # As in an environment that is activated: `launch -- python train.py` finds this Python.
    environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    if command[0] == sys.executable and "doctor" not in command:
        code, output = fork_server.run(command, cwd=cwd, env=environ, timeout_secs=240, given=given)
    else:  # The doctor has what it looks with imported as Python starts.
        done = subprocess.run(command, cwd=cwd, env=environ, timeout=240, capture_output=True)
        code, output = done.returncode, (done.stdout + done.stderr).decode()
    assert code == 0, f"{shlex.join(command)}\n{output}"
    assert "warning: No task called" not in output, "The tasks did not meet."
    return output
