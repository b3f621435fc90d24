"""KAI's own test cases under the preset `kai`: as many agree as we promise, and each that does not has its reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rayorch.sim.conformance.cases import read_cases
from rayorch.sim.conformance.run import Verdict, judge, kai_profile, tally

DEVIATIONS = Path(__file__).with_name("deviations.json")


@pytest.fixture(scope="module")
def verdicts(cases_dir: Path) -> list[Verdict]:
    """What became of every case."""
    return [judge(case, kai_profile) for case in read_cases(cases_dir / "kai")]


def test_at_least_19_of_20_cases_agree_and_9_of_10_of_each_action(verdicts: list[Verdict]) -> None:
    found = tally(verdicts)
    assert found.agree >= 0.95 * found.cases
    for action, (agree, cases) in found.by_action.items():
        assert agree >= 0.9 * cases, action


def test_what_has_been_reached_stays_in_every_further_round(verdicts: list[Verdict]) -> None:
    assert [v.case.id for v in verdicts if v.unstable] == []


def test_the_deviations_are_exactly_the_cases_that_do_not_agree(verdicts: list[Verdict]) -> None:
    known = {entry["id"]: entry["reason"] for entry in json.loads(DEVIATIONS.read_text())["deviations"]}
    assert sorted(known) == sorted(v.case.id for v in verdicts if not v.agrees)
    assert all(len(reason) > 40 for reason in known.values())


def test_the_plan_of_a_case_is_the_same_every_time(cases_dir: Path, verdicts: list[Verdict]) -> None:
    again = [judge(case, kai_profile) for case in read_cases(cases_dir / "kai") if "hierarchy" in case.features]
    before = {v.case.id: v.difference for v in verdicts}
    assert all(v.difference == before[v.case.id] for v in again)
