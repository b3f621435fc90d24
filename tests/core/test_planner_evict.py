"""Who makes room for whom: reclaim, preempt, and what must not happen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rayorch.core.decisions import Reserve, Resize, Stop, WaitReason
from rayorch.core.planner import plan
from rayorch.core.types import Allocation, Checkpoint, Kind, NodeHealth, StopCause, StopOrder, Workload, WorkloadId
from rayorch.policies.default import DEFAULT
from tests.scenes import (
    NOW,
    changes,
    grown,
    held_for,
    node,
    pending,
    queue,
    reasons,
    releasing,
    reserved,
    running,
    shrunk,
    snapshot,
    started,
    stopped,
    stopping,
    wanted,
)


def placed(held: tuple[Workload, Allocation], devices: tuple[int, ...]) -> tuple[Workload, Allocation]:
    """With known devices."""
    workload, allocation = held
    return workload, replace(allocation, members=tuple(replace(m, devices=devices) for m in allocation.members))


def saved(workload: Workload, ago_s: float) -> Workload:
    """With a checkpoint that is so old."""
    return replace(workload, checkpoint=Checkpoint(1, "file:///c", NOW - ago_s, workload.attempt))


# ---------------------------------------------------------------- preempt


def test_a_lower_priority_makes_room_and_the_room_is_the_beneficiarys() -> None:
    work = [running("low", ["n1"], gpu=8, grace_s=20.0), pending("high", gpu=8, priority=1)]
    made = plan(snapshot([node("n1")], work), DEFAULT)
    order = StopOrder(
        StopCause.PREEMPTED, "preempted for high (priority 1, queue q)", NOW, NOW + 20, WorkloadId("high")
    )
    stop = made.decisions[0]
    assert isinstance(stop, Stop)
    assert (stop.workload, stop.attempt, stop.order) == ("low", 1, order)
    assert stop.cost_gpu_s == (1000 + 30) * 8
    assert next(d for d in made.decisions if isinstance(d, Reserve)).from_release
    assert reserved(made) == {"high": ["n1"]}
    assert reasons(made, "high") == [WaitReason.RELEASING]
    assert made.estimates[WorkloadId("high")] == NOW + 20


def test_what_victims_give_back_does_not_depend_on_who_leaves_first() -> None:
    """Where `first`'s half lies is not known; it can only be the device that `second` has the other half of."""
    kept = [placed(running(f"k{i}", ["n1"], priority=5), (i,)) for i in (0, 2)]
    victims = [running("first", ["n1"], gpu=0.5), placed(running("second", ["n1"], gpu=0.5, started_s=500.0), (1,))]
    made = plan(snapshot([node("n1", 3)], [*kept, *victims, pending("w", priority=1)]), DEFAULT)
    assert sorted(stopped(made)) == ["first", "second"]
    assert reserved(made) == {"w": ["n1"]}


def test_equal_priority_is_never_preempted() -> None:
    work = [running("low", ["n1"], gpu=8), pending("high", gpu=8)]
    assert changes(plan(snapshot([node("n1")], work), DEFAULT)) == []


def test_what_is_not_preemptible_or_below_its_minimum_runtime_is_not_touched() -> None:
    for low in (running("low", ["n1"], gpu=8, preemptible=False), running("low", ["n1"], gpu=8, min_runtime_s=NOW + 1)):
        work = [low, pending("high", gpu=8, priority=1)]
        assert changes(plan(snapshot([node("n1")], work), DEFAULT)) == []


def test_a_profile_without_preemption_evicts_nobody() -> None:
    work = [running("low", ["n1"], gpu=8), pending("high", gpu=8, priority=1)]
    assert changes(plan(snapshot([node("n1")], work), replace(DEFAULT, preemption=False))) == []


def test_nobody_is_stopped_when_the_beneficiary_would_not_fit_afterwards() -> None:
    work = [
        running("low", ["n1"], gpu=4),
        running("big", ["n1"], gpu=4, priority=2),
        pending("high", gpu=8, priority=1),
    ]
    assert changes(plan(snapshot([node("n1")], work), DEFAULT)) == []


def test_the_cheapest_by_lost_work_since_the_last_checkpoint_goes() -> None:
    one, held_one = running("a", ["n1"], gpu=4)
    other, held_other = running("b", ["n1"], gpu=4)
    work = [(saved(one, 600), held_one), (saved(other, 5), held_other), pending("high", gpu=4, priority=1)]
    assert stopped(plan(snapshot([node("n1")], work), DEFAULT)) == {"b": StopCause.PREEMPTED}


def test_seats_are_freed_where_least_work_is_lost() -> None:
    cheap, held_cheap = running("z", ["n2"], gpu=8)
    work = [running("a", ["n1"], gpu=8), (saved(cheap, 1), held_cheap), pending("high", gpu=8, priority=1)]
    assert reserved(plan(snapshot([node("n1"), node("n2")], work), DEFAULT)) == {"high": ["n2"]}


def test_no_more_victims_than_needed() -> None:
    work = [running(f"v{i}", ["n1"], gpu=2) for i in range(4)]
    made = plan(snapshot([node("n1")], [*work, pending("high", gpu=4, priority=1)]), DEFAULT)
    assert len(stopped(made)) == 2


def test_one_small_loss_is_preferred_to_several_larger_ones() -> None:
    one, held_one = running("one", ["n2", "n3"], gpu=4)
    work = [
        *(running(f"v{i}", ["n1"], gpu=1) for i in range(4)),
        *(running(f"k{n}", [n], gpu=4, priority=1) for n in ("n2", "n3")),
        running("k1", ["n1"], gpu=4, priority=1),
        (saved(one, 1), held_one),
        pending("high", gpu=4, priority=1),
    ]
    assert stopped(plan(snapshot([node("n1"), node("n2"), node("n3")], work), DEFAULT)) == {"one": StopCause.PREEMPTED}


def test_free_room_counts_before_victims_do() -> None:
    work = [running("v", ["n1"], gpu=6), running("w", ["n2"], gpu=8), pending("high", gpu=8, priority=1)]
    made = plan(snapshot([node("n1"), node("n2")], work), DEFAULT)
    assert stopped(made) == {"v": StopCause.PREEMPTED}


def test_surplus_members_go_before_anyone_is_stopped() -> None:
    work = [
        running("elastic", ["n1"] * 4, (2, 4)),
        running("v", ["n1"] * 4),
        pending("high", 2, priority=1),
    ]
    made = plan(snapshot([node("n1")], work), DEFAULT)
    assert stopped(made) == {}
    assert shrunk(made) == {"elastic": (1, 2)}
    resize = next(d for d in made.decisions if isinstance(d, Resize))
    assert (resize.release_by_s, resize.beneficiary, resize.add) == (NOW + 30, "high", ())
    assert reserved(made) == {"high": ["n1"] * 2}


def test_only_as_many_surplus_members_go_as_are_needed() -> None:
    work = [running("elastic", ["n1"] * 8, (2, 8)), pending("high", 1, priority=1)]
    assert shrunk(plan(snapshot([node("n1")], work), DEFAULT)) == {"elastic": (6,)}


def test_members_of_a_gang_that_is_not_resizable_go_together() -> None:
    work = [running("fixed", ["n1"] * 8), pending("high", 1, priority=1)]
    made = plan(snapshot([node("n1")], work), DEFAULT)
    assert (shrunk(made), stopped(made)) == ({}, {"fixed": StopCause.PREEMPTED})


def test_a_stop_under_way_for_it_is_not_followed_by_another() -> None:
    work = [
        stopping(running("v", ["n1"], gpu=8), "high"),
        running("w", ["n2"], gpu=8),
        pending("high", gpu=8, priority=1),
    ]
    made = plan(snapshot([node("n1"), node("n2")], work), DEFAULT)
    assert stopped(made) == {}
    assert reserved(made) == {"high": ["n1"]}


def test_seats_that_are_leaving_are_not_taken_again() -> None:
    work = [releasing(running("e", ["n1"] * 8, (4, 8)), 3, 4, beneficiary="high"), pending("high", 3, priority=1)]
    assert shrunk(plan(snapshot([node("n1")], work), DEFAULT)) == {"e": (2,)}


def test_within_its_quota_a_queue_preempts_its_own_lower_priorities() -> None:
    queues = [queue("q", 8, borrow=0), queue("r", 8, borrow=0)]
    work = [
        running("own", ["n1"], gpu=8),
        running("other", ["n2"], gpu=8, queue="r"),
        pending("high", gpu=8, priority=1),
    ]
    made = plan(snapshot([node("n1"), node("n2")], work, queues), DEFAULT)
    assert stopped(made) == {"own": StopCause.PREEMPTED}


def test_a_borrower_does_not_preempt_another_queues_deserved_share() -> None:
    queues = [queue("q", 8), queue("r", 8)]
    work = [
        running("mine", ["n1"], gpu=8, priority=5),
        running("theirs", ["n2"], gpu=8, queue="r"),
        pending("more", gpu=8, priority=5, submitted_s=1.0),
    ]
    assert changes(plan(snapshot([node("n1"), node("n2")], work, queues), DEFAULT)) == []


def test_when_the_budget_of_what_ifs_ends_nobody_is_stopped() -> None:
    work = [running(f"v{i}", ["n1"], gpu=2) for i in range(4)]
    made = plan(snapshot([node("n1")], [*work, pending("high", gpu=4, priority=1)], what_if_budget=2), DEFAULT)
    assert stopped(made) == {}


def test_a_required_rack_decides_who_is_a_victim() -> None:
    nodes = [node("n1", 4, "r1"), node("n2", 4, "r1"), node("n3", 4, "r2"), node("n4", 4, "r2")]
    cheap, held_cheap = running("c", ["n1"], gpu=4)
    work = [
        (saved(cheap, 1), held_cheap),
        running("keep", ["n2"], gpu=4, priority=9),
        running("v3", ["n3"], gpu=4),
        running("v4", ["n4"], gpu=4),
        pending("high", 2, gpu=4, priority=1, rack="required"),
    ]
    assert sorted(stopped(plan(snapshot(nodes, work), DEFAULT))) == ["v3", "v4"]


# ---------------------------------------------------------------- reclaim


def test_a_queue_takes_back_its_share_from_one_above_its_own_whatever_the_priority() -> None:
    queues = [queue("q", 4), queue("r", 4)]
    work = [running("a", ["n1"], gpu=4), running("b", ["n1"], gpu=4, priority=9), pending("mine", gpu=4, queue="r")]
    made = plan(snapshot([node("n1")], work, queues), DEFAULT)
    assert stopped(made) == {"a": StopCause.RECLAIMED}
    assert reserved(made) == {"mine": ["n1"]}


def test_only_what_is_above_the_share_is_taken_back() -> None:
    queues = [queue("q", 4), queue("r", 4)]
    work = [
        running("a", ["n1"], gpu=2),
        running("b", ["n1"], gpu=2),
        running("c", ["n1"], gpu=2),
        running("d", ["n1"], gpu=2, queue="r"),
        pending("mine", gpu=4, queue="r"),
    ]
    assert changes(plan(snapshot([node("n1")], work, queues), DEFAULT)) == []


def test_a_queue_above_its_share_reclaims_nothing() -> None:
    queues = [queue("q", 4), queue("r", 4)]
    work = [running("a", ["n1"], gpu=8), pending("more", gpu=5, queue="r")]
    assert changes(plan(snapshot([node("n1")], work, queues), DEFAULT)) == []


def test_reclaim_is_decided_where_the_queues_part() -> None:
    """p/a is over its own share, but p is not over p's: what lies in p is no matter of r."""
    queues = [queue("p", 8), queue("p/a", 2), queue("p/b", 6), queue("r", 4), queue("s", 4)]
    work = [
        running("in-p", ["n1"], gpu=6, queue="p/a"),
        running("in-s", ["n1"], gpu=6, queue="s"),
        pending("mine", gpu=2, queue="r"),
    ]
    assert stopped(plan(snapshot([node("n1", 12)], work, queues), DEFAULT)) == {"in-s": StopCause.RECLAIMED}


def test_what_was_reclaimed_does_not_come_back_before_the_beneficiary() -> None:
    """The victim has the higher priority and waits again: it would borrow, so the owner goes first."""
    queues = [queue("q", 4), queue("r", 4)]
    work = [
        running("kept", ["n1"], gpu=4, priority=9),
        pending("victim", gpu=4, priority=9, submitted_s=0.0),
        pending("owner", gpu=4, queue="r", submitted_s=5.0),
    ]
    made = plan(snapshot([node("n1")], work, queues), DEFAULT)
    assert started(made) == {"owner": ["n1"]}
    assert stopped(made) == {}


# ---------------------------------------------------------------- serving


def app(on: list[str], demand: tuple[int, int] | None, **asked: Any) -> tuple[Workload, Allocation]:
    return running("app", on, (1, 4), kind=Kind.SERVE, demand=demand, **asked)


def test_an_application_grows_with_its_demand_at_once() -> None:
    made = plan(snapshot([node("n1", 4)], [app(["n1"], (2, 1))]), DEFAULT)
    assert grown(made) == {"app": ["n1", "n1"]}
    resize = next(d for d in made.decisions if isinstance(d, Resize))
    assert [(m.surplus, m.index) for m in resize.add] == [(2, 1), (3, 2)]


def test_growth_for_demand_shrinks_training_of_lower_priority() -> None:
    work = [app(["n1"], (2, 0), priority=5), running("train", ["n1"] * 3, (1, 3), submitted_s=0.0)]
    made = plan(snapshot([node("n1", 4)], work), DEFAULT)
    assert shrunk(made) == {"train": (2,)}
    assert reserved(made) == {"app": ["n1"]}
    assert grown(made) == {}
    assert made.waits == {}


def test_growth_for_demand_stops_training_that_can_not_shrink() -> None:
    work = [app(["n1"], (2, 0), priority=5), running("train", ["n1"] * 3)]
    assert stopped(plan(snapshot([node("n1", 4)], work), DEFAULT)) == {"train": StopCause.PREEMPTED}


def test_growth_is_limited_by_quota() -> None:
    made = plan(snapshot([node("n1", 4)], [app(["n1"], (9, 9))], [queue("q", 2, borrow=0)]), DEFAULT)
    assert grown(made) == {"app": ["n1"]}


def test_replicas_are_given_back_only_after_demand_has_been_low_for_a_while() -> None:
    workload, allocation = running("app", ["n1"] * 3, (1, 4), kind=Kind.SERVE, demand=(1, 0))
    for low_since_s, expected in ((None, {}), (NOW - 14, {}), (NOW - 15, {"app": (2, 3)})):
        low = replace(workload, demand_low_since_s=low_since_s)
        assert shrunk(plan(snapshot([node("n1")], [(low, allocation)]), DEFAULT)) == expected


def test_a_claim_that_finds_no_victims_asks_for_nodes() -> None:
    made = plan(snapshot([node("n1", 1)], [app(["n1"], (2, 0))]), DEFAULT)
    assert wanted(made) == ["app"]
    assert held_for(made) == {}


def test_training_grows_back_into_what_an_application_has_left() -> None:
    work = [app(["n1"], (1, 0), priority=5), running("train", ["n1"], (1, 3))]
    assert grown(plan(snapshot([node("n1", 4)], work), DEFAULT)) == {"train": ["n1", "n1"]}


def test_a_queue_keeps_its_most_important_work_when_it_gives_back_what_it_borrowed() -> None:
    """The dearer one is beyond the share: the other, however cheap, started within it."""
    queues = [queue("q", 4), queue("r", 4)]
    cheap, held_cheap = running("cheap", ["n1"], gpu=4, priority=9)
    work = [running("dear", ["n1"], gpu=4), (saved(cheap, 1), held_cheap), pending("mine", gpu=4, queue="r")]
    assert stopped(plan(snapshot([node("n1")], work, queues), DEFAULT)) == {"dear": StopCause.RECLAIMED}


def test_a_beneficiary_goes_first_for_a_while_after_its_victim_was_requeued() -> None:
    """Else a third one, ahead by age, could take the room and the victims would have lost their work for nothing."""
    ahead = pending("ahead", gpu=8, priority=1)
    owed = pending("owed", gpu=8, priority=1, submitted_s=1.0)
    for requeued_s, first in ((NOW - 60, "owed"), (NOW - 61, "ahead")):
        victim = replace(pending("victim", gpu=8), requeued_s=requeued_s, yielded_to=WorkloadId("owed"))
        assert list(started(plan(snapshot([node("n1")], [ahead, owed, victim]), DEFAULT))) == [first]


def test_nobody_evicts_the_one_that_it_made_room_for() -> None:
    queues = [queue("q", 8), queue("r", 8)]
    back = replace(pending("back", gpu=8, priority=5, queue="r"), yielded_to=WorkloadId("winner"))
    work = [running("winner", ["n1"], gpu=8), back]
    assert changes(plan(snapshot([node("n1")], work, queues), DEFAULT)) == []


def test_while_more_important_work_of_its_queue_waits_less_important_work_evicts_nobody() -> None:
    work = [running("low", ["n1"], gpu=1), running("block", ["n1"], gpu=7, priority=9)]
    first = pending("first", 2, gpu=8, priority=3)
    second = pending("second", priority=2)
    made = plan(snapshot([node("n1"), node("n2", health=NodeHealth.CORDONED)], [*work, first, second]), DEFAULT)
    assert stopped(made) == {}
    alone = plan(snapshot([node("n1")], [*work, second]), DEFAULT)
    assert stopped(alone) == {"low": StopCause.PREEMPTED}
