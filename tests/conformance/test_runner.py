"""The runner of conformance cases: what it reads, what it counts, and that it tells right from wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.conformance import main
from rayorch.core.errors import SpecError
from rayorch.core.types import GPU
from rayorch.sim.conformance.adapter import SPARE, queue_specs, snapshot_of
from rayorch.sim.conformance.cases import Case, QueueText, read_cases
from rayorch.sim.conformance.pods import World
from rayorch.sim.conformance.run import judge, kai_profile, tally

NODE = {"name": "n0", "gpus": 2}
QUEUES = [{"name": "d", "parent": None, "quota_gpus": 2}, {"name": "q", "parent": "d", "quota_gpus": 2}]


def job(name: str, *states: str, **settings: object) -> dict[str, object]:
    """A job of queue q with one GPU a task; a running one is on n0."""
    tasks = [{"id": f"{name}-{i}", "state": state, "node": "n0"} for i, state in enumerate(states)]
    return {"name": name, "queue": "q", "gpus_per_task": 1, "min_available": len(states), "tasks": tasks, **settings}


def case(
    jobs: list[dict[str, object]], expect: Mapping[str, str], mode: str = "single_session", action: str = "allocate"
) -> Case:
    """A case on one node of two GPUs; `expect`: job -> status."""
    return Case.model_validate(
        {
            "id": f"case/{jobs[0]['name']}",
            "mode": mode,
            "actions": [action],
            "nodes": [NODE],
            "queues": QUEUES,
            "jobs": jobs,
            "expect": {"jobs": {name: {"status": status} for name, status in expect.items()}},
        }
    )


def test_a_job_that_is_placed_as_expected_agrees_and_one_that_is_not_does_not() -> None:
    fits = [job("a", "Pending", "Pending")]
    assert judge(case(fits, {"a": "Binding"}), kai_profile).agrees
    wrong = judge(case(fits, {"a": "Pending"}), kai_profile)
    assert wrong.difference.placed == ("a-0", "a-1")
    too_large = [job("a", "Pending", "Pending", "Pending")]
    assert judge(case(too_large, {"a": "Pending"}), kai_profile).agrees


def test_an_expectation_of_a_task_goes_before_that_of_its_job_and_unknown_names_are_ignored() -> None:
    found = case([job("a", "Running", "Pending", min_available=1)], {"a": "Pending", "nobody": "Running"})
    tasks = {"a-0": {"status": "Running"}, "a-1": {"status": "Binding"}, "b-7": {"status": "Pending"}}
    named = found.model_copy(
        update={"expect": found.expect.model_validate({"jobs": {"a": {"status": "Pending"}}, "tasks": tasks})}
    )
    assert judge(named, kai_profile).agrees


def test_a_leaving_task_gives_its_place_to_a_nominated_one() -> None:
    jobs = [job("old", "Releasing", "Releasing"), job("new", "Pending", "Pending")]
    assert judge(case(jobs, {"new": "Pipelined", "old": "Releasing"}), kai_profile).agrees


def test_unlimited_quota_is_more_than_any_cluster_and_what_nobody_deserves_is_lent() -> None:
    specs = {spec.id: spec for spec in queue_specs((QueueText(name="a", quota_gpus=-1), QueueText(name="b")))}
    assert specs[SPARE].deserved.units(GPU) > 10**9
    (unlimited,) = (spec for id, spec in specs.items() if id.endswith("-a"))
    assert unlimited.deserved.units(GPU) > 10**9


def test_a_snapshot_is_sorted_and_holds_the_devices_of_shared_gpus() -> None:
    half = {"id": "h-0", "state": "Running", "node": "n0", "gpu_groups": ["x"]}
    jobs = [job("z", "Running"), {**job("h"), "gpus_per_task": 0.5, "min_available": 1, "tasks": [half]}]
    snapshot = snapshot_of(World.of(case(jobs, {}), 0.0))
    assert [w.id for w in snapshot.workloads] == ["h", "z"]
    devices = {a.workload: a.members[0].devices for a in snapshot.allocations}
    assert set(devices["h"]).isdisjoint(devices["z"])


def test_cases_are_counted_by_action() -> None:
    fits = [job("a", "Pending")]
    verdicts = [judge(case(fits, {"a": status}), kai_profile) for status in ("Binding", "Pending", "Pipelined")]
    found = tally([*verdicts, judge(case(fits, {"a": "Running"}, mode="rounds"), kai_profile)])
    assert (found.cases, found.agree, found.stability_broken) == (4, 3, 0)
    assert found.by_action == {"allocate": (2, 3), "rounds": (1, 1)}


def test_the_benchmark_prints_one_line_of_json_for_any_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = {"schema": "rayorch-conformance/kai/0.1", "cases": [case([job("a", "Pending")], {}).model_dump()]}
    (tmp_path / "one.json").write_text(json.dumps(document))
    assert main([str(tmp_path), "--check"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last == {"cases": 1, "agree": 1, "stability_broken": 0, "by_action": {"allocate": [1, 1]}}


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"schema": "other/1", "cases": []}', '{"schema": "rayorch-conformance/kai/0.1"}']
)
def test_a_file_that_is_none_of_the_schema_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.json").write_text(text)
    with pytest.raises(SpecError, match=r"odd\.json"):
        read_cases(tmp_path)
    assert main([str(tmp_path)]) == 2
