"""docs/simulate.md: its quick start runs, and it names every option, every figure and every profile."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import rayorch
from rayorch.cli.main import app
from rayorch.sim.report.measures import MEASURES
from tests.source_tree import ROOT

PAGE = (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8")
FILES = re.compile(r"(examples|configs)/[\w./-]+")


def _quick_start(language: str) -> str:
    part = PAGE[PAGE.index("## Quick start") : PAGE.index("## What is played")]
    (block,) = re.findall(rf"^```{language}\n(.*?)^```", part, re.MULTILINE | re.DOTALL)
    return FILES.sub(lambda found: str(ROOT / found[0]), block)


def test_the_quick_start_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [shlex.split(line) for line in _quick_start("sh").splitlines()]
    assert [words[:2] for words in lines] == [["rayorch", "simulate"]] * 2 and "--html" in lines[1]
    for words in lines:
        if "--html" in words:  # which is tested where it is made
            del words[words.index("--html") : words.index("--html") + 2]
        done = CliRunner().invoke(app, [*words[1:], "--jobs", "30"])
        assert done.exit_code == 0, done.stderr
    assert done.stdout.count("least-attained") == 1
    assert len(list((tmp_path / "two-teams" / "runs").iterdir())) == 10


def test_the_python_of_the_quick_start_calls_what_there_is() -> None:
    found: dict[str, object] = {}
    code = _quick_start("python").split("for group")[0].replace("range(5)", "(0,)").replace("[0.9]", "[0.4], jobs=30")
    exec(compile(code, "docs/simulate.md", "exec"), found)  # our own page
    report = found["report"]
    for name in re.findall(r"report\.(\w+)", PAGE):
        assert name == "json" or hasattr(report, name), name
    assert len(report.rows()) == 2  # type: ignore[attr-defined]
    assert rayorch.simulate.__module__.startswith("rayorch.experiment")


def test_every_option_is_explained() -> None:
    command = typer.main.get_command(app).commands["simulate"]  # type: ignore[attr-defined]
    options = {name for parameter in command.params for name in parameter.opts if name.startswith("--")}
    assert len(options) > 25
    assert [name for name in sorted(options - {"--help"}) if f"`{name}" not in PAGE] == []


def test_every_figure_is_explained_as_the_report_does() -> None:
    assert [m.key for m in MEASURES if f"| `{m.key}` | {m.meaning} |" not in PAGE] == []


def test_every_profile_is_in_the_guide() -> None:
    guide = PAGE[PAGE.index("## Choose a profile") :]
    names = [path.stem for path in (ROOT / "configs" / "profiles").glob("*.yaml")]
    assert len(names) > 10 and [name for name in names if f"`{name}`" not in guide] == []
