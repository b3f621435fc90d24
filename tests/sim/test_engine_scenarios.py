"""Bug cases of other schedulers' engines as scenarios with the right outcome: the files of tests/cases/engine.

Each cites where it was seen. The invariants are checked after every tick.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rayorch.core.errors import SpecError
from rayorch.sim.replay import report
from rayorch.sim.scenario import Scenario

CASES = Path(__file__).parents[1] / "cases" / "engine"
FILES = sorted(CASES.glob("*.json"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_happens_ends_well(file: Path) -> None:
    lines = list(report(Scenario.read(file), at_calls=False))
    assert lines[-1][1], "\n".join(text for text, _ in lines)


def test_every_scenario_says_where_it_was_seen() -> None:
    assert FILES
    assert not [file.name for file in FILES if not Scenario.read(file).cases]


def _scenario(*steps: object, **more: object) -> Scenario:
    nodes = [{"name": "n", "gpu": 4}]
    return Scenario.parse(json.dumps({"about": "One node.", "nodes": nodes, "steps": steps, **more}))


def test_an_expectation_that_does_not_hold_is_told_with_what_was_seen() -> None:
    expect = {
        "states": {"w": "FAILED", "x": "RUNNING"},
        "attempts": {"w": 2},
        "sizes": {"w": 3},
        "node_losses": {"w": 1},
        "start_failures": {"w": 1},
        "nodes_of": {"w": ["m"]},
        "apart": [["w", "w"]],
        "unknown_workloads": ["w"],
        "one_of": [{"of": ["w", "x"], "count": 2}],
        "running": 5,
        "started": ["x"],
        "evicted": ["w"],
        "evictions": -1,
        "charged": {"q": 9, "q/none": {"CPU": 1}},
        "held": 9,
        "waits": {"w": ["Quota"]},
        "says": {"w": "nonsense"},
    }
    scenario = _scenario({"at": 0, "submit": {"id": "w", "gpu": 1}}, {"at": 8, "expect": expect})
    lines = list(report(scenario))
    wrong = [text for text, good in lines if not good]
    assert lines[-1] == ("19 of 19 expectations do not hold", False)
    assert any("state of w: expected FAILED, seen RUNNING" in text for text in wrong)
    assert len(wrong) == 20


def test_a_request_that_is_refused_or_accepted_against_expectation_is_told() -> None:
    scenario = _scenario(
        {"at": 0, "submit": {"id": "a", "queue": "nowhere"}},
        {"at": 1, "submit": {"id": "b"}, "refused": "queue"},
        {"at": 2, "submit": {"id": "c", "queue": "nowhere"}, "refused": "priority"},
        {"at": 3, "submit": {"id": "d", "queue": "nowhere"}, "refused": "nowhere"},
        {"at": 4, "cancel": "b"},
    )
    told = [text for text, good in report(scenario) if not good]
    assert [text.split("expected ")[1][:20] for text in told[:-1]] == [
        "accepted, seen refus",
        "refused with 'queue'",
        "refused with 'priori",
    ]


def test_a_broken_invariant_is_a_result_with_its_story() -> None:
    # Nothing on this cluster may be held above what a node has; somebody books it all the same.
    scenario = _scenario({"at": 0, "submit": {"id": "w", "gpu": 1}}, {"at": 5, "node": {"name": "n", "gpu": 0}})
    lines = list(report(scenario))
    assert lines[-1] == ("an invariant is broken (the story is above)", False)
    assert "invariant=1" in lines[-2][0] and "events:" in lines[-2][0]


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("{", ""),
        ('{"about": "x", "steps": [], "nodez": []}', "nodez"),
        ('{"about": "x", "steps": [{"at": -1}]}', "steps.0.at"),
        ('{"about": "x", "steps": [{"at": 1e18}]}', "steps.0.at"),
        ('{"about": "x", "steps": [{"at": 1, "submit": {"id": "a", "colour": 1}}]}', "steps.0.submit"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_field(text: str, field: str) -> None:
    with pytest.raises(SpecError) as refused:
        Scenario.parse(text)
    assert refused.value.field.startswith(field)


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"knobs": {"nonsense": 1}}, "knobs.nonsense"),
        ({"ordering": {"nonsense": 1}}, "ordering.nonsense"),
        ({"preset": "nonsense"}, "policies.preset"),
        ({"policies": {"order": "nowhere:f"}}, "policies.order"),
        ({"queues": [{"name": "q", "mode": "asleep"}]}, "mode"),
        ({"queues": [{"name": "q", "hard_cap": "much"}]}, "hard_cap"),
    ],
)
def test_a_profile_or_queue_that_does_not_exist_is_refused_with_its_field(more: dict[str, object], field: str) -> None:
    with pytest.raises(SpecError) as refused:
        list(report(_scenario(**more)))
    assert refused.value.field == field


def test_any_field_of_cores_values_can_be_said() -> None:
    text = {
        "id": "w",
        "owner": "ann",
        "min_runtime_s": 5,
        "after": [{"kind": "afterok", "workload": "v"}],
        "retries": [{"exit_codes": [3], "max_retries": 2}],
        "topology": {"preferred": "rack", "balanced": True},
        "roles": {"a": {"members": 4, "gpu": 1, "segments": [{"size": 2, "level": "rack"}]}},
    }
    scenario = _scenario({"at": 0, "submit": text})
    (submitted,) = [scenario.steps[0].submit]
    assert not isinstance(submitted, list)
    spec = submitted.to_core()
    assert (spec.owner, spec.min_runtime_s, spec.after[0].workload) == ("ann", 5, "v")
    assert (spec.retries[0].exit_codes, spec.roles[0].segments[0].size) == ((3,), 2)
    assert spec.topology.preferred == "rack" and spec.topology.balanced
