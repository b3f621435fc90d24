"""Who starts, where, and who waits for what: state in, decisions out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.core.decisions import Start, WaitReason
from rayorch.core.planner import plan
from rayorch.core.types import Kind, Member, MemberPhase, NodeHealth, Resources, Role, WorkloadId
from rayorch.policies.default import DEFAULT
from tests.scenes import (
    NOW,
    changes,
    gpus,
    grown,
    held_for,
    node,
    pending,
    queue,
    reasons,
    releasing,
    reserved,
    resizes,
    running,
    snapshot,
    started,
    stopping,
    wanted,
)

# ---------------------------------------------------------------- order


def test_the_higher_priority_goes_first() -> None:
    made = plan(snapshot([node("n1", 1)], [pending("a"), pending("b", priority=1)]), DEFAULT)
    assert started(made) == {"b": ["n1"]}
    assert reasons(made, "a") == [WaitReason.RESOURCES, WaitReason.PRIORITY]
    assert made.positions == {"a": 1}


def test_at_equal_priority_the_older_goes_first_and_then_the_id() -> None:
    work = [pending("a", submitted_s=2.0), pending("b", submitted_s=1.0), pending("c", submitted_s=1.0)]
    assert list(started(plan(snapshot([node("n1", 2)], work), DEFAULT))) == ["b", "c"]


def test_at_equal_priority_the_queue_that_uses_less_of_its_share_goes_first() -> None:
    queues = [queue("q", 4), queue("r", 4)]
    work = [running("x", ["n1"]), pending("old", submitted_s=0.0), pending("young", queue="r", submitted_s=9.0)]
    assert started(plan(snapshot([node("n1", 2)], work, queues), DEFAULT)) == {"young": ["n1"]}


def test_shares_are_compared_anew_after_each_start() -> None:
    queues = [queue("q", 4), queue("r", 4)]
    work = [pending(f"{name}{i}", queue=name, submitted_s=float(i)) for name in "qr" for i in range(3)]
    assert list(started(plan(snapshot([node("n1", 4)], work, queues), DEFAULT))) == ["q0", "r0", "q1", "r1"]


def test_who_borrows_comes_after_who_does_not_whatever_the_priority() -> None:
    queues = [queue("q", 1), queue("r", 1)]
    work = [running("x", ["n1"]), pending("borrower", priority=9), pending("owner", queue="r")]
    assert started(plan(snapshot([node("n1", 2)], work, queues), DEFAULT)) == {"owner": ["n1"]}


# ---------------------------------------------------------------- place


def test_a_start_names_its_attempt_and_seats_with_devices() -> None:
    made = plan(snapshot([node("n1", 4)], [pending("a", 2, gpu=2)]), DEFAULT)
    bundle = gpus(2)
    seats = (
        Member("worker", 0, made_on := node("n1").id, bundle, 0, 0, MemberPhase.RESERVED, "", (0, 1)),
        Member("worker", 1, made_on, bundle, 0, 1, MemberPhase.RESERVED, "", (2, 3)),
    )
    assert changes(made) == [Start(WorkloadId("a"), 1, seats, "2 seats on n1")]


def test_best_fit_keeps_whole_nodes_free() -> None:
    nodes = [node("n1"), node("n2")]
    made = plan(snapshot(nodes, [running("x", ["n2"], gpu=5), pending("a", gpu=2)]), DEFAULT)
    assert started(made) == {"a": ["n2"]}


def test_a_gang_prefers_the_fullest_node_that_takes_it_whole() -> None:
    work = [running("x", ["n2"], gpu=4), running("y", ["n3"], gpu=6), pending("a", 4)]
    assert started(plan(snapshot([node("n1"), node("n2"), node("n3")], work), DEFAULT)) == {"a": ["n2"] * 4}


def test_a_gang_larger_than_a_node_stays_in_the_smallest_rack_that_takes_it() -> None:
    nodes = [node("n1", 4, "r1"), node("n2", 4, "r2"), node("n3", 4, "r2"), node("n4", 2, "r1"), node("n5", 4, "r1")]
    assert started(plan(snapshot(nodes, [pending("a", 8)]), DEFAULT)) == {"a": ["n2"] * 4 + ["n3"] * 4}


def test_a_required_rack_is_never_left() -> None:
    nodes = [node("n1", 4, "r1"), node("n2", 4, "r2")]
    made = plan(snapshot(nodes, [pending("a", 6, rack="required")]), DEFAULT)
    assert started(made) == {}
    assert reasons(made, "a") == [WaitReason.TOPOLOGY, WaitReason.NEVER_FITS_NOW]
    topology = made.waits[WorkloadId("a")][0]
    assert (topology.need, topology.have, topology.unit) == (6, 4, "GPU")


def test_a_preferred_rack_is_left_when_it_does_not_suffice() -> None:
    nodes = [node("n1", 4, "r1"), node("n2", 4, "r2")]
    made = plan(snapshot(nodes, [pending("a", 6, rack="preferred")]), DEFAULT)
    assert sorted(started(made)["a"]) == ["n1"] * 4 + ["n2"] * 2


def test_replicas_are_groups_of_their_own_and_numbered_from_one() -> None:
    made = plan(snapshot([node("n1")], [pending("app", (2, 4), kind=Kind.SERVE)]), DEFAULT)
    start = next(d for d in made.decisions if isinstance(d, Start))
    assert [(m.surplus, m.bundle_index, m.index) for m in start.members] == [(1, 0, 0), (2, 0, 1)]


def test_roles_of_different_size_are_placed_together_or_not_at_all() -> None:
    roles = (Role("head", Resources.of({"CPU": 8}), 1, 1), Role("worker", gpus(4), 2, 2))
    assert started(plan(snapshot([node("n1")], [pending("a", roles=roles)]), DEFAULT)) == {"a": ["n1"] * 3}
    assert started(plan(snapshot([node("n1", cpu=4)], [pending("a", roles=roles)]), DEFAULT)) == {}


def test_half_gpus_share_a_device() -> None:
    made = plan(snapshot([node("n1", 1), node("n2", 4)], [pending(x, gpu=0.5) for x in "ab"]), DEFAULT)
    assert started(made) == {"a": ["n1"], "b": ["n1"]}


def test_work_without_gpus_goes_where_no_gpus_are() -> None:
    roles = (Role("worker", Resources.of({"CPU": 1}), 1, 1),)
    made = plan(snapshot([node("big"), node("small", 0)], [pending("a", roles=roles)]), DEFAULT)
    assert started(made) == {"a": ["small"]}


def test_nothing_starts_before_the_books_are_synced() -> None:
    made = plan(snapshot([node("n1")], [pending("a")], synced=False), DEFAULT)
    assert changes(made) == []
    assert reasons(made, "a") == [WaitReason.SYNCING]


def test_a_workload_whose_former_attempt_still_holds_seats_waits_for_them() -> None:
    workload, allocation = running("a", ["n1"])
    made = plan(snapshot([node("n1")], [(pending("a"), allocation)]), DEFAULT)
    assert workload.id in made.waits
    assert reasons(made, "a") == [WaitReason.RELEASING]


@pytest.mark.parametrize(
    ("exit_code", "node_losses", "reason"), [(1, 0, WaitReason.BACK_OFF), (None, 1, WaitReason.LEASE)]
)
def test_back_off_and_lease_are_waited_for_with_their_end_as_estimate(
    exit_code: int | None, node_losses: int, reason: WaitReason
) -> None:
    waiting = replace(
        pending("a"), attempt=1, not_before_s=NOW + 7, failures=1, exit_code=exit_code, node_losses=node_losses
    )
    made = plan(snapshot([node("n1")], [waiting]), DEFAULT)
    assert reasons(made, "a") == [reason]
    assert made.estimates == {"a": NOW + 7}
    later = plan(snapshot([node("n1")], [waiting], now_s=NOW + 7), DEFAULT)
    assert [d.attempt for d in changes(later)] == [2]


# ---------------------------------------------------------------- reasons


def test_all_reasons_are_given_not_only_the_first() -> None:
    queues = [queue("q", 2)]
    work = [running("x", ["n1", "n1"], preemptible=False), pending("a", 4)]
    made = plan(snapshot([node("n1", 4)], work, queues), DEFAULT)
    assert reasons(made, "a") == [WaitReason.QUOTA, WaitReason.RESOURCES]
    quota, room = made.waits[WorkloadId("a")]
    assert (quota.need, quota.have, quota.blockers) == (4, 0, ("x",))
    assert (room.need, room.have, room.blockers) == (4, 2, ("x",))
    assert quota.unblocks
    assert room.unblocks


def test_free_gpus_in_too_small_pieces_are_named_fragmented() -> None:
    work = [running("x", ["n1"], gpu=5), running("y", ["n2"], gpu=5), pending("a", gpu=4)]
    made = plan(snapshot([node("n1"), node("n2")], work), DEFAULT)
    assert reasons(made, "a") == [WaitReason.FRAGMENTED]
    assert (made.waits[WorkloadId("a")][0].need, made.waits[WorkloadId("a")][0].have) == (1, 0)


def test_a_cordoned_node_that_would_take_it_is_named() -> None:
    made = plan(snapshot([node("n1", health=NodeHealth.CORDONED)], [pending("a")]), DEFAULT)
    assert reasons(made, "a") == [WaitReason.RESOURCES, WaitReason.NODES_UNAVAILABLE]


def test_a_gang_that_nodes_are_held_for_still_hears_of_the_cordon_and_the_foreign_use_in_its_way() -> None:
    free = [node("n1", 2, rack="r1"), running("x", ["n2"], gpu=1), pending("a", 3)]
    cordoned = node("n2", 2, rack="r2", health=NodeHealth.CORDONED)
    made = plan(snapshot([free[0], cordoned, node("n3", 0)], free[1:]), DEFAULT)
    assert reasons(made, "a") == [WaitReason.RESOURCES, WaitReason.NODES_UNAVAILABLE]
    used = node("n2", 3, rack="r2", foreign=gpus(1), foreign_holders=("job 7",))
    made = plan(snapshot([free[0], used, node("n3", 0)], [*free[1:2], pending("a", 4)]), DEFAULT)
    assert held_for(made)["a"]
    assert reasons(made, "a") == [WaitReason.RESOURCES, WaitReason.FOREIGN_USE]


def test_foreign_use_that_is_in_the_way_is_named() -> None:
    used = node("n1", 2, foreign=gpus(2), foreign_holders=("job 7",))
    made = plan(snapshot([used], [pending("a")]), DEFAULT)
    assert reasons(made, "a") == [WaitReason.RESOURCES, WaitReason.FOREIGN_USE]
    assert "job 7" in made.waits[WorkloadId("a")][1].detail


def test_what_never_fits_says_so_and_asks_for_nodes() -> None:
    made = plan(snapshot([node("n1")], [pending("a", gpu=16)]), DEFAULT)
    assert reasons(made, "a") == [WaitReason.RESOURCES, WaitReason.NEVER_FITS_NOW]
    assert wanted(made) == ["a"]
    assert held_for(made) == {}


def test_no_nodes_are_asked_for_beyond_quota() -> None:
    queues = [queue("q", 8, borrow=0)]
    work = [running("x", ["n1"], gpu=4), pending("a", gpu=4), pending("b", gpu=4, submitted_s=1.0)]
    assert wanted(plan(snapshot([node("n1", 4)], work, queues), DEFAULT)) == ["a"]


# ---------------------------------------------------------------- releases, heads and backfill


def test_room_that_is_being_freed_is_waited_for_with_its_deadline_and_not_given_to_those_behind() -> None:
    work = [
        running("y", ["n1"], gpu=4),
        stopping(running("x", ["n1"], gpu=2), "a", NOW + 20),
        pending("a", gpu=4),
        pending("b", gpu=2, submitted_s=1.0),
    ]
    made = plan(snapshot([node("n1")], work), DEFAULT)
    assert reserved(made) == {"a": ["n1"]}
    assert reasons(made, "a") == [WaitReason.RELEASING]
    assert made.waits[WorkloadId("a")][0].blockers == ("x",)
    assert made.estimates[WorkloadId("a")] == NOW + 20
    assert started(made) == {}
    assert WaitReason.PRIORITY in reasons(made, "b")


def test_room_beyond_what_is_promised_may_be_used() -> None:
    work = [stopping(running("x", ["n1"], gpu=6), "a"), pending("a", gpu=6), pending("b", gpu=2, submitted_s=1.0)]
    made = plan(snapshot([node("n1")], work), DEFAULT)
    assert reserved(made) == {"a": ["n1"]}
    assert started(made) == {"b": ["n1"]}


def test_freed_room_is_the_beneficiarys_even_when_a_higher_priority_arrives() -> None:
    work = [
        stopping(running("x", ["n1"], gpu=8), "a"),
        pending("a", gpu=8, priority=1),
        pending("b", gpu=8, priority=2),
    ]
    made = plan(snapshot([node("n1")], work), DEFAULT)
    assert reserved(made) == {"a": ["n1"]}


def test_the_head_that_does_not_fit_holds_nodes_and_backfill_uses_the_others() -> None:
    work = [
        running("x", ["n1"], gpu=4),
        running("y", ["n2"], gpu=6),
        pending("head", gpu=8),
        pending("small", gpu=2, submitted_s=1.0),
        pending("large", gpu=4, submitted_s=2.0),
    ]
    made = plan(snapshot([node("n1"), node("n2")], work), DEFAULT)
    assert held_for(made) == {"head": ["n1"]}
    assert started(made) == {"small": ["n2"]}
    assert WaitReason.RESERVED_FOR_HEAD in reasons(made, "large")


def test_a_head_above_its_quota_holds_nothing() -> None:
    queues = [queue("q", 8, borrow=0), queue("r", 8, borrow=0)]
    work = [running("x", ["n1"], gpu=4), pending("head", gpu=8), pending("b", gpu=4, queue="r", submitted_s=1.0)]
    made = plan(snapshot([node("n1")], work, queues), DEFAULT)
    assert held_for(made) == {}
    assert started(made) == {"b": ["n1"]}


def test_one_gpu_needs_no_hold() -> None:
    work = [running("x", ["n1"], gpu=8), pending("head"), pending("b", submitted_s=1.0)]
    assert held_for(plan(snapshot([node("n1")], work), DEFAULT)) == {}


# ---------------------------------------------------------------- surplus


def test_a_start_gets_its_surplus_when_nobody_waits() -> None:
    made = plan(snapshot([node("n1", 4)], [pending("a", (2, 6))]), DEFAULT)
    start = next(d for d in made.decisions if isinstance(d, Start))
    assert [(m.surplus, m.bundle_index, m.index) for m in start.members] == [(0, 0, 0), (0, 1, 1), (1, 0, 2), (2, 0, 3)]


def test_surplus_goes_last_after_all_minimums() -> None:
    work = [pending("a", (2, 8)), pending("b", 2, submitted_s=1.0)]
    made = plan(snapshot([node("n1", 5)], work), DEFAULT)
    assert {id: len(nodes) for id, nodes in started(made).items()} == {"a": 3, "b": 2}


def test_surplus_stops_at_the_queues_quota() -> None:
    made = plan(snapshot([node("n1")], [pending("a", (2, 8))], [queue("q", 3, borrow=0)]), DEFAULT)
    assert len(started(made)["a"]) == 3


def test_nothing_grows_into_a_node_where_a_piece_of_a_waiting_claim_would_fit() -> None:
    work = [running("a", ["n1"] * 2, (2, 4)), pending("w", gpu=2, submitted_s=1.0, members=3)]
    made = plan(snapshot([node("n1", 4), node("n2", 1), node("n3", 4, health=NodeHealth.CORDONED)], work), DEFAULT)
    assert grown(made) == {"a": ["n2"]}


def test_a_running_gang_grows_by_surplus_members_with_groups_of_their_own() -> None:
    made = plan(snapshot([node("n1", 4)], [running("a", ["n1"] * 3, (2, 4))]), DEFAULT)
    resize = resizes(made)[0]
    assert grown(made) == {"a": ["n1"]}
    assert [(m.surplus, m.bundle_index, m.index) for m in resize.add] == [(2, 0, 3)]


def test_growth_waits_for_its_cooldown() -> None:
    young = running("a", ["n1"] * 2, (2, 4), started_s=NOW - DEFAULT.grow_cooldown_s + 1)
    assert grown(plan(snapshot([node("n1", 4)], [young]), DEFAULT)) == {}
    workload, allocation = running("a", ["n1"] * 2, (2, 4))
    resized = (replace(workload, resized_s=NOW - 1), allocation)
    assert grown(plan(snapshot([node("n1", 4)], [resized]), DEFAULT)) == {}


def test_what_is_not_resizable_or_not_up_yet_or_shrinking_does_not_grow() -> None:
    workload, allocation = running("a", ["n1"] * 2, (2, 4))
    fixed = replace(workload, spec=replace(workload.spec, resizable=False))
    starting = replace(workload, ready_s=None)
    for changed in ((fixed, allocation), (starting, allocation), releasing(running("a", ["n1"] * 3, (2, 4)), 1)):
        assert grown(plan(snapshot([node("n1", 4)], [changed]), DEFAULT)) == {}


def test_growth_stays_in_the_rack_that_is_required() -> None:
    nodes = [node("n1", 2, "r1"), node("n2", 4, "r2"), node("n3", 1, "r1")]
    made = plan(snapshot(nodes, [running("a", ["n1"] * 2, (2, 6), rack="required")]), DEFAULT)
    assert grown(made) == {"a": ["n3"]}


def test_a_node_on_which_more_is_held_than_it_has_takes_nothing_from_the_others() -> None:
    over = replace(node("n1", 4, model="H100"), foreign=gpus(2))
    nodes = [over, node("n2", 4, model="H100"), node("n3", 4, model="H100")]
    work = [running("x", ["n1"], gpu=4), pending("a", 2, gpu=4, accelerators=("H100",))]
    assert started(plan(snapshot(nodes, work), DEFAULT)) == {"a": ["n2", "n3"]}
