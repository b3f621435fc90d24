"""Every autoscaler and KubeRay misbehaviour that we know of, as a scenario with the right outcome.

The scenarios are the files of tests/cases/scaling, named after what happens; each cites where it was seen. The
checkers run after every step.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rayorch.sim.checked import CheckedCluster
from rayorch.sim.scenario import Scenario, check

CASES = Path(__file__).parents[1] / "cases" / "scaling"
FILES = sorted(CASES.glob("*.json"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_happens_ends_well(file: Path) -> None:
    scenario = Scenario.read(file)
    sim = scenario.cluster(CheckedCluster)
    assert isinstance(sim, CheckedCluster)
    for played in scenario.play(sim):
        assert not played.wrong, sim.story(f"{scenario.about}\nat {played.at_s:g} s: " + "\n".join(played.wrong))
    sim.run_to_rest(scenario.limit_s)
    wrong = check(sim, scenario.end)
    assert not wrong, sim.story(f"{scenario.about}\nat the end: " + "\n".join(wrong))


def test_every_scenario_says_where_it_was_seen() -> None:
    assert FILES
    assert not [file.name for file in FILES if not Scenario.read(file).cases]


def test_a_scenario_that_expects_the_wrong_thing_fails() -> None:
    """The runner itself: an expectation that does not hold is told, field by field."""
    text = """{"about": "Nothing happens.", "cases": ["none"], "groups": {"a": {"replicas": 1}}, "steps": [
      {"at": 1, "submit": {"id": "w", "members": 1}},
      {"at": 40, "expect": {"states": {"w": "FAILED"}, "attempts": {"w": 7}, "preemptions": {"w": 1},
       "waits": {"w": ["Quota"]}, "says": {"w": "nonsense"}, "on": {"w": "b"}, "within": {"w": "node"},
       "replicas": {"a": 9}, "nodes": {"a": 9}, "machines": {"a": 9}, "patches": {"a": -1}, "ordered": ["a"],
       "backed_off": ["a"], "unknown": true}}]}"""
    scenario = Scenario.parse(text)
    sim = scenario.cluster(CheckedCluster)
    played = list(scenario.play(sim))[-1]
    assert len(played.wrong) == 13, played.wrong
