"""The checkers of capacity find what is wrong: each plan here is wrong in one way, and that is what is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from rayorch.core.capacity import (
    BackOff,
    Capacity,
    GroupName,
    GroupState,
    Instance,
    InstancePhase,
    NodeGroup,
    Order,
    Provider,
)
from rayorch.core.decisions import GangDemand, GroupChange, Plan, Scale, Wait, WaitReason
from rayorch.core.snapshot import Snapshot, Versions
from rayorch.core.types import NodeId, NodeSpec, TopologyRequest, Workload, WorkloadId
from rayorch.sim.groups import Patch, Removal
from rayorch.sim.scale_checkers import check_groups_at_rest, check_patches, check_scale
from tests.scenes import NOW, gpus, node, pending, running

A, W = GroupName("a"), WorkloadId("w")
IDLE_S = 60.0
PROVISIONING = (Wait(WaitReason.PROVISIONING, "nodes are on their way"),)
GROWTH = GroupChange(A, 1, 3, "for w", (W,), NOW + 30, NOW + 90)
SHRINK = GroupChange(A, 1, 0, "idle", instances=("a-1",), nodes=(NodeId("a-1"),))


def a_node(name: str = "a-1", idle_s: float | None = 100.0, **changes: object) -> NodeSpec:
    idle_since_s = NOW - idle_s if idle_s is not None else None
    spec = node(name, group="a", instance=name, idle_since_s=idle_since_s)
    return replace(spec, **changes)  # type: ignore[arg-type]


def rack(name: str) -> tuple[tuple[str, str], ...]:
    return (("rack", name),)


def group(replicas: int = 1, least: int = 0, most: int = 4, **changes: object) -> NodeGroup:
    names = [f"a-{i + 1}" for i in range(replicas)]
    instances = tuple(Instance(n, n, InstancePhase.RUNNING, 0.0, 1.0, NodeId(n)) for n in names)
    plain = NodeGroup(A, gpus(8, CPU=64), replicas, least, most, instances=instances)
    return replace(plain, **changes)  # type: ignore[arg-type]


def wrong(
    *changes: GroupChange,
    state: GroupState | None = None,
    nodes: tuple[NodeSpec, ...] | None = None,
    work: tuple[Workload, ...] = (),
    waits: Mapping[WorkloadId, tuple[Wait, ...]] | None = None,
    error: str = "",
    wanted: bool = True,
    **facts: object,
) -> list[tuple[int, str]]:
    """The violations' numbers and details. By default one idle node in group a, and whoever works waits for room."""
    state = state if state is not None else GroupState(group())
    snapshot = Snapshot(
        Versions(),
        NOW,
        (),
        work,
        nodes if nodes is not None else (a_node(),),
        (),
        capacity=Capacity(Provider.OURS, (state,), NOW, error),
    )
    snapshot = replace(snapshot, **facts)  # type: ignore[arg-type]
    demands = tuple(GangDemand(w.id, (gpus(8),) * w.spec.roles[0].min_count, TopologyRequest()) for w in work if wanted)
    said = dict(waits) if waits is not None else {w.id: PROVISIONING for w in work}
    plan = Plan(Versions(), NOW, (Scale((), demands, "test", changes),), said, dict.fromkeys(said, NOW + 30))
    return [(v.invariant, v.detail) for v in check_scale(snapshot, plan, IDLE_S)]


def test_a_right_growth_and_a_right_shrink_are_not_complained_about() -> None:
    assert wrong(GROWTH, work=(pending("w", 3, gpu=8),)) == []
    assert wrong(SHRINK) == []
    assert wrong() == []


@pytest.mark.parametrize(
    "change, state, what",
    [
        (replace(GROWTH, from_replicas=2), None, "is changed from 2 while it has 1"),
        (replace(GROWTH, to_replicas=9), None, "beyond its maximum of 4"),
        (replace(GROWTH, reason=""), None, "without a reason"),
        (replace(GROWTH, beneficiaries=()), None, "grows for nobody"),
        (replace(GROWTH, deadline_s=NOW), None, "given up at"),
        (GROWTH, GroupState(group(), back_off=BackOff(NOW + 9, "refused", 1)), "9.0 s before its back-off is over"),
        (GROWTH, GroupState(group(), Order(A, 1, 2, NOW, NOW + 9, NOW + 9, (W,), "")), "while another change is open"),
        (SHRINK, GroupState(group(1, least=1)), "below its minimum of 1"),
        (replace(SHRINK, instances=("a-7",)), None, "which it does not have"),
        (replace(SHRINK, nodes=()), None, "which are not the nodes of"),
        (replace(SHRINK, group=GroupName("b")), None, "does not exist"),
    ],
)
def test_15_a_change_out_of_bounds(change: GroupChange, state: GroupState | None, what: str) -> None:
    found = wrong(change, state=state, work=(pending("w", 3, gpu=8),) if change.to_replicas > 1 else ())
    assert any(number == 15 and what in detail for number, detail in found), found


def test_15_two_changes_of_one_group_and_changes_on_what_is_unknown() -> None:
    assert any("twice" in detail for _, detail in wrong(SHRINK, SHRINK))
    assert any(number == 15 and "no answer" in detail for number, detail in wrong(SHRINK, error="no answer"))


def test_15_part_of_a_replica_goes() -> None:
    both = tuple(Instance(f"a-1-h{i}", "a-1", InstancePhase.RUNNING, 0.0, 1.0, NodeId(f"a-1-h{i}")) for i in range(2))
    nodes = tuple(a_node(i.name) for i in both)
    one = replace(SHRINK, instances=("a-1-h0",), nodes=(NodeId("a-1-h0"),))
    found = wrong(one, state=GroupState(group(hosts=2, instances=both)), nodes=nodes)
    assert any("part of a replica" in detail for _, detail in found), found


def test_16_more_than_is_needed_less_than_is_needed_and_for_whom_it_is_not() -> None:
    two = (pending("w", 2, gpu=8),)
    assert wrong(GROWTH, work=two) == [(16, "grows to 3, and one less serves the same gangs")]
    four = (pending("w", 4, gpu=8),)
    assert wrong(GROWTH, work=four)[0] == (16, "grows for ['w'], which find no place even so")
    assert (16, "grows for w, which does not wait for room alone") in wrong(GROWTH, work=two, wanted=False)


@pytest.mark.parametrize(
    "spec, what",
    [
        (a_node(idle_s=30.0), "idle for 30.0 of 60.0 s only"),
        (a_node(idle_s=None), "is in use"),
        (a_node(foreign=gpus(1)), "is used outside our grants"),
    ],
)
def test_17_a_node_that_must_stay_is_to_go(spec: NodeSpec, what: str) -> None:
    assert (17, f"is to go although it {what}") in [
        (number, detail.replace("has been idle", "idle")) for number, detail in wrong(SHRINK, nodes=(spec,))
    ]


def test_17_what_is_held_a_spare_or_needed_is_to_go() -> None:
    busy, held = running("v", ["a-1"], gpu=8)
    assert (17, "is to go although it is held or reserved") in wrong(SHRINK, work=(busy,), allocations=(held,))
    assert (17, "would keep fewer than 1 spares") in wrong(SHRINK, state=GroupState(group(spares=1)))
    nodes = (a_node("a-1"), a_node("a-2"))
    state = GroupState(group(2), Order(A, 2, 3, NOW, NOW + 9, NOW + 9, (W,), "for w"))
    needed = replace(SHRINK, from_replicas=2, to_replicas=1)
    found = wrong(needed, state=state, nodes=nodes, work=(pending("w", 3, gpu=8),))
    assert (17, "is to lose ('a-1',), which ['w'] need") in found


def test_17_what_all_find_a_place_without_may_go() -> None:
    """The first one alone would choose the rack that the second one needs."""
    nodes = (a_node("a-1", topology=rack("r1")), a_node("a-2", topology=rack("r1")), a_node("a-3", topology=rack("r2")))
    last = a_node("a-4", topology=rack("r2"))
    work = (pending("v", 1, gpu=8), pending("w", 2, gpu=8, topology=TopologyRequest(required="rack")))
    goes = replace(SHRINK, from_replicas=4, to_replicas=3, instances=("a-4",), nodes=(NodeId("a-4"),))
    state = GroupState(group(4))
    found = wrong(goes, state=state, nodes=(*nodes, last), work=work)
    assert not [detail for number, detail in found if number == 17]
    two = replace(goes, to_replicas=2, instances=("a-3", "a-4"), nodes=(NodeId("a-3"), NodeId("a-4")))
    found = wrong(two, state=state, nodes=(*nodes, last), work=work)
    assert (17, "is to lose ('a-3', 'a-4'), which ['w'] need") in found


def test_18_what_is_said_of_capacity_is_not_so_or_is_not_said() -> None:
    work = (pending("w", 3, gpu=8),)
    assert (18, "says Provisioning, which is not so") in wrong(work=work)
    quota = {W: (Wait(WaitReason.RESOURCES, "too little"),)}
    (found,) = [d for n, d in wrong(GROWTH, work=work, waits=quota) if "ordered for it" in d]
    assert "Resources" in found
    assert any("says nothing of the groups" in detail for _, detail in wrong(work=work, waits=quota))
    assert any("does not say so" in detail for _, detail in wrong(work=work, waits=quota, error="no answer"))
    unknown = {W: (Wait(WaitReason.CAPACITY_UNKNOWN, "no answer"),)}
    assert (18, "says CapacityUnknown, which is not so") in wrong(work=work, waits=unknown)


def test_20_somebody_could_start_and_does_not() -> None:
    limit = {W: (Wait(WaitReason.CAPACITY_LIMIT, "at its maximum"),)}
    assert wrong(work=(pending("w", 1, gpu=8),), waits=limit) == [(20, "would fit on what is free, and does not start")]


def test_17_a_busy_machine_went_because_we_named_it() -> None:
    gone = (Removal(1.0, "a-1", ("rayorch/main/w/1",), True, "named"), Removal(1.0, "a-2", ("x",), False, "spot"))
    assert [v.subject for v in check_patches((), gone)] == ["a-1"]
    unnamed = (Patch(1.0, A, 3, 2, True), Patch(1.0, A, 3, 2, False))
    assert [v.detail for v in check_patches(unnamed, ())] == [
        "was shrunk without naming who goes: the operator chooses"
    ]


def test_19_something_is_left_at_rest() -> None:
    def left(one: NodeGroup, **state: object) -> list[str]:
        states = (replace(GroupState(one), **state),)  # type: ignore[arg-type]
        return [v.detail for v in check_groups_at_rest((one,), Capacity(Provider.OURS, states))]

    assert left(group(0)) == [] and left(group(2, least=2)) == [] and left(group(1, spares=2)) == []
    assert "still has 3 replicas" in left(group(3, spares=2))
    assert any("for 1 replicas" in detail for detail in left(group(1, least=1, instances=())))
    assert any("under way" in detail for detail in left(group(0), shrinks_to=0))


def test_without_groups_there_is_nothing_to_say() -> None:
    snapshot = Snapshot(Versions(), NOW, (), (), (), ())
    plan = Plan(Versions(), NOW, (Scale((), (), "test", (GROWTH,)),))
    assert check_scale(snapshot, plan, IDLE_S) == ()
