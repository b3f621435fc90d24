"""What a user installs: the wheel holds the package and nothing else, and the links at the top level open it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from tests.source_tree import PACKAGE, ROOT, imports, modules

BUILD_TIMEOUT_S = 300
LINKS = ("actors", "policies", "serve_apps")
BROUGHT_BY_RAY = frozenset(
    {
        *("aiohttp", "click", "cloudpickle", "fastapi", "grpc", "jinja2", "jsonschema"),
        *("prometheus_client", "starlette", "uvicorn"),
    }
)
"""What ray[default,serve] depends on itself and we use with it."""
EXTRAS = {"sim/report/plots.py": frozenset({"matplotlib"})}
"""Modules that need an extra of the project, and which; whoever imports them says what to install."""
BUILD = "from setuptools import build_meta; import sys; print(build_meta.build_wheel(sys.argv[1]))"


def _project() -> dict[str, object]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert isinstance(project, dict)
    return project


def _package_files() -> list[Path]:
    return [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources so that no build folder appears in the tree."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    tracked = [ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE")]
    tracked += _package_files()
    for path in tracked:
        copy = source / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    for link in LINKS:
        (source / link).symlink_to((ROOT / link).readlink())
    command = [sys.executable, "-c", BUILD, str(target)]
    result = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
    assert result.returncode == 0, result.stderr
    (built,) = target.glob("*.whl")
    return built


def test_wheel_holds_the_whole_package_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {str(path.relative_to(ROOT)) for path in _package_files()}

    assert "rayorch/py.typed" in expected
    assert expected <= names, sorted(expected - names)
    for part in ("core", *LINKS):
        assert f"rayorch/{part}/__init__.py" in names
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"rayorch"}


def test_wheel_carries_the_licence_and_the_command(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    info = next(name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name)

    assert f"{info}/licenses/LICENSE" in archive.namelist()
    assert "rayorch = rayorch.cli.entry:main" in archive.read(f"{info}/entry_points.txt").decode()
    assert "License-Expression: Apache-2.0" in archive.read(f"{info}/METADATA").decode()


def test_wheel_imports_from_where_it_was_unpacked(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = "import sys; sys.path.insert(0, sys.argv[1]); import rayorch, rayorch.core.types; print(rayorch.__file__)"
    command = [sys.executable, "-c", code, str(tmp_path)]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)

    assert result.returncode == 0, result.stderr
    assert Path(result.stdout.strip()).is_relative_to(tmp_path)


def test_links_at_the_top_level_are_relative_and_open_the_package() -> None:
    for link in LINKS:
        path = ROOT / link
        assert path.is_symlink(), link
        assert not path.readlink().is_absolute(), link
        assert path.resolve() == PACKAGE / link
        assert (path / "__init__.py").is_file(), link


def test_every_folder_of_the_package_is_a_package() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [str(f) for f in sorted(folders) if not (f / "__init__.py").is_file()] == []


def test_version_is_said_once() -> None:
    import rayorch

    version = _project()["version"]
    assert metadata.version("rayorch") == version
    assert getattr(rayorch, "__version__", version) == version
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_outside_imports_are_dependencies() -> None:
    from packaging.requirements import Requirement

    # The modules of pyyaml and nvidia-ml-py have other names.
    declared = {Requirement(text).name.lower() for text in _project()["dependencies"]} | {"yaml", "pynvml"}  # type: ignore[attr-defined]
    allowed = declared | BROUGHT_BY_RAY | sys.stdlib_module_names | {"rayorch"}
    offenders = {
        f"{path.relative_to(ROOT)}:{found.line}: {found.name}"
        for path in modules().values()
        for found in imports(path)
        if found.name.split(".")[0] not in allowed | EXTRAS.get(str(path.relative_to(PACKAGE)), frozenset())
    }
    assert not offenders, "\n".join(["", *sorted(offenders)])


def test_tested_versions_lie_in_the_ranges() -> None:
    from packaging.requirements import Requirement

    lines = (ROOT / "constraints-dev.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.lower().split("==") for line in lines if "==" in line)
    project = _project()
    wanted = [*project["dependencies"], *(r for extra in project["optional-dependencies"].values() for r in extra)]  # type: ignore[misc, attr-defined]
    for text in wanted:
        requirement = Requirement(text)
        if requirement.name.lower() == "setuptools":
            continue
        assert requirement.specifier.contains(pins[requirement.name.lower()]), text
