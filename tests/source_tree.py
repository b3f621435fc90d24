"""The package's source as syntax trees: what a module imports, and where."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "rayorch"


@dataclass(frozen=True, slots=True)
class Import:
    """One name that a module imports. `at_import`: it happens when the module itself is imported."""

    name: str
    line: int
    at_import: bool


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(path: Path) -> ast.Module:
    """The file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imports(path: Path) -> tuple[Import, ...]:
    """Everything a file imports, in functions too; `from a import b` counts as `a.b`."""
    return tuple(_walk(tree(path), at_import=True))


def _walk(node: ast.AST, at_import: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.Import(names=names):
                for alias in names:
                    yield Import(alias.name, child.lineno, at_import)
            case ast.ImportFrom(module=module, names=names, level=0):
                for alias in names:
                    yield Import(f"{module}.{alias.name}", child.lineno, at_import)
            case ast.ImportFrom():
                yield Import("." * child.level + (child.module or ""), child.lineno, at_import)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                yield from _walk(child, at_import=False)
            case ast.If(test=test) if "TYPE_CHECKING" in ast.dump(test):
                for statement in child.body:
                    yield from _walk(ast.Module([statement], []), at_import=False)
                for statement in child.orelse:
                    yield from _walk(ast.Module([statement], []), at_import)
            case _:
                yield from _walk(child, at_import)


def module_of(name: str) -> str | None:
    """The module of the package that an imported name comes from: itself, or the module that defines it."""
    known = modules()
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name or None
