"""Moves that lower fragmentation, in the plan: who is moved where, how many, and that nobody loses its place by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayorch.core.attempts import advance
from rayorch.core.decisions import Plan, Reserve, Stop
from rayorch.core.events import AttemptEnded, StopOrdered
from rayorch.core.lifecycle import Move
from rayorch.core.moves import MovesView, Step, fragmentation_of
from rayorch.core.placement import NodeView, PlacementView, TaskClass
from rayorch.core.planner import plan
from rayorch.core.policy import DefragmentKnobs, EvictionKnobs, PlacementKnobs, Profile
from rayorch.core.room import Room
from rayorch.core.types import (
    Allocation,
    Checkpoint,
    NodeId,
    NodeSpec,
    QueueMode,
    State,
    StopCause,
    Workload,
    WorkloadId,
)
from rayorch.policies.default import DEFAULT
from rayorch.policies.moves import greedy_gradient, sampled_search
from tests.core.test_fragmentation import task
from tests.scenes import NOW, changes, node, pending, queue, running, snapshot, started, stopped

OLD = NOW - 4000
NODES = [node("n1", 2, cpu=8), node("n2", 1, cpu=8)]
CLASSES = (task(0, 1, 1), task(0, 0.5, 1))


def saved(id: str, *on: str, gpu: float = 0.5, ago_s: float = 5.0, **asked: object) -> tuple[Workload, Allocation]:
    """A gang that has run for long and has just saved its work."""
    workload, held = running(id, list(on), gpu=gpu, started_s=OLD, **asked)  # type: ignore[arg-type]
    return replace(workload, ready_s=OLD, checkpoint=Checkpoint(1, "file:///c", NOW - ago_s, 1)), held


def profile(**knobs: object) -> Profile:
    """The default with moves."""
    return replace(
        DEFAULT,
        moves=greedy_gradient.moves,
        placement=PlacementKnobs(CLASSES),
        defragment=DefragmentKnobs(**knobs),  # type: ignore[arg-type]
    )


def promised(made: Plan) -> dict[str, list[str]]:
    """Where everybody is promised to be."""
    return {d.workload: [m.node for m in d.members] for d in made.decisions if isinstance(d, Reserve)}


TWO = [saved("a", "n1", preemptible=False), saved("b", "n2")]


def test_two_halves_of_broken_gpus_come_together() -> None:
    made = plan(snapshot(NODES, TWO), profile())
    assert stopped(made) == {"b": StopCause.MOVED} and promised(made) == {"b": ["n1"]}
    (stop,) = [d for d in made.decisions if isinstance(d, Stop)]
    assert stop.order.seats == (("worker", 0, "n1"),) and stop.order.beneficiary == "b"
    # Of a typical GPU the half that is free on n1, and on n2, could not be used, by half of all that is asked for.
    assert stop.order.freed_gpus == pytest.approx(0.5)
    assert stop.order.reason == (
        "moved so that less of what is free is stranded: 0.50 GPUs, worth 1800 GPU-seconds; 18 are lost"
    )


def test_by_default_nobody_is_moved() -> None:
    assert changes(plan(snapshot(NODES, TWO), replace(profile(), moves=DEFAULT.moves))) == []
    assert changes(plan(snapshot(NODES, TWO), replace(profile(), placement=PlacementKnobs()))) == []  # nothing typical


@pytest.mark.parametrize(
    ("why", "second", "knobs"),
    [
        ("its work was saved too long ago", saved("b", "n2", ago_s=61), {}),
        ("it has not run for long", saved("b", "n2"), {"cooldown_s": 4001.0}),
        ("it may not be stopped", saved("b", "n2", preemptible=False), {}),
        ("it must run on for now", saved("b", "n2", min_runtime_s=5000.0), {}),
        ("it may not be requeued", saved("b", "n2", max_requeues=0), {}),
        ("it brings too little", saved("b", "n2"), {"least_gain": 0.6}),
        ("it is not worth what is lost", saved("b", "n2"), {"worth_s": 35.0}),
    ],
)
def test_who_is_not_moved(why: str, second: tuple[Workload, Allocation], knobs: dict[str, object]) -> None:
    assert changes(plan(snapshot(NODES, [TWO[0], second]), profile(**knobs))) == [], why


def test_nobody_is_moved_whom_its_queue_would_not_let_start_again() -> None:
    open_queue = queue("q", 4, borrow=0)
    assert stopped(plan(snapshot(NODES, TWO, [open_queue]), profile()))
    held = replace(open_queue, mode=QueueMode.HOLD)
    assert changes(plan(snapshot(NODES, TWO, [held]), profile())) == []
    assert changes(plan(snapshot(NODES, TWO, [queue("q", 0.5, borrow=0)]), profile())) == []  # lowered since


def test_one_that_was_moved_rests_and_counts() -> None:
    b, held = TWO[1]
    once = replace(b, last_cause=StopCause.MOVED, requeued_s=NOW - 1500)
    work = [TWO[0], (once, held)]
    assert changes(plan(snapshot(NODES, work), profile())) == []  # it rests
    rested = profile(cooldown_s=1000.0)
    assert changes(plan(snapshot(NODES, work), rested)) == []  # one of two is the most in an hour
    assert stopped(plan(snapshot(NODES, work), replace(rested, defragment=replace(rested.defragment, window_s=1400.0))))
    just = (replace(b, last_cause=StopCause.MOVED, requeued_s=NOW - 30), held)
    many = profile(cooldown_s=0.0, most=1.0)
    assert changes(plan(snapshot(NODES, [work[0], just]), many)) == []  # a minute between two turns


def test_nobody_is_moved_while_somebody_waits_for_room() -> None:
    nodes = [*NODES, node("n3", 4, cpu=8)]
    work = [*TWO, saved("c", "n3", gpu=1, preemptible=False), pending("w", gpu=4)]
    alone = EvictionKnobs(consolidate=False)
    assert changes(plan(snapshot(nodes, work), replace(profile(), eviction=alone))) == []
    busy = replace(profile(while_waiting=True), eviction=alone)
    assert promised(plan(snapshot(nodes, work), busy))["b"] == ["n1"]


def test_the_new_seat_is_kept_while_it_leaves_and_taken_when_it_is_back() -> None:
    (stop,) = [d for d in plan(snapshot(NODES, TWO), profile()).decisions if isinstance(d, Stop)]
    b, held = TWO[1]
    leaving = advance(b, StopOrdered(WorkloadId("b"), 1, stop.order, NOW))
    assert leaving.state is State.STOPPING
    greedy = pending("x", gpu=0.6, submitted_s=-5.0)  # n2 is its own only when b has left
    taken = saved("c", "n1", gpu=1, preemptible=False)
    second = plan(snapshot(NODES, [TWO[0], taken, (leaving, held), greedy]), profile())
    assert promised(second)["b"] == ["n1"] and started(second) == {}
    ended = AttemptEnded(WorkloadId("b"), 1, Move.REQUEUED, StopCause.MOVED, 1, stop.order.reason, NOW, NOW)
    back = advance(leaving, ended)
    assert [(m.role, m.index, m.node) for m in back.former] == [("worker", 0, "n1")]
    third = plan(snapshot(NODES, [TWO[0], taken, back, greedy]), profile())
    assert started(third) == {"b": ["n1"], "x": ["n2"]}
    lost = plan(snapshot(NODES[1:], [back, greedy]), profile())  # n1 is gone: it takes what there is
    assert started(lost) == {"b": ["n2"]}


def test_gangs_are_not_pulled_apart_and_stay_where_they_must() -> None:
    racks = [
        node("n1", 2, rack="r1", cpu=8), node("n2", 1, rack="r1", cpu=8), node("n3", 1, rack="r2", cpu=8),
    ]  # fmt: skip
    together = saved("a", "n2", "n2", gpu=0.25, rack="required")
    single = saved("b", "n3", preemptible=False)
    assert changes(plan(snapshot(racks, [together, single]), profile())) == []  # half of it on n3 would split it
    broken = saved("c", "n1", preemptible=False)
    made = plan(snapshot(racks, [saved("a", "n2", rack="required"), broken, single]), profile())
    assert promised(made) == {"a": ["n1"]}


def test_work_keeps_its_model_unless_the_profile_says_otherwise() -> None:
    nodes = [node("n1", 2, cpu=8, model="A"), node("n2", 1, cpu=8, model="B")]
    work = [saved("a", "n1", preemptible=False), saved("b", "n2")]
    assert changes(plan(snapshot(nodes, work), profile())) == []
    assert promised(plan(snapshot(nodes, work), profile(across_models=True))) == {"b": ["n1"]}
    named = [work[0], saved("b", "n2", accelerators=("B", "A"))]
    assert changes(plan(snapshot(nodes, named), profile(across_models=True))) == []


def test_what_a_policy_says_against_the_rules_is_left_out() -> None:
    def wild(view: MovesView) -> tuple[Step, ...]:
        b = WorkloadId("b")
        return (
            Step(WorkloadId("nobody"), 0, NodeId("n1"), 1.0, 1.0),
            Step(b, 0, NodeId("n2"), 1.0, 1.0),  # it is there already
            Step(WorkloadId("a"), 0, NodeId("n3"), 1.0, 1.0),  # there is no such node
        )

    assert changes(plan(snapshot(NODES, TWO), replace(profile(per_turn=9, most=1.0), moves=wild))) == []


@pytest.mark.parametrize("seat", [1, -1])
def test_a_step_for_a_seat_that_a_gang_does_not_have_is_left_out(seat: int) -> None:
    step = Step(WorkloadId("b"), seat, NodeId("n1"), 1.0, 1.0)
    assert changes(plan(snapshot(NODES, TWO), replace(profile(), moves=lambda view: (step,)))) == []


# ---------------------------------------------------------------- whatever the cluster looks like

Shares = Sequence[tuple[int, float]]


def world(shares: Shares) -> tuple[list[NodeSpec], list[tuple[Workload, Allocation]]]:
    """Four nodes, and as much of these shares as finds room on the node that each names."""
    nodes = [node(f"n{number}", 2, cpu=8) for number in range(4)]
    room = Room.of(nodes, (), NOW)
    work: list[tuple[Workload, Allocation]] = []
    for number, (on, gpu) in enumerate(shares):
        made = saved(f"w{number}", f"n{on}", gpu=gpu, cpu=1)
        bundle = made[1].members[0].bundle
        if room.fits(NodeId(f"n{on}"), bundle):
            devices = room.take(NodeId(f"n{on}"), bundle)
            seats = tuple(replace(m, devices=devices) for m in made[1].members)
            work.append((made[0], replace(made[1], members=seats)))
    return nodes, work


def stranded(nodes: Sequence[NodeSpec], held: Sequence[Allocation], classes: tuple[TaskClass, ...]) -> float:
    """The fragmentation of it all, in GPUs."""
    room = Room.of(nodes, held, NOW)
    views = {spec.id: NodeView(spec, room.slot(spec.id), spec.model) for spec in nodes}
    return fragmentation_of(views, PlacementView(classes))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.25, 0.3, 0.5, 0.7, 1.0])), max_size=14),
    st.sampled_from([greedy_gradient.moves, sampled_search.moves]),
    st.integers(1, 4),
)
def test_moves_keep_to_their_bounds_double_nothing_and_strand_less(shares: Shares, policy: object, most: int) -> None:
    nodes, work = world(shares)
    classes = (task(1, 1, 1, 2), task(1, 0.5, 1, 2), task(2, 1, 2, 1))
    knobs = DefragmentKnobs(per_turn=most, most=0.5, least_gain=0.0)
    ours = replace(DEFAULT, moves=policy, placement=PlacementKnobs(classes), defragment=knobs)  # type: ignore[arg-type]
    made = plan(snapshot(nodes, work), ours)
    moved = stopped(made)
    assert len(moved) <= min(most, max(1, len(work) // 2)) and set(moved.values()) <= {StopCause.MOVED}
    seats = {d.workload: d.members for d in made.decisions if isinstance(d, Reserve)}
    assert seats.keys() == moved.keys()
    before = [allocation for _, allocation in work]
    both = Room.of(nodes, before, NOW)  # beside all who are there still
    for members in seats.values():
        for member in members:
            assert both.fits(member.node, member.bundle)
            both.take(member.node, member.bundle)
    if moved:
        after = [replace(a, members=seats.get(a.workload, a.members)) for a in before]
        assert stranded(nodes, after, classes) < stranded(nodes, before, classes)
    assert plan(snapshot(nodes, work), ours).decisions == made.decisions


def test_fragmentation_is_told_in_gpus() -> None:
    assert stranded(NODES, [a for _, a in TWO], CLASSES) == pytest.approx(0.5)
