"""Says which private names have moved in the installed Keras and TensorFlow.

    python -m tests.versions.private_names    # in any environment; a line of JSON for each

Reads `kerasdist/private/` and asks the installed libraries for each name in it, without importing
kerasdist: where a name has moved, that fails at the first one. What is asked of an object, as in
`model._symbolic_build`, is only looked for in the source of both libraries.
"""

import ast
import dataclasses
import difflib
import functools
import importlib
import inspect
import json
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "kerasdist"
PRIVATE = PACKAGE / "private"
LIBRARIES = ("keras", "tensorflow")
# Of a library's source, what may hold an attribute that is asked of an object.
SOURCES = {
    "keras": ("src",),
    "tensorflow": ("python/data", "python/distribute", "python/eager", "python/framework"),
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """A private name that is not what it was.

    Attributes:
        name: The full one; `*._name` for that of an object.
        what: What is seen.
        used_by: Where it stands in `kerasdist/private/`, and the files that use that.
        look_at: Names that are near, and the file where it was.
    """

    name: str
    what: str
    used_by: list[str]
    look_at: list[str]


def moved_names(folder: Path = PRIVATE) -> list[Moved]:
    """Returns what has moved of the names that the files of `folder` use."""
    found = {}
    for path in sorted(folder.glob("*.py")):
        for each in _moved_in(path):
            found.setdefault(each.name, each)
    return list(found.values())


def _moved_in(path: Path) -> Iterator[Moved]:
    tree = _OfThisVersion().visit(ast.parse(path.read_text()))
    owners: dict[str, Any] = {}
    for node, alias, module, attribute in _imports(tree):
        try:
            owners[alias] = _import(module, attribute)
        except (ImportError, AttributeError) as error:
            name = f"{module}.{attribute}" if attribute else module
            yield _moved(path, node, name, str(error), used_as=alias)
    yield from _moved_attributes(path, tree, owners)
    yield from _changed_routes(path, tree, owners)
    yield from _vanished_words(path, tree)


class _OfThisVersion(ast.NodeTransformer):
    """Leaves what stands under `if names.KERAS < (3, 16):` for the installed version."""

    def visit_If(self, node):
        self.generic_visit(node)
        test = ast.unparse(node.test)
        if "names.KERAS" not in test:
            return node
        version = importlib.import_module("keras").__version__.split(".")[:2]
        installed = types.SimpleNamespace(KERAS=tuple(map(int, version)))
        return node.body if eval(test, {"names": installed}) else node.orelse


def _imports(tree: ast.Module) -> Iterator[tuple[ast.AST, str, str, str | None]]:
    """Yields (node, name in the file, module, name in the module) of what is not ours."""
    for node in ast.walk(tree):
        for alias in getattr(node, "names", ()) if isinstance(node, ast.Import) else ():
            if alias.name in LIBRARIES:
                yield node, alias.asname or alias.name, alias.name, None
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in LIBRARIES:
            for alias in node.names:
                yield node, alias.asname or alias.name, str(node.module), alias.name


def _import(module: str, attribute: str | None) -> Any:
    if attribute is None:
        return importlib.import_module(module)
    owner = importlib.import_module(module)
    if hasattr(owner, attribute):
        return getattr(owner, attribute)
    return importlib.import_module(f"{module}.{attribute}")


def _moved_attributes(path, tree, owners) -> Iterator[Moved]:
    """Looks for what is written as `module.Class.method`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        owner = _value(node.value, owners)
        # A property of a class is the same for all we can see here.
        if owner is not None and not hasattr(owner, node.attr):
            yield _moved(path, node, f"{_place(owner)}.{node.attr}", "is gone", owner=owner)


def _value(node: ast.expr, owners) -> Any:
    """Returns the module or class that an expression names, or None."""
    if isinstance(node, ast.Name):
        value = owners.get(node.id)
    elif isinstance(node, ast.Attribute):
        value = getattr(_value(node.value, owners), node.attr, None)
    else:
        return None
    return value if inspect.ismodule(value) or inspect.isclass(value) else None


def _changed_routes(path, tree, owners) -> Iterator[Moved]:
    """Compares what the routed functions take with what is known of them."""
    routable = _dict_of(tree, "ROUTABLE")
    if routable is None:
        return
    for route in routable.values:
        owner = _value(route.args[0], owners)
        attribute, parameters = map(ast.literal_eval, route.args[1:])
        if owner is None:
            continue  # Said already.
        place = f"{_place(owner)}.{attribute}"
        if not hasattr(owner, attribute):
            yield _moved(path, route, place, "is gone", owner=owner)
            continue
        taken = list(inspect.signature(getattr(owner, attribute)).parameters)
        known = parameters.split()
        if taken != known:
            what = f"takes ({', '.join(taken)}), not ({', '.join(known)})"
            yield _moved(path, route, place, what, owner=owner)


def _dict_of(tree: ast.Module, name: str) -> Any:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return node.value
    return None


def _vanished_words(path, tree) -> Iterator[Moved]:
    """Looks for the names that are asked of objects: anywhere in the libraries will do."""
    own = set(re.findall(r"(?:def |self\.|^)(_\w+)", path.read_text(), re.MULTILINE))
    own.add("_getframe")  # Python's.
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not re.match(r"_(?!_)", node.attr):
            continue
        if node.attr not in own and node.attr not in _words():
            yield _moved(path, node, f"*.{node.attr}", "is in no source file")


@functools.cache
def _words() -> set[str]:
    words: set[str] = set()
    for library, folders in SOURCES.items():
        home = Path(str(importlib.import_module(library).__file__)).parent
        for folder in folders:
            for path in (home / folder).rglob("*.py"):
                words.update(re.findall(r"\b_\w+", path.read_text()))
    return words


def _moved(path, node, name, what, *, owner=None, used_as=None) -> Moved:
    look_at = []
    if owner is not None:
        last = name.rpartition(".")[2]
        look_at = difflib.get_close_matches(last, dir(owner), n=3, cutoff=0.5)
        module = owner if inspect.ismodule(owner) else sys.modules[owner.__module__]
        look_at.append(str(module.__file__).rpartition("site-packages/")[2])
    return Moved(name=name, what=what, used_by=_users(path, node, used_as), look_at=look_at)


def _users(path: Path, node, used_as: str | None) -> list[str]:
    """Returns where a name stands, and which files use the functions that it stands in."""
    tree = ast.parse(path.read_text())
    lines = [node.lineno]
    if used_as:
        lines += [
            each.lineno
            for each in ast.walk(tree)
            if isinstance(each, ast.Name) and each.id == used_as
        ]
    inside = [
        each.name
        for each in tree.body
        if isinstance(each, (ast.FunctionDef, ast.ClassDef))
        and any(each.lineno <= line <= each.end_lineno for line in lines)
    ]
    where = f"{path.name}:{node.lineno}" + (f" {', '.join(inside)}" if inside else "")
    pattern = rf"\b{path.stem}\.({'|'.join(inside)})\b" if inside else None
    files = [
        str(each.relative_to(PACKAGE))
        for each in sorted(PACKAGE.rglob("*.py"))
        if pattern and each != path and re.search(pattern, each.read_text())
    ]
    return [where, *files]


def _place(owner) -> str:
    is_module = inspect.ismodule(owner)
    return owner.__name__ if is_module else f"{owner.__module__}.{owner.__qualname__}"


if __name__ == "__main__":
    for found in moved_names():
        print(json.dumps(dataclasses.asdict(found)))
