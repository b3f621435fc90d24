"""Moves so that a gang fits, or a node comes free: who is moved, when it pays, and that nobody loses its place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.core.decisions import Plan, Reserve, Stop
from rayorch.core.eviction import Action
from rayorch.core.planner import plan
from rayorch.core.policy import EvictionKnobs, Profile
from rayorch.core.types import Allocation, Checkpoint, QueueMode, State, StopCause, Workload
from rayorch.policies.default import DEFAULT
from tests.scenes import NOW, changes, node, pending, queue, running, snapshot, started, stopped

OLD = NOW - 700


def saved(id: str, *on: str, gpu: float = 2, ago_s: float = 5.0, **asked: object) -> tuple[Workload, Allocation]:
    """A gang that has run long enough and has just saved its work."""
    workload, held = running(id, list(on), gpu=gpu, started_s=OLD, **asked)  # type: ignore[arg-type]
    return replace(workload, ready_s=OLD, checkpoint=Checkpoint(1, "file:///c", NOW - ago_s, 1)), held


def seats(made: Plan) -> dict[str, list[str]]:
    """Where everybody is promised to be."""
    return {
        d.workload: [m.node for m in d.members] for d in made.decisions if isinstance(d, Reserve) and d.from_release
    }


def profile(**knobs: object) -> Profile:
    """The default with other knobs of eviction."""
    return replace(DEFAULT, eviction=EvictionKnobs(**knobs))  # type: ignore[arg-type]


NODES = [node("n1", 4), node("n2", 4)]


def test_one_moves_so_that_a_gang_fits_and_both_have_their_seats() -> None:
    work = [saved("a", "n1"), saved("b", "n2", ago_s=30), pending("w", gpu=4)]
    made = plan(snapshot(NODES, work), DEFAULT)
    assert stopped(made) == {"a": StopCause.MOVED}
    assert seats(made) == {"w": ["n1"], "a": ["n2"]}
    (stop,) = [d for d in made.decisions if isinstance(d, Stop)]
    assert stop.order.beneficiary == "w" and "worth 2400 GPU-seconds, 70 are lost" in stop.order.reason


@pytest.mark.parametrize(
    ("why", "other"),
    [
        ("its checkpoint is too old", saved("b", "n2", ago_s=61)),
        ("it may not be preempted", saved("b", "n2", preemptible=False)),
        ("it must run on for now", saved("b", "n2", min_runtime_s=NOW)),
        ("it may not be requeued", saved("b", "n2", max_requeues=0)),
        ("it holds surplus seats", running("b", ["n2", "n2"], (1, 2), gpu=1, started_s=OLD)),
    ],
)
def test_who_is_not_moved(why: str, other: tuple[Workload, Allocation]) -> None:
    first = saved("a", "n1", preemptible=False)
    assert changes(plan(snapshot(NODES, [first, other, pending("w", gpu=4)]), DEFAULT)) == [], why


def test_nobody_is_moved_whom_its_queue_would_not_let_start_again() -> None:
    first = saved("a", "n1", preemptible=False)
    work = [first, saved("b", "n2"), pending("w", gpu=4, queue="r")]
    queues = [queue("q"), queue("r")]
    shut = [replace(queues[0], mode=QueueMode.HOLD), queues[1]]
    for knobs in (DEFAULT, profile(passes=(Action.ALLOCATE, Action.CONSOLIDATE))):
        assert stopped(plan(snapshot(NODES, work, queues), knobs)) == {"b": StopCause.MOVED}
        assert stopped(plan(snapshot(NODES, work, shut), knobs)) == {}


def test_under_passes_nobody_is_moved_who_would_end_by_it() -> None:
    first, claim = saved("a", "n1", preemptible=False), pending("w", gpu=4)
    knobs = profile(passes=(Action.ALLOCATE, Action.CONSOLIDATE))
    assert stopped(plan(snapshot(NODES, [first, saved("b", "n2"), claim]), knobs)) == {"b": StopCause.MOVED}
    assert stopped(plan(snapshot(NODES, [first, saved("b", "n2", max_requeues=0), claim]), knobs)) == {}


def test_nothing_is_moved_again_before_it_has_rested() -> None:
    work = [saved("a", "n1"), saved("b", "n2"), pending("w", gpu=4)]
    assert changes(plan(snapshot(NODES, work), profile(move_cooldown_s=701.0))) == []


def test_a_move_must_be_worth_what_it_costs() -> None:
    work = [saved("a", "n1"), saved("b", "n2"), pending("w", gpu=4)]
    assert stopped(plan(snapshot(NODES, work), profile(start_worth_s=17.0))) == {}
    assert len(stopped(plan(snapshot(NODES, work), profile(start_worth_s=18.0)))) == 1


def test_with_too_little_free_in_all_nobody_is_moved() -> None:
    work = [saved("a", "n1"), saved("b", "n2", gpu=3), pending("w", gpu=4)]
    assert changes(plan(snapshot(NODES, work), DEFAULT)) == []


def test_moving_goes_before_evicting() -> None:
    work = [saved("a", "n1"), saved("b", "n2"), pending("w", gpu=4, priority=5)]
    assert set(stopped(plan(snapshot(NODES, work), DEFAULT)).values()) == {StopCause.MOVED}
    switched_off = plan(snapshot(NODES, work), profile(consolidate=False))
    assert set(stopped(switched_off).values()) == {StopCause.PREEMPTED}


def test_who_is_being_moved_keeps_its_new_seats_until_it_has_them() -> None:
    work = [saved("a", "n1"), saved("b", "n2", ago_s=30), pending("w", gpu=4)]
    first = plan(snapshot(NODES, work), DEFAULT)
    (stop,) = [d for d in first.decisions if isinstance(d, Stop)]
    mover, held = work[0]  # type: ignore[misc]
    leaving = replace(mover, state=State.STOPPING, stop=stop.order)
    greedy = pending("x", gpu=2, submitted_s=-5.0)
    second = plan(snapshot(NODES, [(leaving, held), *work[1:], greedy]), DEFAULT)
    assert seats(second) == {"w": ["n1"], "a": ["n2"]}
    assert started(second) == {} and stopped(second) == {}
    requeued = replace(mover, state=State.PENDING, started_s=None, requeued_s=NOW, last_cause=StopCause.MOVED)
    back = replace(requeued, yielded_to=stop.order.beneficiary)
    third = plan(snapshot(NODES, [back, *work[1:], greedy]), DEFAULT)
    assert started(third) == {"a": ["n2"], "w": ["n1"]}


def test_under_passes_who_was_moved_does_not_take_the_room_that_it_left() -> None:
    """Where it lay it lies best: the node has only one GPU. Whoever has the first id."""
    nodes = [node("n1", 1, model="A"), node("n2", 4, model="B"), node("n3", 4, model="B")]
    knobs = profile(passes=tuple(Action))
    for mover, taker in (("a", "w"), ("w", "a")):
        claim = pending(taker, accelerators=("A",), priority=2)
        first = plan(snapshot(nodes, [running(mover, ["n1"], gpu=0.6), claim]), knobs)
        assert stopped(first) == {mover: StopCause.MOVED} and seats(first)[taker] == ["n1"]
        left = pending(mover, gpu=0.6)
        back = replace(left, attempt=1, requeued_s=NOW, last_cause=StopCause.MOVED, yielded_to=claim.id)
        second = plan(snapshot(nodes, [back, claim]), knobs)
        assert started(second) == {taker: ["n1"], mover: seats(first)[mover]} and stopped(second) == {}


def test_under_passes_room_is_not_made_again_at_once_for_one_who_did_not_get_it() -> None:
    """The node on which others had made room is gone meanwhile."""
    nodes, knobs = [node("n1", 1, model="A"), node("n2", 4, model="B")], profile(passes=tuple(Action))
    claim = pending("w", accelerators=("A",), priority=2)
    other = running("b", ["n2"], gpu=0.6)[0]
    moved = replace(other, requeued_s=NOW - 5, last_cause=StopCause.MOVED, yielded_to=claim.id)
    work = [running("a", ["n1"], gpu=0.6, started_s=NOW - 100), (moved, running("b", ["n2"], gpu=0.6)[1]), claim]
    made = plan(snapshot(nodes, work), knobs)
    assert changes(made) == []
    assert any("made for it within" in wait.detail for wait in made.waits[claim.id])
    later = [work[0], (replace(moved, requeued_s=NOW - 61), work[1][1]), claim]
    assert stopped(plan(snapshot(nodes, later), knobs))["a"] is StopCause.MOVED


def test_a_little_used_node_is_emptied_when_a_whole_one_is_worth_it() -> None:
    work = [saved("a", "n1", gpu=1), saved("b", "n2", gpu=2)]
    assert changes(plan(snapshot(NODES, work), DEFAULT)) == []
    made = plan(snapshot(NODES, work), profile(whole_node_worth_s=10.0))
    assert stopped(made) == {"a": StopCause.MOVED} and seats(made) == {"a": ["n2"]}
    assert changes(plan(snapshot(NODES, work), profile(whole_node_worth_s=8.0))) == []


def test_nodes_are_not_emptied_while_somebody_waits_or_into_whole_ones() -> None:
    work = [saved("a", "n1", gpu=1), saved("b", "n2", gpu=2)]
    knobs = profile(whole_node_worth_s=100.0, consolidate=False)
    assert changes(plan(snapshot(NODES, [*work, pending("w", gpu=4)]), knobs)) == []
    apart = [saved("a", "n1", gpu=1), saved("b", "n2", gpu=4)]
    assert changes(plan(snapshot([*NODES, node("n3", 4)], apart), knobs)) == []


def test_a_lazy_profile_evicts_nobody_for_quota_alone() -> None:
    work = [running("low", ["n1"], gpu=4), pending("high", gpu=4, priority=1)]
    capped = [queue("q", 4, borrow=0)]
    assert stopped(plan(snapshot(NODES, work, capped), DEFAULT)) == {"low": StopCause.PREEMPTED}
    assert changes(plan(snapshot(NODES, work, capped), profile(lazy=True))) == []
    assert stopped(plan(snapshot(NODES[:1], work, capped), profile(lazy=True))) == {"low": StopCause.PREEMPTED}
