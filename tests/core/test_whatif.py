"""What would happen if: a submission, a change of a waiting workload, the passing of time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayorch.core.planner import plan
from rayorch.core.snapshot import Snapshot
from rayorch.core.types import TopologyRequest, WorkloadId
from rayorch.core.whatif import (
    Change,
    ChangeKind,
    Lot,
    forecast,
    smallest_changes,
    start_interval,
    would,
)
from rayorch.policies.default import DEFAULT
from tests.scenes import NOW, node, pending, queue, running, snapshot, spec, started


def changes(world: Snapshot, id: str) -> dict[ChangeKind, Change]:
    found = smallest_changes(world, DEFAULT, plan(world, DEFAULT), WorkloadId(id))
    return {change.kind: change for change in found}


def test_a_submission_that_fits_says_where_it_would_start_and_whom_it_delays() -> None:
    world = snapshot([node("n1"), node("n2")], [pending("small", gpu=8)])
    found = would(world, DEFAULT, spec("big", 2, gpu=8, priority=5))
    assert found.lot is Lot.STARTS
    assert found.seats == (("n1", 1), ("n2", 1))
    assert found.delayed == ("small",)
    assert not found.victims and not found.waits


def test_a_submission_that_evicts_names_its_victims_and_what_they_lose() -> None:
    world = snapshot([node("n1")], [running("low", ["n1"], gpu=8, started_s=NOW - 600)])
    found = would(world, DEFAULT, spec("high", gpu=8, priority=5))
    assert found.lot is Lot.STARTS_AFTER_EVICTIONS
    assert [(v.workload, v.stopped, v.cost_gpu_s) for v in found.victims] == [("low", True, 8 * 630.0)]
    assert found.seats == (("n1", 1),)


def test_a_submission_that_waits_says_why_and_when_it_should_start() -> None:
    world = snapshot([node("n1")], [running("long", ["n1"], gpu=8, started_s=NOW - 100, expected_s=400.0)])
    found = would(world, DEFAULT, spec("next", gpu=8))
    assert found.lot is Lot.WAITS and found.waits and found.position == 1
    assert found.start is not None and found.start.likely_s == NOW + 300 and found.start.late_s == NOW + 700


def test_nothing_is_said_of_a_start_behind_work_of_unknown_length() -> None:
    world = snapshot([node("n1")], [running("long", ["n1"], gpu=8)])
    assert would(world, DEFAULT, spec("next", gpu=8)).start is None


def test_a_gang_in_one_rack_is_told_that_preferring_the_level_would_do() -> None:
    racks = [node("n1", rack="r1", zone="z"), node("n2", rack="r2", zone="z")]
    world = snapshot(racks, [pending("gang", 2, gpu=8, rack="required")])
    found = changes(world, "gang")
    assert found[ChangeKind.PREFER].detail == "prefer rack in place of requiring it"
    assert found[ChangeKind.LEVEL].detail == "require zone in place of rack"
    assert found[ChangeKind.MEMBERS].detail == "1 of role worker in place of 2"
    assert ChangeKind.NOTHING not in found and ChangeKind.PRIORITY not in found


def test_every_change_that_is_named_does_start_it() -> None:
    racks = [node("n1", rack="r1"), node("n2", rack="r2")]
    world = snapshot(racks, [pending("gang", 2, gpu=8, rack="required")])
    assert ChangeKind.PREFER in changes(world, "gang")
    looser = replace(world.workloads[0], spec=replace(world.workloads[0].spec, topology=TopologyRequest(None, "rack")))
    assert started(plan(replace(world, workloads=(looser,)), DEFAULT)) == {"gang": ["n1", "n2"]}


def test_another_model_is_named_where_it_is_free() -> None:
    nodes = [node("a", model="A100"), node("h", model="H100")]
    world = snapshot(nodes, [running("busy", ["h"], gpu=8), pending("wants", gpu=8, accelerators=("H100",))])
    assert changes(world, "wants")[ChangeKind.ACCELERATOR].detail == "allow A100 beside H100"


@pytest.mark.parametrize(("free", "most"), [(1, 1), (3, 3), (7, 7)])
def test_the_most_members_that_would_start_are_found(free: int, most: int) -> None:
    world = snapshot([node("n1")], [running("busy", ["n1"], gpu=8 - free), pending("gang", 8, gpu=1)])
    assert changes(world, "gang")[ChangeKind.MEMBERS].detail == f"{most} of role worker in place of 8"


def test_the_least_priority_that_helps_is_named_with_its_victim() -> None:
    held = [running("low", ["n1"], gpu=8, priority=3), running("high", ["n2"], gpu=8, priority=9)]
    world = snapshot([node("n1"), node("n2")], [*held, pending("gang", gpu=8)])
    change = changes(world, "gang")[ChangeKind.PRIORITY]
    assert change.detail == "priority 4 in place of 0"
    assert [v.workload for v in change.victims] == ["low"]


def test_a_priority_above_what_the_queue_takes_is_not_named() -> None:
    capped = replace(queue("q"), max_priority=3)
    world = snapshot([node("n1")], [running("low", ["n1"], gpu=8, priority=3), pending("gang", gpu=8)], [capped])
    assert ChangeKind.PRIORITY not in changes(world, "gang")


def test_waiting_is_named_first_where_the_end_of_others_is_known() -> None:
    world = snapshot(
        [node("n1")], [running("long", ["n1"], gpu=8, started_s=NOW, wall_limit_s=60.0), pending("b", gpu=8)]
    )
    found = changes(world, "b")
    assert next(iter(found)) is ChangeKind.NOTHING
    start = found[ChangeKind.NOTHING].start
    assert start is not None and start.likely_s == start.late_s == NOW + 60


def test_what_does_not_wait_has_nothing_to_change() -> None:
    world = snapshot([node("n1"), node("n2")], [running("on", ["n1"], gpu=8), pending("starts", gpu=8)])
    assert changes(world, "on") == changes(world, "starts") == changes(world, "nobody") == {}


def test_those_ahead_start_first_by_the_estimate() -> None:
    held = [
        running("a", ["n1"], gpu=8, started_s=NOW, expected_s=100.0),
        running("b", ["n2"], gpu=8, started_s=NOW, expected_s=200.0),
    ]
    world = snapshot([node("n1"), node("n2")], [*held, pending("1st", gpu=8), pending("2nd", gpu=8, submitted_s=1.0)])
    first = start_interval(world, DEFAULT, WorkloadId("1st"))
    second = start_interval(world, DEFAULT, WorkloadId("2nd"))
    assert first is not None and first.likely_s == NOW + 100
    assert second is not None and second.likely_s == NOW + 200


@given(st.integers(1, 4), st.lists(st.integers(1, 8), max_size=4), st.integers(1, 8), st.integers(0, 5))
def test_a_forecast_is_what_then_happens(nodes: int, held: list[int], gpu: int, priority: int) -> None:
    """Submitting it for real gives the lot that was foretold; and asking changes nothing."""
    places = [node(f"n{n}") for n in range(nodes)]
    work = [running(f"r{n}", [f"n{n % nodes}"], gpu=size, priority=n) for n, size in enumerate(held[:nodes])]
    world = snapshot(places, work)
    asked = spec("new", gpu=gpu, priority=priority)
    foretold = would(world, DEFAULT, asked)
    real = snapshot(places, [*work, pending("new", gpu=gpu, priority=priority, submitted_s=NOW)])
    assert replace(foretold, start=None, delayed=()) == forecast(plan(real, DEFAULT), WorkloadId("new"))
    assert world == snapshot(places, work)
