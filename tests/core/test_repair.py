"""Gangs that lost a part: their seats are theirs again for a while, and two of them never hold each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rayorch.core.decisions import Reserve, Start, WaitReason
from rayorch.core.events import AttemptEnded
from rayorch.core.lifecycle import Move
from rayorch.core.planner import plan
from rayorch.core.snapshot import Versions
from rayorch.core.types import (
    GroupSpec,
    Member,
    NodeHealth,
    NodeId,
    NodeSpec,
    Role,
    Segment,
    StopCause,
    TopologyRequest,
    Workload,
    WorkloadId,
)
from rayorch.policies.default import DEFAULT
from tests.build import apply, queue, seats, tree
from tests.scenes import NOW, gpus, node, pending, reasons, running, snapshot, spec, started, stopped

HOLD_S = DEFAULT.repair_hold_s


def broken(id: str, on: list[str], waits_s: float = 0.0, gpu: float = 4, ago_s: float = 5.0, **asked: Any) -> Workload:
    """A gang that was requeued `ago_s` ago after it lost a part; it may not start for another `waits_s`."""
    asked.setdefault("roles", (Role("worker", gpus(gpu), len(on), len(on)),))
    role = asked["roles"][0]
    seated = tuple(Member(role.name, i, NodeId(name), role.bundle, 0, i) for i, name in enumerate(on))
    return replace(
        pending(id, **asked),
        attempt=1,
        node_losses=1,
        requeued_s=NOW - ago_s,
        former=seated,
        last_cause=StopCause.NODE_LOST,
        not_before_s=NOW + waits_s if waits_s else 0.0,
    )


def cluster(lost: str = "n1", count: int = 4) -> list[NodeSpec]:
    """n0 and n1 in rack r0, n2 and n3 in r1, …; one of them is lost."""
    nodes = [node(f"n{i}", 4, f"r{i // 2}") for i in range(count)]
    return [replace(n, health=NodeHealth.LOST) if n.id == lost else n for n in nodes]


def test_what_is_left_is_taken_again_each_in_its_place_and_the_new_one_is_near() -> None:
    nodes = [*cluster("n1", 6), node("m1", 4, "r0")]
    made = plan(snapshot(nodes, [broken("g", ["n2", "n1", "n0"])]), DEFAULT)
    assert started(made) == {"g": ["n2", "m1", "n0"]}
    assert started(plan(snapshot(nodes, [broken("g", ["n0", "n1"])]), DEFAULT)) == {"g": ["n0", "m1"]}
    assert started(plan(snapshot(cluster("n1", 6), [broken("g", ["n4", "n1"])]), DEFAULT)) == {"g": ["n4", "n5"]}


def test_the_lost_member_of_a_segment_is_replaced_in_the_domain_of_its_segment() -> None:
    role = Role("worker", gpus(4), 4, 4, segments=(Segment(2, "rack"),))
    gang = broken("g", ["n0", "n1", "n2", "n3"], roles=(role,))
    nodes = [*cluster("n3", 6), node("m1", 4, "r1")]
    assert started(plan(snapshot(nodes, [gang]), DEFAULT)) == {"g": ["n0", "n1", "n2", "m1"]}
    moved = started(plan(snapshot(cluster("n3", 6), [gang]), DEFAULT))["g"]
    assert sorted(moved) == ["n0", "n1", "n4", "n5"], "there is none: the gang moves as far as it must"


def test_a_required_domain_without_a_spare_node_is_left_by_the_whole_gang() -> None:
    made = plan(snapshot(cluster(), [broken("g", ["n0", "n1"], rack="required")]), DEFAULT)
    assert started(made) == {"g": ["n2", "n3"]}


def test_groups_that_lost_nothing_stay_where_they_were() -> None:
    rack = TopologyRequest(required="rack")
    roles = (Role("a", gpus(4), 2, 2, "x"), Role("b", gpus(4), 2, 2, "y"))
    groups = (GroupSpec("x", topology=rack), GroupSpec("y", topology=rack))
    gang = replace(
        broken("g", ["n2", "n3"], roles=roles, groups=groups),
        former=(
            *(Member("a", i, NodeId(f"n{2 + i}"), gpus(4), 0, i) for i in (0, 1)),
            *(Member("b", i, NodeId(f"n{i}"), gpus(4), 0, 2 + i) for i in (0, 1)),
        ),
    )
    assert started(plan(snapshot(cluster("n1", 6), [gang]), DEFAULT)) == {"g": ["n2", "n3", "n4", "n5"]}


def test_new_work_does_not_get_the_seats_of_a_gang_that_may_not_start_yet_for_a_bounded_time() -> None:
    nodes = cluster("n1")
    new = pending("new", 3, gpu=4, priority=9)

    def outcome(ago_s: float) -> tuple[dict[str, list[str]], list[Reserve]]:
        made = plan(snapshot(nodes, [broken("g", ["n0", "n1"], 10.0, ago_s=ago_s), new]), DEFAULT)
        return started(made), [d for d in made.decisions if isinstance(d, Reserve) and d.workload == "g"]

    kept, reserves = outcome(HOLD_S - 1)
    assert (kept, [m.node for r in reserves for m in r.members]) == ({}, ["n0"])
    assert outcome(HOLD_S) == ({"new": ["n0", "n2", "n3"]}, [])


def test_new_work_is_told_who_keeps_the_room() -> None:
    made = plan(snapshot(cluster("n1"), [broken("g", ["n0", "n1"], 10.0), pending("new", 3, gpu=4)]), DEFAULT)
    assert reasons(made, "new") == [WaitReason.RESOURCES, WaitReason.PRIORITY]
    assert made.waits[WorkloadId("new")][1].blockers == ("g",)


def test_seats_that_are_promised_to_another_are_not_kept() -> None:
    """a gets n0, which is free, and n2, from which v is sent away; b lost a part too and had n0 before."""
    nodes = [replace(n, health=NodeHealth.LOST) if n.id in ("n1", "n3") else n for n in cluster("")]
    gangs = [broken("a", ["n1", "n3"], priority=9), broken("b", ["n0", "n1"], priority=5)]
    made = plan(snapshot(nodes, [*gangs, running("v", ["n2"], gpu=4)]), DEFAULT)
    assert stopped(made) == {"v": StopCause.PREEMPTED}
    promised = [d for d in made.decisions if isinstance(d, Reserve) and (d.kept or d.from_release)]
    assert [(d.workload, [m.node for m in d.members]) for d in promised] == [("a", ["n0", "n2"])]


def test_of_two_gangs_that_lost_a_part_one_is_whole_again_with_what_the_other_had() -> None:
    """Three nodes are left of four, each gang needs two: neither keeps from the other what it could be whole with."""
    gangs = [broken("a", ["n0", "n1"]), broken("b", ["n2", "n3"])]
    nodes = [replace(n, health=NodeHealth.LOST) if n.id in ("n1", "n3") else n for n in cluster("")]
    made = plan(snapshot(nodes, gangs), DEFAULT)
    assert started(made) == {"a": ["n0", "n2"]}


def test_each_of_two_gangs_takes_its_own_seats_before_those_of_the_other() -> None:
    gangs = [broken("a", ["n0", "n1"]), broken("b", ["n2", "n3"])]
    nodes = [
        *(replace(n, health=NodeHealth.LOST) if n.id in ("n1", "n3") else n for n in cluster("")),
        *cluster("")[:0],
    ]
    spare = [node("s1", 4, "r9"), node("s2", 4, "r9")]
    assert started(plan(snapshot([*nodes, *spare], gangs), DEFAULT)) == {"a": ["n0", "s1"], "b": ["n2", "s2"]}


def test_new_work_comes_after_a_repair_whatever_its_priority() -> None:
    made = plan(snapshot(cluster("n1", 3), [broken("g", ["n0", "n1"]), pending("new", gpu=4, priority=9)]), DEFAULT)
    assert started(made) == {"g": ["n0", "n2"]}


def test_an_attempt_that_lost_a_node_leaves_its_seats_to_the_next_one_and_a_preempted_one_does_not() -> None:
    for cause, left in ((StopCause.NODE_LOST, 2), (StopCause.DRAINED, 2), (StopCause.PREEMPTED, 0)):
        built = tree(queue("q"), waiting=[spec("w", 2)])
        start = Start(WorkloadId("w"), 1, seats("n1", 2), "fits")
        apply(built, built.commit_start(start, Versions(), 1.0))
        ended = AttemptEnded(WorkloadId("w"), 1, Move.REQUEUED, cause, None, "", 0.0, 9.0)
        apply(built, built.end_attempt(ended))
        after = built.workloads[WorkloadId("w")]
        assert (len(after.former), after.last_cause, after.last_started_s) == (left, cause, 1.0)
        apply(built, built.commit_start(replace(start, attempt=2), Versions(), 10.0))
        assert built.workloads[WorkloadId("w")].former == ()


def test_a_gang_of_whose_seats_nothing_is_left_waits_like_any_other() -> None:
    made = plan(snapshot(cluster("n1"), [broken("g", ["n1", "n1"], 10.0, gpu=2)]), DEFAULT)
    assert [d for d in made.decisions if isinstance(d, Reserve)] == []
    assert reasons(made, "g") == [WaitReason.LEASE]
