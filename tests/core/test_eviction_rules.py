"""Who is left alone, from whom and for how long; and what a lost GPU-second counts for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.config.profile import load_preset
from rayorch.core.decisions import Reserve, WaitReason
from rayorch.core.planner import plan
from rayorch.core.policy import EvictionKnobs
from rayorch.core.types import Checkpoint, QueueSpec, StopCause, Workload, WorkloadId
from rayorch.policies.default import DEFAULT
from tests.scenes import (
    NOW,
    changes,
    node,
    pending,
    queue,
    reasons,
    running,
    shrunk,
    snapshot,
    started,
    stopped,
    stopping,
)


def saved(workload: Workload, ago_s: float) -> Workload:
    """With a checkpoint that is so old."""
    return replace(workload, ready_s=0.0, checkpoint=Checkpoint(1, "file:///c", NOW - ago_s, workload.attempt))


def tree(**settings: object) -> list[QueueSpec]:
    """Two tenants, each with a queue below it; `settings` of tenant a."""
    return [replace(queue("a"), **settings), queue("a/x"), queue("b"), queue("b/y")]  # type: ignore[arg-type]


# ---------------------------------------------------------------- least run times


def test_the_nearest_queue_that_gives_a_least_run_time_counts() -> None:
    low = running("low", ["n1"], gpu=8, queue="a/x", started_s=NOW - 50)
    high = pending("high", gpu=8, queue="a/x", priority=1)
    for given_s, is_left in ((60.0, True), (40.0, False)):
        made = plan(snapshot([node("n1")], [low, high], tree(min_runtime_s=given_s)), DEFAULT)
        assert (changes(made) == []) is is_left
    nearer = [replace(q, min_runtime_s=10.0) if q.id == "a/x" else q for q in tree(min_runtime_s=60.0)]
    assert stopped(plan(snapshot([node("n1")], [low, high], nearer), DEFAULT)) == {"low": StopCause.PREEMPTED}


def test_everybody_runs_for_the_profiles_exempt_time() -> None:
    work = [running("low", ["n1"], gpu=8, started_s=NOW - 50), pending("high", gpu=8, priority=1)]
    exempt = replace(DEFAULT, eviction=EvictionKnobs(exempt_s=60.0))
    assert changes(plan(snapshot([node("n1")], work), exempt)) == []
    assert stopped(plan(snapshot([node("n1")], work), DEFAULT)) == {"low": StopCause.PREEMPTED}


def test_surplus_seats_go_although_the_minimum_must_not_be_stopped_yet() -> None:
    low = running("low", ["n1"] * 4, (2, 4), gpu=2, min_runtime_s=NOW + 1)
    made = plan(snapshot([node("n1")], [low, pending("high", gpu=4, priority=1)]), DEFAULT)
    assert stopped(made) == {} and shrunk(made) == {"low": (1, 2)}
    more = plan(snapshot([node("n1")], [low, pending("high", gpu=6, priority=1)]), DEFAULT)
    assert changes(more) == []


# ---------------------------------------------------------------- fences


@pytest.mark.parametrize(("victim", "claimant"), [("a/x", "b/y"), ("b/y", "a/x")])
def test_a_fence_keeps_preemption_inside_and_outside_apart(victim: str, claimant: str) -> None:
    work = [running("low", ["n1"], gpu=8, queue=victim), pending("high", gpu=8, queue=claimant, priority=1)]
    assert stopped(plan(snapshot([node("n1")], work, tree()), DEFAULT)) == {"low": StopCause.PREEMPTED}
    assert changes(plan(snapshot([node("n1")], work, tree(fence=True)), DEFAULT)) == []


def test_inside_its_fence_a_tenant_preempts_as_ever() -> None:
    work = [running("low", ["n1"], gpu=8, queue="a/x"), pending("high", gpu=8, queue="a", priority=1)]
    assert stopped(plan(snapshot([node("n1")], work, tree(fence=True)), DEFAULT)) == {"low": StopCause.PREEMPTED}


def test_what_was_borrowed_is_reclaimed_across_a_fence() -> None:
    queues = [replace(queue("a", 4), fence=True), queue("b", 4)]
    work = [
        *(running(f"v{i}", ["n1"], gpu=4, queue="a", started_s=float(i)) for i in range(2)),
        pending("own", gpu=4, queue="b"),
    ]
    assert stopped(plan(snapshot([node("n1")], work, queues), DEFAULT)) == {"v1": StopCause.RECLAIMED}


# ---------------------------------------------------------------- delay


def test_a_claim_with_a_delay_takes_free_room_at_once_and_nobody_elses_before_it_is_over() -> None:
    low = running("low", ["n1"], gpu=8)
    early = pending("high", gpu=8, priority=1, submitted_s=NOW - 20, preemption_delay_s=30.0)
    made = plan(snapshot([node("n1")], [low, early]), DEFAULT)
    assert changes(made) == []
    (delay,) = [wait for wait in made.waits[early.id] if wait.reason is WaitReason.PREEMPTION_DELAY]
    assert (delay.need, delay.unit, delay.blocks) == (10.0, "s", False)
    assert started(plan(snapshot([node("n1"), node("n2")], [low, early]), DEFAULT)) == {"high": ["n2"]}
    late = replace(early, submitted_s=NOW - 30)
    assert stopped(plan(snapshot([node("n1")], [low, late]), DEFAULT)) == {"low": StopCause.PREEMPTED}


def test_the_delay_begins_anew_when_it_was_evicted_itself() -> None:
    high = pending("high", gpu=8, priority=1, submitted_s=0.0, preemption_delay_s=30.0)
    work = [running("low", ["n1"], gpu=8), replace(high, requeued_s=NOW - 20)]
    assert changes(plan(snapshot([node("n1")], work), DEFAULT)) == []


def test_one_with_a_delay_does_not_speak_for_its_like_without() -> None:
    slow = pending("slow", gpu=8, priority=1, submitted_s=NOW - 20, preemption_delay_s=30.0)
    fast = pending("fast", gpu=8, priority=1, submitted_s=NOW - 10)
    made = plan(snapshot([node("n1")], [running("low", ["n1"], gpu=8), slow, fast]), DEFAULT)
    assert stopped(made) == {"low": StopCause.PREEMPTED}
    assert WaitReason.PREEMPTION_DELAY in reasons(made, "slow")


# ---------------------------------------------------------------- priority and cost


def test_lost_work_counts_by_priority() -> None:
    one, held_one = running("more", ["n1"], gpu=4, priority=100)
    other, held_other = running("less", ["n2"], gpu=4)
    work = [(saved(one, 100), held_one), (saved(other, 150), held_other), pending("high", gpu=4, priority=200)]
    nodes = [node("n1", 4), node("n2", 4)]
    assert stopped(plan(snapshot(nodes, work), DEFAULT)) == {"less": StopCause.PREEMPTED}
    flat = replace(DEFAULT, eviction=EvictionKnobs(priority_doubles=0.0))
    assert stopped(plan(snapshot(nodes, work), flat)) == {"more": StopCause.PREEMPTED}


def test_priorities_far_apart_still_compare() -> None:
    work = [
        running("top", ["n1"], gpu=4, priority=900_000),
        running("low", ["n2"], gpu=4, priority=-900_000),
        pending("high", gpu=4, priority=1_000_000),
    ]
    assert stopped(plan(snapshot([node("n1", 4), node("n2", 4)], work), DEFAULT)) == {"low": StopCause.PREEMPTED}


def test_who_had_the_room_that_was_freed_for_it_and_left_is_owed_nothing_more() -> None:
    """x made way for a, and a, once it had run, for b: else a would be back before b and be sent away again."""
    x = replace(pending("x", queue="other"), requeued_s=NOW - 9, yielded_to=WorkloadId("a"))
    a = replace(pending("a", priority=1), requeued_s=NOW - 2, yielded_to=WorkloadId("b"))
    b = pending("b", priority=2)
    queues = [queue("q", 1), queue("other")]
    for preset in ("kai", "default"):
        made = plan(snapshot([node("n1", 1)], [x, a, b], queues), load_preset(preset))
        assert list(started(made)) == ["b"], preset


def test_who_others_have_yielded_to_does_not_yield_in_the_same_turn() -> None:
    """Else somebody would be evicted for nobody: "lent" for "grows", which then goes for "urgent"."""
    work = [
        running("grows", ["n1"], (1, 2), gpu=4, queue="a"),
        running("small", ["n1"], gpu=2, queue="a"),
        running("other", ["n1"], gpu=2, queue="b"),
        running("lent", ["n2"], gpu=8, queue="b"),
        pending("urgent", gpu=6, queue="a", priority=5),
    ]
    shares = [queue("a", 10, 4), queue("b", 6, 10)]
    made = plan(snapshot([node("n1"), node("n2")], work, shares), load_preset("kai"))
    assert stopped(made) == {"lent": StopCause.RECLAIMED}


def test_who_is_only_promised_its_minimum_in_a_pass_is_promised_the_rest_too() -> None:
    """Room is free but for quota that a gang which is stopping still holds: nothing is added to what does not run."""
    leaves = stopping(running("old", ["n1"], gpu=4))
    seen = snapshot([node("n0", 4), node("n1", 4)], [leaves, pending("new", (2, 3))], [queue("q", 5)])
    made = plan(seen, load_preset("kai"))
    assert changes(made) == []
    assert [seat.node for r in made.decisions if isinstance(r, Reserve) for seat in r.members] == ["n0"] * 3


def test_who_would_lose_its_surplus_is_not_moved_for_others() -> None:
    """It would be back with its minimum alone, evict whom it has moved for, and be moved again."""
    grown = running("grown", ["n0", "n1"], (1, 3), gpu=4, priority=2)
    other = running("other", ["n2"], queue="r")
    nodes = [node(f"n{i}", 4) for i in range(3)]
    made = plan(snapshot(nodes, [grown, other, pending("new")], [queue("q", 8), queue("r")]), load_preset("kai"))
    assert changes(made) == []
