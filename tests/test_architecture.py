"""The rules of the source: who imports whom, and where private names may be.

All of them are read from the source; nothing is imported.
"""

import ast
import collections
import functools
import graphlib
import itertools
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import hidden_state, measures, rooms

ROOT = Path(__file__).parents[1]

# Which part of kerasdist may import which others. A part is a module or a folder.
MAY_IMPORT = {
    "support": set(),
    "command_parser": {"support"},
    "config": {"support"},
    "files": {"support"},
    "messages": {"support"},
    "cluster": {"messages", "support"},
    "preflight": {"cluster", "messages", "support"},
    "status": {"cluster", "messages", "support"},
    "schedules": {"support"},
    "private": {"cluster", "support"},
    "lifetime": {"cluster", "messages", "private", "support", "trace"},
    "training": {"cluster", "files", "lifetime", "private", "status", "support"},
    "reductions": {"training"},
    "tasks": {"cluster", "lifetime", "preflight", "support"},
    "strategies": {
        *("cluster", "config", "lifetime", "preflight", "private"),
        *("status", "support", "tasks", "training"),
    },
    "trace": {"private", "support"},
    "checkpoints": {"files", "lifetime", "private", "status", "support", "training"},
    "evaluation": {"checkpoints", "support"},
    "patterns": {"support"},
    "weights": {"checkpoints", "files", "patterns", "private", "support", "training"},
    "show": {"support", "training"},
    "callbacks": {
        *("checkpoints", "comparison", "lifetime", "patterns", "plan", "private"),
        *("status", "support", "tasks", "trace", "training"),
    },
    "processes": {"cluster", "config", "messages", "support"},
    "launcher": {"cluster", "messages", "processes", "support"},
    "testing": {"cluster", "launcher", "processes", "support"},
    "plan": {"private", "strategies", "support", "training"},
    "comparison": {"strategies", "support", "training"},
    "parity": {"training"},
    "doctor": {
        *("__init__", "cluster", "comparison", "config", "launcher", "parity", "plan"),
        *("private", "processes", "strategies", "support", "training"),
    },
    "__init__": {
        *("cluster", "config", "evaluation", "launcher", "plan", "preflight"),
        *("reductions", "strategies", "support", "tasks", "weights"),
    },
    "__main__": {
        *("cluster", "command_parser", "config", "doctor", "launcher", "plan", "show"),
        *("strategies", "support", "trace", "weights"),
    },
}
# The same of `kerasdist.training`: its folders, and the files beside them.
TRAINING_MAY_IMPORT = {
    "__init__": set(),
    "context": set(),
    "data": {"context", "hooks"},
    "epochs": {"context", "data"},
    "hooks": {"context"},
    "replica": {"data"},
    "gradients": {"context", "hooks", "replica"},
    "losses": {"context", "data", "gradients", "hooks", "replica"},
    "step": {"context", "data", "epochs", "hooks", "replica", "gradients", "losses"},
    "trial": {"context", "data", "epochs", "hooks", "replica", "gradients", "losses", "step"},
    "report": {"context", "hooks", "replica", "step", "trial"},
    "parameter_servers": {"context", "data", "epochs", "hooks", "replica", "gradients", "step"},
    "synchronous_servers": {
        *("context", "data", "hooks", "replica", "gradients", "losses", "step"),
        *("trial", "parameter_servers"),
    },
    "routes": {
        *("context", "data", "epochs", "hooks", "replica", "gradients", "losses", "step", "trial"),
        *("report", "parameter_servers", "synchronous_servers"),
    },
}
# Who is beside the training, not in it: callbacks, the plan, the doctor, and what reads and keeps
# weights. They import of it what is made for them: these rooms, and the modules that are the faces
# of others.
BESIDE_TRAINING = {"callbacks", "checkpoints", "doctor", "plan", "show", "weights"}
OPEN_ROOMS = {"context", "hooks", "report"}
FACES = {
    "replica": {"draws", "custom_attributes", "replicas"},
    "trial": {"tolerances", "undo", "watched_step", "whole_step"},
}
# Modules whose names are public: `kerasdist.callbacks.MovingAverage`.
PUBLIC_MODULES = {"callbacks", "schedules"}
# These load without TensorFlow, so they import the standard library alone.
STANDARD_LIBRARY_ONLY = {
    *("cluster", "command_parser", "config", "messages", "preflight", "status", "support"),
}
# The one folder that touches private names of Keras and TensorFlow.
PRIVATE = ROOT / "kerasdist/private"

LIBRARY = sorted((ROOT / "kerasdist").rglob("*.py"))
TRAINING = sorted((ROOT / "kerasdist/training").rglob("*.py"))
APPLICATION = sorted((ROOT / "models").rglob("*.py"))
OUTSIDE_OF_PRIVATE = [each for each in LIBRARY + APPLICATION if PRIVATE not in each.parents]
ALL = LIBRARY + APPLICATION + sorted((ROOT / "tests").rglob("*.py"))


def test_every_part_of_kerasdist_is_in_the_map():
    assert {part_of(path) for path in LIBRARY} == set(MAY_IMPORT)


def test_the_map_points_one_way():
    graphlib.TopologicalSorter(MAY_IMPORT).prepare()  # Raises CycleError.


def test_kerasdist_imports_along_the_map():
    def against_the_map(path):
        return imported_parts(path) - MAY_IMPORT[part_of(path)] - {part_of(path)}

    assert found_in(LIBRARY, against_the_map) == {}
    assert unused_entries(MAY_IMPORT, LIBRARY, part_of, imported_parts) == {}


def test_every_room_of_training_is_in_its_map():
    assert {room_of(path) for path in TRAINING} == set(TRAINING_MAY_IMPORT)
    graphlib.TopologicalSorter(TRAINING_MAY_IMPORT).prepare()  # Raises CycleError.


def test_training_imports_along_its_map():
    def against_the_map(path):
        return imported_rooms(path) - TRAINING_MAY_IMPORT[room_of(path)] - {room_of(path)}

    assert found_in(TRAINING, against_the_map) == {}
    assert unused_entries(TRAINING_MAY_IMPORT, TRAINING, room_of, imported_rooms) == {}


def test_what_is_beside_the_training_imports_the_faces_of_its_rooms_alone():
    faces = {(room, face) for room, modules in FACES.items() for face in modules}
    beside = [path for path in LIBRARY if part_of(path) in BESIDE_TRAINING]

    def behind_a_face(path):
        found = imported_of_training(path) - faces
        return {f"{room}.{module}" for room, module in found if room not in OPEN_ROOMS}

    assert found_in(beside, behind_a_face) == {}
    assert faces <= set().union(*map(imported_of_training, beside)), "A face that nobody asks."


def test_every_room_of_training_has_tests():
    rooms = {room_of(path) for path in TRAINING} - {"__init__", "routes"}
    tested = {path.parent.name for path in (ROOT / "tests/training").glob("*/test_*.py")}

    assert rooms <= tested


def test_no_modules_import_each_other():
    graph = {module_of(path): imported_modules(path) for path in LIBRARY}

    graphlib.TopologicalSorter(graph).prepare()  # Raises CycleError.


def test_the_page_shows_the_rooms_as_they_are():
    page = rooms.page_with_pictures(of_kerasdist=MAY_IMPORT, of_training=TRAINING_MAY_IMPORT)

    assert rooms.PAGE.read_text() == page, "Run `python -m tests.rooms`."


def test_the_page_names_files_that_are_there():
    named = re.findall(r"`(\w+/\w+)(?:\.py|\.\w+)?`", rooms.PAGE.read_text())
    folders = (ROOT / "kerasdist", ROOT / "kerasdist/training", ROOT)

    assert [
        name for name in named if not any((folder / f"{name}.py").exists() for folder in folders)
    ] == []


def test_pages_for_users_name_no_files_of_the_source():
    for_maintainers = {"architecture.md", "releasing.md"}
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]

    def files_of_source(path):
        named = re.findall(r"\bkerasdist/\w+|\b[\w/]+\.py\b", path.read_text())
        inside = {name.removeprefix("kerasdist/") for name in named}
        return {name for name in inside if (ROOT / "kerasdist" / name).exists()}

    pages = [path for path in pages if path.name not in for_maintainers]
    assert found_in(pages, files_of_source) == {}


def test_what_loads_without_tensorflow_imports_the_standard_library_alone():
    paths = [path for path in LIBRARY if part_of(path) in STANDARD_LIBRARY_ONLY]

    imported = set().union(*map(packages, paths)) - {"kerasdist"}
    assert imported <= sys.stdlib_module_names


def test_kerasdist_imports_what_it_declares_and_declares_what_it_imports():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = packages_of(project["dependencies"])
    optional = packages_of(*project["optional-dependencies"].values())

    imported = set().union(*map(packages, LIBRARY)) - sys.stdlib_module_names - {"kerasdist"}
    assert declared <= imported <= declared | optional


def test_kerasdist_does_not_know_models():
    assert not any("models" in packages(path) for path in LIBRARY)


def test_models_can_be_installed_under_another_name():
    """`models` is no name for a package that is installed among those of others."""
    assert not any("models" in packages(path) for path in APPLICATION), "Import relatively."


def test_models_use_public_names_of_kerasdist_alone():
    def is_public(name):
        _, first, *rest = name.split(".")
        return first in public_names() | PUBLIC_MODULES and len(rest) <= (first in PUBLIC_MODULES)

    def not_public(path):
        return {name for name in kerasdist_names(path) if not is_public(name)}

    assert found_in(APPLICATION, not_public) == {}


def test_private_modules_of_keras_and_tensorflow_are_in_one_folder_alone():
    def private_modules(path):
        return {name for name in dotted_names(path) if re.search(PRIVATE_MODULE, name)}

    assert found_in(OUTSIDE_OF_PRIVATE, private_modules) == {}


def test_private_attributes_of_others_are_in_one_folder_alone():
    own = {f"{owner}.{name}" for owner in ("self", "cls", "super()") for name in our_names()}
    # The underscore of Python's two warns of what they are for: to end the process at once, and to
    # look into other threads. The last is how an optimizer of one's own finds what it keeps for a
    # weight.
    documented = {"os._exit", "sys._current_frames", "self._get_variable_index"}

    def of_others(path):
        return set(private_attributes(path)) - own - documented

    assert found_in(OUTSIDE_OF_PRIVATE, of_others) == {}


def test_every_warning_is_given_at_a_line_of_the_users():
    def given_elsewhere(path):
        return {name for name in dotted_names(path) if name == "warnings.warn"}

    assert found_in(LIBRARY, given_elsewhere) == {}, "Call users_line.warn instead."


def test_what_modules_remember_is_on_the_page_with_its_reason():
    states = set().union(*map(hidden_state.states_in, LIBRARY))

    assert states == hidden_state.listed("state"), "Let an object hold it, or `support/memory`."
    assert len(states) <= 9


def test_functions_that_remember_are_on_the_page_with_their_reason():
    assert set().union(*map(hidden_state.caches_in, LIBRARY)) == hidden_state.listed("function")


@pytest.mark.parametrize(
    "source",
    [
        "seen = []",
        "if True:\n    _by_name: dict = {}",
        "_lock: Any = threading.Lock()",
        "_states = {'now': threading.local()}",
        "_recent = Recent()",
        "_TABLE = {'a': 1}\ndef f():\n    _TABLE['b'] = 2",
        "_ROWS = [1]\ndef f():\n    _ROWS.append(2)",
        "_last = None\ndef f():\n    global _last\n    _last = 1",
        "class A:\n    made = set()",
        "def f():\n    f.was_called = True",
        "from kerasdist import config\ndef f():\n    config.last = 1",
    ],
)
def test_what_a_module_remembers_is_found(source):
    assert hidden_state.states_of(ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        "_TABLE = {'a': [1, 2]}\ndef f():\n    return _TABLE['a']",
        "_ROW = re.compile('a')",
        "_DEFAULTS = Choice(reason='')",
        "T = TypeVar('T')",
        "def f():\n    found = []\n    found.append(1)",
        "class A:\n    found: list = dataclasses.field(default_factory=list)",
    ],
)
def test_what_never_changes_is_no_memory(source):
    assert not hidden_state.states_of(ast.parse(source))


@pytest.mark.parametrize("package", ["kerasdist", "models"])
def test_parameters_say_their_types(package):
    assert measures.annotated(measures.files_in(package)).value >= 0.9


def test_functions_have_at_most_40_code_lines():
    long = [measures.long_functions(path, limit=40) for path in LIBRARY + APPLICATION]

    assert dict(collections.ChainMap(*long)) == {}


def test_a_folder_has_at_most_20_files():
    numbers = collections.Counter(
        str(path.parent.relative_to(ROOT))
        for path in LIBRARY + APPLICATION
        if path.name != "__init__.py"
    )

    assert {folder: number for folder, number in numbers.items() if number > 20} == {}


def test_every_file_says_why_it_exists():
    without = [str(path) for path in ALL if not ast.get_docstring(parse(path))]

    assert without == [], "Write a module docstring."


PRIVATE_MODULE = r"^(keras\.src|tf\.python|tensorflow\.(compiler|core|python|tsl))\b"


def found_in(paths: list[Path], look_for: Callable[[Path], set[str]]) -> dict[str, set[str]]:
    """Returns by file what was found in it, where something was."""
    found = {str(path.relative_to(ROOT)): look_for(path) for path in paths}
    return {path: names for path, names in found.items() if names}


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def part_of(path: Path) -> str:
    return path.relative_to(ROOT / "kerasdist").parts[0].removesuffix(".py")


def room_of(path: Path) -> str:
    return path.relative_to(ROOT / "kerasdist/training").parts[0].removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    names = [name for name in imports(path) if name.split(".")[0] == "kerasdist"]
    # A bare `import kerasdist` imports its `__init__`.
    return {f"{name}.__init__".split(".")[1] for name in names}


def imported_rooms(path: Path) -> set[str]:
    names = [name.split(".") for name in imports(path)]
    return {name[2] for name in names if name[:2] == ["kerasdist", "training"]}


def imported_of_training(path: Path) -> set[tuple[str, str]]:
    """Returns (room, module) for each module of training that a file imports, or takes names of."""
    names = [name.split(".") for name in sorted(imported_modules(path))]
    return {
        (name[2], ".".join(name[3:])) for name in names if name[:2] == ["kerasdist", "training"]
    }


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported_modules(path: Path) -> set[str]:
    """Returns the modules of kerasdist that a file imports, or imports names from."""
    known = {module_of(each) for each in LIBRARY}
    names = {name if name in known else name.rpartition(".")[0] for name in imports(path)}
    return (names & known) - {module_of(path)}


def unused_entries(may_import, paths, place_of, imported) -> dict[str, set[str]]:
    """Returns what a map allows and no file does."""
    unused = {place: set(allowed) for place, allowed in may_import.items()}
    for path in paths:
        unused[place_of(path)] -= imported(path)
    return {place: names for place, names in unused.items() if names}


def imports(path: Path) -> set[str]:
    """Returns the absolute names of what a file imports when it runs, wherever in the file.

    What `models` imports relatively is its own, and left out.
    """
    names = set()
    for node in nodes_that_run(parse(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            assert path in APPLICATION, f"{path.name} has a relative import; write it out."
        elif isinstance(node, ast.ImportFrom):
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def nodes_that_run(tree: ast.AST) -> Iterator[ast.AST]:
    """Yields all nodes of a file but for those that type checkers alone see."""
    if isinstance(tree, ast.If) and ast.unparse(tree.test).endswith("TYPE_CHECKING"):
        return
    yield tree
    for node in ast.iter_child_nodes(tree):
        yield from nodes_that_run(node)


def packages(path: Path) -> set[str]:
    """Returns the top-level packages that a file imports."""
    return {name.split(".")[0] for name in imports(path)}


def packages_of(*requirements: list[str]) -> set[str]:
    """Returns the packages that lists of requirements name."""
    lines = itertools.chain(*requirements)
    return {re.split(r"[^\w-]", line)[0].replace("-", "_") for line in lines}


def dotted_names(path: Path) -> Iterator[str]:
    """Yields imported names, attributes such as `keras.src.x`, and strings that read like them."""
    yield from imports(path)
    tree = parse(path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value  # A docstring does not start like a module's name.


def kerasdist_names(path: Path) -> set[str]:
    """Returns the names of kerasdist that a file uses: `kerasdist.make_strategy`."""
    used = {name for name in dotted_names(path) if re.fullmatch(r"kerasdist(\.\w+)+", name)}
    # `kerasdist.Cluster.from_env` is a method of a public class.
    return {re.sub(r"^(kerasdist\.[A-Z]\w+)\..*", r"\1", name) for name in used}


def public_names() -> set[str]:
    """Returns what kerasdist/__init__.py offers: `from kerasdist.config import X as X`."""
    tree = parse(ROOT / "kerasdist/__init__.py")
    found = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {alias.asname for node in found for alias in node.names if alias.asname}


def private_attributes(path: Path) -> Iterator[str]:
    """Yields `x._name`, and `getattr(x, "_name")` as `x._name`."""
    for node in ast.walk(parse(path)):
        match node:
            case ast.Attribute(attr=name):
                owner = node.value
            case ast.Call(
                func=ast.Name(id="getattr" | "setattr" | "hasattr" | "delattr"),
                args=[owner, ast.Constant(value=str(name)), *_],
            ):
                pass
            case _:
                continue
        if re.match(r"_(?!_)", name):
            yield f"{ast.unparse(owner)}.{name}"


@functools.cache
def our_names() -> set[str]:
    """Returns the names that our files define."""
    return set().union(*map(defined_names, LIBRARY + APPLICATION))


def defined_names(path: Path) -> set[str]:
    """Returns the names that a file defines: functions, attributes, class variables."""
    names = set()
    for node in ast.walk(parse(path)):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Attribute(attr=name, value=ast.Name(id="self" | "cls"), ctx=ast.Store()):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
    return names
