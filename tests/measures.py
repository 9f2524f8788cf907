"""What the laws of tests/test_architecture.py measure: code lines, annotated parameters, folders.

    python -m tests.measures            # Prints them by folder.

A code line is one that holds neither a comment nor a docstring alone, and is not empty.
"""

import ast
import collections
import io
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}


class Share(NamedTuple):
    """How many parameters have an annotation, and how many there are, without self and cls."""

    num_annotated: int
    num_all: int

    @property
    def value(self) -> float:
        """From 0 to 1; 1 without parameters."""
        return self.num_annotated / self.num_all if self.num_all else 1.0


def files_in(package: str) -> list[Path]:
    """Returns the files of a package, such as "kerasdist"."""
    return sorted((ROOT / package).rglob("*.py"))


def code_lines(path: Path) -> set[int]:
    """Returns the numbers of the code lines of a file."""
    source = path.read_text()
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines - set(_docstring_lines(ast.parse(source)))


def long_functions(path: Path, *, limit: int) -> dict[str, int]:
    """Returns the code lines of the functions of a file that have more than `limit`."""
    lines = code_lines(path)
    sizes = {
        f"{path.relative_to(ROOT)}:{node.name}": len(
            lines & set(range(node.lineno, (node.end_lineno or 0) + 1))
        )
        for node in _functions(path)
    }
    return {name: size for name, size in sizes.items() if size > limit}


def annotated(paths: Sequence[Path]) -> Share:
    """Returns how many parameters of files have an annotation."""
    parameters = [
        each
        for path in paths
        for function in _functions(path)
        for each in _parameters(function.args)
        if each.arg not in ("self", "cls")
    ]
    return Share(sum(each.annotation is not None for each in parameters), len(parameters))


def _functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _parameters(arguments: ast.arguments) -> list[ast.arg]:
    starred = [each for each in (arguments.vararg, arguments.kwarg) if each]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *starred]


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        match node:
            case (
                ast.Module(body=[first, *_])
                | ast.ClassDef(body=[first, *_])
                | ast.FunctionDef(body=[first, *_])
                | ast.AsyncFunctionDef(body=[first, *_])
            ):
                match first:
                    case ast.Expr(value=ast.Constant(value=str())):
                        yield from range(first.lineno, (first.end_lineno or 0) + 1)


def _main():
    folders = collections.defaultdict(list)
    for path in [*files_in("kerasdist"), *files_in("models")]:
        folders[str(path.parent.relative_to(ROOT))].append(path)
    print("files  code lines  annotated  folder")
    for folder, paths in folders.items():
        size = sum(len(code_lines(path)) for path in paths)
        print(f"{len(paths):5}  {size:10,}  {annotated(paths).value:9.0%}  {folder}")


if __name__ == "__main__":
    _main()
