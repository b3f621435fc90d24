"""Runs side by side on real Ray give what they give one after the other."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.source_tree import ROOT

CODE = """
import json, sys, rayorch
trace, out = sys.argv[1:]
words = dict(cluster="2x4", profiles=["default", "slurm"], seeds=[0, 1], jobs=20, resample="blocks", progress=False)
apart = rayorch.simulate(trace, **words)
assert "ray" not in sys.modules
side = rayorch.simulate(trace, **words, out=out, parallel=2)
def told(report):
    return [(r.profile, r.seed, r.log_sha256, r.jct, r.queues) for r in report.runs]
print(told(apart) == told(side), side.complete, len(side.runs))
"""


@pytest.fixture
def ray_environment() -> Iterator[dict[str, str]]:
    """A Ray of its own: sockets need a short path, and no other cluster must be found."""
    folder = tempfile.mkdtemp(prefix="rs", dir="/tmp")
    kept = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    yield {**kept, "RAY_TMPDIR": folder, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.ray
def test_runs_on_ray_are_the_same_runs(tmp_path: Path, ray_environment: dict[str, str]) -> None:
    trace = ROOT / "examples" / "traces" / "two-teams.csv"
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(trace), str(tmp_path / "out")],
        env=ray_environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.splitlines()[-1:] == ["True True 4"], done.stderr
    assert len(list((tmp_path / "out" / "runs").glob("*.json"))) == 4
