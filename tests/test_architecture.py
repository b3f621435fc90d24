"""Who may import whom: the table of docs/architecture.md, read from the imports themselves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.source_tree import imports, module_of, modules

PURE_BANS = frozenset(
    {
        *("time", "datetime", "random", "secrets", "uuid"),
        *("os", "io", "pathlib", "tempfile", "shutil", "sqlite3", "logging"),
        *("threading", "asyncio", "concurrent", "multiprocessing", "subprocess", "socket", "signal"),
    }
)
"""No clock, chance, thread, process, file or log. (pydantic and ray fall under "numpy and the standard library".)"""


@dataclass(frozen=True, slots=True)
class Rule:
    """`ours`: packages of rayorch that it may import. `bans`: outside names it must not.

    `third_party`: the outside packages it may import, None for any.
    """

    ours: frozenset[str]
    bans: frozenset[str] = frozenset()
    third_party: frozenset[str] | None = None


def _rule(ours: str, bans: frozenset[str] = frozenset(), third_party: frozenset[str] | None = None) -> Rule:
    return Rule(frozenset(ours.split()), bans, third_party)


NUMPY = frozenset({"numpy"})
HANDLES = "core config actors client"  # through handles only: what runs is in the actor's process

RULES = {
    "core": _rule("core", PURE_BANS, NUMPY),
    "policies": _rule("core policies", PURE_BANS, NUMPY),
    "sim": _rule("sim core policies config", frozenset({"ray", "time"})),
    "config": _rule("config core"),
    "experiment": _rule("experiment sim core policies config"),
    "adapters": _rule("core"),
    "actors": _rule("actors core adapters config"),
    "serve_apps": _rule(f"serve_apps {HANDLES}"),
    "client": _rule(HANDLES),
    "cli": _rule(f"cli {HANDLES}"),
    "server": _rule("actors adapters serve_apps core config"),  # the process that puts all of it together
    "__init__": _rule("client core config experiment"),
    "__main__": _rule("cli"),
}

SHARED = "rayorch.adapters.ray_names"
"""Ray's names that several adapters need: each of them may import it."""

EXCEPTIONS = {
    ("rayorch.cli.simulate", "sim"),
    ("rayorch.cli.simulate", "experiment"),
    ("rayorch.cli.replay", "sim"),
    ("rayorch.cli.shadow", "sim"),
    ("rayorch.cli.shadow", "experiment"),
}


def _ruled() -> Iterator[tuple[str, Path, Rule]]:
    """The modules that have a row; the first test reports those that have none."""
    for module, path in modules().items():
        if (rule := RULES.get(_part(module))) is not None:
            yield module, path, rule


def _part(module: str) -> str:
    """The row of the table that a module belongs to."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def _adapter(module: str) -> str:
    """The outside system that an adapter module is about; its own files may import each other."""
    return ".".join(module.split(".")[:3])


def _show(offenders: list[str]) -> str:
    return "\n".join(["", *offenders])


def test_every_module_has_its_row() -> None:
    strays = [name for name in modules() if _part(name) not in RULES]
    assert not strays, _show([f"{name}: no rule says what it may import" for name in strays])


def test_packages_import_only_what_their_row_allows() -> None:
    offenders = []
    for module, path, rule in _ruled():
        for found in imports(path):
            if found.name.startswith("."):
                offenders.append(f"{path}:{found.line}: say the whole path, not {found.name}")
                continue
            target = module_of(found.name)
            if found.name.split(".")[0] != "rayorch" or target in (None, "rayorch"):
                continue
            part = _part(target)
            same_adapter = part == "adapters" == _part(module) and _adapter(target) == _adapter(module)
            allowed = part in rule.ours or same_adapter or (part == _part(module) and target == SHARED)
            if not allowed and (module, part) not in EXCEPTIONS:
                offenders.append(f"{path}:{found.line}: {module} must not import {found.name}")
    assert not offenders, _show(offenders)


def test_pure_packages_touch_no_clock_chance_thread_file_or_log() -> None:
    offenders = []
    for module, path, rule in _ruled():
        for found in imports(path):
            top = found.name.split(".")[0]
            if top == "rayorch":
                continue
            outside = top not in sys.stdlib_module_names
            if top in rule.bans or (outside and rule.third_party is not None and top not in rule.third_party):
                offenders.append(f"{path}:{found.line}: {module} must not import {found.name}")
    assert not offenders, _show(offenders)


def test_private_names_of_ray_are_in_adapters_only() -> None:
    offenders = [
        f"{path}:{found.line}: {found.name}"
        for module, path in modules().items()
        if _part(module) != "adapters"
        for found in imports(path)
        if found.name.startswith("ray.") and any(part.startswith("_") for part in found.name.split("."))
    ]
    assert not offenders, _show(offenders)


def test_command_line_and_client_import_ray_nowhere_on_the_way() -> None:
    offenders = []
    for start in (name for name in modules() if _part(name) in ("cli", "client", "__init__")):
        offenders += _ways_to_ray(start)
    assert not offenders, _show(sorted(set(offenders)))


def _ways_to_ray(start: str) -> list[str]:
    """Chains of imports, from `start`, that end in ray when `start` is imported."""
    known = modules()
    seen: set[str] = set()
    chains, waiting = [], [(start,)]
    while waiting:
        chain = waiting.pop()
        module = chain[-1]
        if module in seen:
            continue
        seen.add(module)
        for found in imports(known[module]):
            if not found.at_import:
                continue
            if found.name.split(".")[0] == "ray":
                chains.append(" -> ".join([*chain, f"{found.name} (line {found.line})"]))
            elif found.name.split(".")[0] == "rayorch" and (target := module_of(found.name)):
                # Importing a.b.c runs a and a.b as well.
                parts = target.split(".")
                waiting += [(*chain, ".".join(parts[:n])) for n in range(1, len(parts) + 1)]
    return chains


def test_importing_the_command_line_loads_no_ray(tmp_path: Path) -> None:
    entry = "rayorch.cli.main" if "rayorch.cli.main" in modules() else "rayorch.cli"
    code = f"import sys, {entry}; print(sorted(m for m in sys.modules if m.split('.')[0] in ('ray', 'torch', 'numpy')))"
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    loaded = [name for name in result.stdout.strip("[]\n").split(", ") if name and "numpy" not in name]
    assert loaded == []
