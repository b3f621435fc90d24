"""House style that a linter can't see; every offender is listed, so that one run shows all of the work."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.source_tree import PACKAGE, ROOT, imports, modules, tree

# CONTRIBUTING says "about 70" and "about 400"; these are where "about" ends.
FUNCTION_LINES = 75
MODULE_LINES = 450
TEST_MODULE_LINES = 600
CODE_FOLDERS = ("rayorch", "tests", "benchmarks", "examples", "tools")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def _python_files() -> list[Path]:
    return [path for folder in CODE_FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def _place(path: Path, line: int) -> str:
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return f"{shown}:{line}"


def _functions(module: ast.Module) -> Iterator[Function]:
    yield from (n for n in ast.walk(module) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def _code_lines(path: Path, start: int, end: int) -> int:
    """Lines that hold something: blank lines and comment lines are free, or nobody would write them."""
    lines = path.read_text(encoding="utf-8").splitlines()[start - 1 : end]
    return sum(1 for line in lines if line.strip() and not line.strip().startswith("#"))


def _function_length(path: Path, function: Function) -> int:
    """Lines of code, the docstring left out."""
    length = _code_lines(path, function.lineno, function.end_lineno or function.lineno)
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        length -= _code_lines(path, first.lineno, first.end_lineno or first.lineno)
    return length


def long_functions() -> Iterator[str]:
    """Functions over the limit, without docstring, comments and blank lines."""
    for path in _python_files():
        for function in _functions(tree(path)):
            length = _function_length(path, function)
            if length > FUNCTION_LINES:
                yield f"{_place(path, function.lineno)}: {function.name} has {length} lines, at most {FUNCTION_LINES}"


def long_modules() -> Iterator[str]:
    """Modules over the limit, without comments and blank lines."""
    for path in _python_files():
        length = _code_lines(path, 1, len(path.read_text(encoding="utf-8").splitlines()))
        limit = TEST_MODULE_LINES if path.is_relative_to(ROOT / "tests") else MODULE_LINES
        if length > limit:
            yield f"{_place(path, 1)}: {length} lines, at most {limit}"


def grab_bags() -> Iterator[str]:
    """Modules whose name says nothing about what is in them."""
    for path in _python_files():
        if path.stem in ("utils", "util", "helpers", "misc", "common"):
            yield f"{_place(path, 1)}: name it after what it is about"


def prints_outside_the_command_line() -> Iterator[str]:
    """Calls of print in the package, the command line excepted."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.is_relative_to(PACKAGE / "cli"):
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                yield f"{_place(path, node.lineno)}: print"


def missing_docstrings() -> Iterator[str]:
    """Modules, public classes and public functions of the package that don't say what they mean."""
    for path in modules().values():
        if path.stat().st_size and ast.get_docstring(tree(path)) is None:
            yield f"{_place(path, 1)}: module without docstring"
        yield from _undocumented(path, tree(path).body)


def _undocumented(path: Path, body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
            continue
        if ast.get_docstring(node) is None and not _says_enough_elsewhere(node):
            yield f"{_place(path, node.lineno)}: {node.name} without docstring"
        if isinstance(node, ast.ClassDef):
            yield from _undocumented(path, node.body)


def _says_enough_elsewhere(node: ast.ClassDef | Function) -> bool:
    """Overloads and overrides are documented where they are declared first."""
    names = {ast.unparse(d).split("(")[0].split(".")[-1] for d in node.decorator_list}
    return bool(names & {"overload", "override", "setter"})


def untyped_holes() -> Iterator[str]:
    """`Any` where decisions are made or text becomes data; handles of Ray's actors and users' results have no types."""
    for path in modules().values():
        if path.relative_to(PACKAGE).parts[0] not in ("core", "policies", "sim", "config"):
            continue
        for found in imports(path):
            if found.name == "typing.Any":
                yield f"{_place(path, found.line)}: imports Any"


def mutable_values() -> Iterator[str]:
    """Dataclasses of core that are not frozen with slots."""
    for path in sorted((PACKAGE / "core").glob("*.py")):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                for decorator in node.decorator_list:
                    text = ast.unparse(decorator)
                    if text.startswith("dataclass") and not ("frozen=True" in text and "slots=True" in text):
                        yield f"{_place(path, node.lineno)}: {node.name} is not frozen with slots"


@pytest.mark.parametrize(
    "offenders",
    [
        long_functions,
        long_modules,
        grab_bags,
        prints_outside_the_command_line,
        missing_docstrings,
        untyped_holes,
        mutable_values,
    ],
    ids=lambda check: check.__name__,
)
def test_style(offenders: Callable[[], Iterator[str]]) -> None:
    found = list(offenders())
    assert not found, "\n".join(["", *found])


def test_the_checks_see_what_they_look_for(tmp_path: Path) -> None:
    source = tmp_path / "long.py"
    source.write_text('def f():\n    """One.\n\n    Two.\n    """\n\n    # why\n' + "    x = 1\n" * 80)
    (function,) = _functions(tree(source))

    assert _function_length(source, function) == 81
    assert list(_undocumented(source, ast.parse("class A:\n    def b(self): ...\n    def _c(self): ...").body)) != []
