"""`rayorch replay`: what it prints and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Run

CASES = Path(__file__).parents[1] / "cases"
GOOD = CASES / "engine" / "a_preferred_level_is_kept_where_it_can_be.json"


def test_it_says_what_was_expected_and_what_was_seen(run: Run, tmp_path: Path) -> None:
    done = run("replay", str(GOOD))
    assert done.exit_code == 0, done.stderr
    assert "2.0 s  submit w (2x1, queue q, priority 0)" in done.stdout
    assert "ok     nodes of w: expected ['hn1'], seen ['hn1']" in done.stdout
    assert done.stdout.rstrip().endswith("expectations hold, and every invariant held at every step")

    wrong = json.loads(GOOD.read_text(encoding="utf-8"))
    wrong["steps"][-1]["expect"]["nodes_of"] = {"w": ["hn2"]}
    file = tmp_path / "wrong.json"
    file.write_text(json.dumps(wrong), encoding="utf-8")
    done = run("replay", "--quiet", str(GOOD), str(file))
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert len(lines) == 3 and "WRONG  nodes of w: expected ['hn2'], seen ['hn1']" in lines[1]


def test_a_file_that_is_no_scenario_is_refused(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    file.write_text('{"about": "x", "steps": [{"at": 0, "expects": {}}]}', encoding="utf-8")
    done = run("replay", str(file))
    assert done.exit_code == 105
    assert "steps.0.expects" in done.stderr and str(file) in done.stderr
    assert run("replay", str(tmp_path / "none.json")).exit_code == 105
