"""Simulated lives by the hundred, each from one seed, in two processes; and every seed that ever failed, again.

RAYORCH_LIVES says how many (500; `make sim` lives 2,000), RAYORCH_FIRST_LIFE with which seed to begin. A seed that
fails is printed with the commit and written to tests/seeds/, where it stays as a test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.lives import EVENTS, Life, failures, live
from tests.source_tree import ROOT

LIVES = int(os.environ.get("RAYORCH_LIVES", "500"))
FIRST = int(os.environ.get("RAYORCH_FIRST_LIFE", "0"))
PROCESSES = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2
"""One where the tests themselves run in two."""
SEEDS = Path(__file__).parents[1] / "seeds"
FILES = sorted(SEEDS.glob("*.json"))


def _commit() -> str:
    """Of what is tested; a life depends on the code as much as on its seed."""
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def _keep(found: dict[str, object]) -> Path:
    file = SEEDS / f"seed-{found['seed']}.json"
    first_line = str(found["what"]).splitlines()[0]
    rich = Life(int(str(found["seed"])), 0).rich
    data = {
        "seed": found["seed"],
        "events": found["events"],
        "rich": rich,
        "commit": _commit(),
        "found": first_line,
    }
    file.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    return file


@pytest.mark.timeout(1800)
def test_nothing_is_lost_whatever_happens() -> None:
    share = -(-LIVES // PROCESSES)
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.sim.lives", str(FIRST + n * share), str(min(share, LIVES - n * share))],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(PROCESSES)
    ]
    told = []
    for process in running:
        out, errors = process.communicate()
        assert process.returncode == 0, errors
        for line in out.splitlines():
            found = json.loads(line)
            told.append(f"seed {found['seed']} at commit {_commit()}, kept as {_keep(found)}:\n{found['what']}")
    assert not told, "\n\n".join(told)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_seed_that_once_failed_is_lived_again(file: Path) -> None:
    kept = json.loads(file.read_text(encoding="utf-8"))
    live(kept["seed"], kept["events"], kept.get("rich", False))


def test_the_same_seed_is_the_same_life() -> None:
    first, second = live(9, 150), live(9, 150)
    assert first.history == second.history
    assert [plan for _, plan, _ in first.controller.plans] == [plan for _, plan, _ in second.controller.plans]


def test_lives_see_what_they_are_for() -> None:
    """Over a few seeds every kind of end, stop and fault comes up: lives in which nothing goes wrong prove nothing."""
    kinds: set[str] = set()
    torn = 0
    for seed in range(1, 13):
        life = Life(seed, EVENTS)
        sim = life.run()
        kinds |= {type(event).__name__ for event in sim.history}
        kinds |= {f"ended {e.cause or e.move.value}" for e in sim.history if type(e).__name__ == "AttemptEnded"}  # type: ignore[attr-defined]
        torn += getattr(sim.journal, "torn", 0)
    assert {"Submitted", "Started", "Resized", "NodeCordoned", "CancelRequested", "QueueSet"} <= kinds
    ends = {"ended succeeded", "ended preempted", "ended reclaimed", "ended node_lost", "ended lease_lapsed"}
    assert ends <= kinds, sorted(kinds)
    assert torn


def test_a_defect_is_told_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Life) -> None:
        raise KeyError("something")

    monkeypatch.setattr(Life, "check_promises", broken)
    (found,) = failures(3, 1, events=5)
    assert found["seed"] == 3 and "KeyError" in str(found["what"])
