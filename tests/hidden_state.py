"""What modules remember outside of objects, found by reading their source.

It is what two programs, two threads or two tests in one process have in common without being told.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/architecture.md"

# Of what a module makes when it is imported, these never change.
_CONSTANT_TYPES = {"ParamSpec", "Path", "TypeVar", "tf.TensorSpec"}
# Modules of Python whose functions return what changes: locks, counters, local values.
_MAKERS = re.compile(
    r"(set|dict|list|bytearray)$|(threading|weakref|collections|itertools|contextvars|queue)\."
)
_CACHES = re.compile(r"(functools\.)?(lru_)?cache$")
_MUTATORS = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem"),
    *("popleft", "remove", "reverse", "setdefault", "sort", "update"),
}


def states_in(path: Path) -> set[str]:
    """Returns what a file remembers, as `file:name`."""
    return {f"{_place(path)}:{name}" for name in states_of(ast.parse(path.read_text()))}


def states_of(tree: ast.Module) -> set[str]:
    """Returns the names of what a module remembers: values of it, and of classes, that change.

    That is what is empty when it is made, or made by a class that is not frozen; a table that a
    function changes; what a function names `global`; and attributes that a function gives to
    functions, classes or modules.
    """
    changed = set(_changed_names(tree))
    found = {
        name
        for name, value in _named_values(tree)
        if name in changed or any(map(_may_change, _parts_that_run(value)))
    }
    return found | set(_given_attributes(tree))


def caches_in(path: Path) -> set[str]:
    """Returns the functions of a file that remember what they have returned, as `file:name`."""
    return {
        f"{_place(path)}:{getattr(node, 'name', ast.unparse(node))}"
        for node in ast.walk(ast.parse(path.read_text()))
        if _is_cached(node)
    }


def listed(title: str) -> set[str]:
    """Returns the names in a table of docs/architecture.md, as `file:name`.

    Args:
        title: The title of the table's column with the names.
    """
    text = PAGE.read_text()
    table = text[text.index(f"| {title} |") :].split("\n\n")[0]
    rows = re.findall(r"^\| `(\S+)` of `(\S+)` \| \S", table, re.MULTILINE)
    return {f"{place}:{name}" for name, place in rows}


def _place(path: Path) -> str:
    return str(path.relative_to(ROOT / "kerasdist").with_suffix(""))


def _named_values(tree: ast.AST, owner: str = "") -> Iterator[tuple[str, ast.expr]]:
    """Yields names and values that are made when a module is imported, those of classes too."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.ClassDef(name=name):
                yield from _named_values(node, f"{owner}{name}.")
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                pass
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    yield owner + ast.unparse(target), value
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield owner + ast.unparse(target), value
            case _:
                yield from _named_values(node, owner)


def _parts_that_run(value: ast.AST) -> Iterator[ast.AST]:
    """Yields the expressions in a value, but for the inside of functions."""
    yield value
    if not isinstance(value, ast.Lambda):
        for part in ast.iter_child_nodes(value):
            yield from _parts_that_run(part)


def _may_change(value: ast.AST) -> bool:
    match value:
        case ast.List(elts=[]) | ast.Dict(keys=[]):
            return True
        case ast.Call(func=function):
            name = ast.unparse(function)
            last = name.rpartition(".")[2].lstrip("_")
            is_class = last[:1].isupper() and name not in _CONSTANT_TYPES
            return bool(_MAKERS.match(name)) or (is_class and name not in _constant_classes())
    return False


@functools.cache
def _constant_classes() -> set[str]:
    """Returns the names of kerasdist's classes whose objects never change."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / "kerasdist").rglob("*.py")]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {
        node.name
        for node in classes
        if "NamedTuple" in map(ast.unparse, node.bases)
        or any("frozen=True" in ast.unparse(each) for each in node.decorator_list)
        or not (node.bases or node.decorator_list or "self." in ast.unparse(node))
    }


def _changed_names(tree: ast.AST) -> Iterator[str]:
    """Yields the names that functions of a module rebind, or whose values they change."""
    for node in ast.walk(tree):
        match node:
            case ast.Global(names=names):
                yield from names
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
                yield name
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)):
                if method in _MUTATORS:
                    yield name


def _given_attributes(tree: ast.Module) -> Iterator[str]:
    """Yields `x.name` for each attribute that is stored on what a module defines or imports."""
    owners = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("kerasdist"):
            owners |= {alias.asname or alias.name for alias in node.names}
    nodes = list(ast.walk(tree))
    owners -= {node.arg for node in nodes if isinstance(node, ast.arg)}
    owners -= {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute, ctx=ast.Store()):
                if name in owners:
                    yield f"{name}.{attribute}"


def _is_cached(node: ast.AST) -> bool:
    match node:
        case ast.FunctionDef(decorator_list=decorators):
            called = [each.func if isinstance(each, ast.Call) else each for each in decorators]
            return any(_CACHES.match(ast.unparse(each)) for each in called)
        case ast.Assign(value=ast.Call(func=function)):
            return bool(_CACHES.match(ast.unparse(function)))
    return False
