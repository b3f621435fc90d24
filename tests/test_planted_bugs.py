"""Can the tests fail? Each planted bug must make the tests that are named for it fail, in a copy of the code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.planted_bugs import BUGS, Planted
from tests.source_tree import ROOT

COPIED = ("rayorch", "tests", "pyproject.toml")
AT_ONCE = 2
TESTS_FAILED = 1
"""pytest's exit code when tests ran and some failed; a copy that can't even be imported gives another one."""


def _copy(target: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc", "seeds")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=ignored)
        else:
            shutil.copy(source, target / name)


def _plant(bug: Planted, folder: Path) -> None:
    file = folder / bug.file
    text = file.read_text(encoding="utf-8")
    for old, new in ((bug.old, bug.new), *bug.also):
        assert text.count(old) == 1, f"{bug.name}: its place in {bug.file} is gone, plant it anew"
        text = text.replace(old, new)
    file.write_text(text, encoding="utf-8")


def _survivors(bug: Planted, folder: Path) -> list[str]:
    """The tests that should have failed and did not, each with what it said."""
    _copy(folder)
    _plant(bug, folder)
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "CI": "1"}
    found = []
    for test in bug.caught_by:
        options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", test]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options], cwd=folder, env=environment, capture_output=True, text=True
        )
        if done.returncode != TESTS_FAILED:
            found.append(f"{bug.name}: {test} ended with {done.returncode}: {(done.stdout + done.stderr)[-600:]}")
    return found


def test_every_planted_bug_is_caught(tmp_path: Path) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        folders = [tmp_path / str(number) for number in range(len(BUGS))]
        survivors = [line for lines in pool.map(_survivors, BUGS, folders) for line in lines]
    assert len(BUGS) >= 12
    assert not survivors, "\n".join(survivors)


def test_a_bug_whose_place_is_gone_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="plant it anew"):
        _plant(Planted("something", "nowhere", "a.py", "y = 2\n", "", ()), tmp_path)
