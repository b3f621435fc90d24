"""The same seed gives the same log, byte for byte: on every profile that comes with rayorch, with every policy in it,
and in every process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from rayorch.sim.trace.run import run
from tests.policies.registry import every_profile
from tests.sim.trace.test_properties import QUEUES, ROUGH, crowd
from tests.sim.trace.worlds import nodes
from tests.source_tree import ROOT

JOBS = 16
PROFILES = every_profile()


def logs() -> dict[str, str]:
    """The digest of the log of one run under every profile, by its name."""
    made = crowd(2, JOBS)
    return {
        name: run(made, nodes(3), profile, queues=QUEUES, models=ROUGH, seed=7).log_sha256
        for name, profile in PROFILES.items()
    }


@pytest.fixture(scope="module")
def ours() -> dict[str, str]:
    """The logs of this process."""
    return logs()


def test_one_seed_gives_one_log_on_every_profile_in_every_process(ours: dict[str, str]) -> None:
    """Whatever order sets of strings have there (PYTHONHASHSEED)."""
    for hash_seed in ("1", "4711"):
        said = subprocess.run(
            [sys.executable, "-m", "tests.policies.test_determinism"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(said.stdout) == ours


def test_the_logs_tell_profiles_apart(ours: dict[str, str]) -> None:
    """Otherwise equal logs would say nothing."""
    different = ("default", "fifo", "least-attained", "smallest", "yunikorn")
    assert len({ours[f"configs/profiles/{name}.yaml"] for name in different}) == 5


if __name__ == "__main__":
    print(json.dumps(logs()))
