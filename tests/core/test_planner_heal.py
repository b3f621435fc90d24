"""Attempts that can't, must not or need not go on are ended once, and for the strongest reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rayorch.core.decisions import Resize, Stop
from rayorch.core.planner import plan
from rayorch.core.types import Allocation, Kind, MemberPhase, NodeHealth, NodeSpec, StopCause, Workload
from rayorch.policies.default import DEFAULT
from tests.scenes import NOW, changes, grown, node, releasing, running, shrunk, snapshot, stopped, stopping

Held = tuple[Workload, Allocation]


def decided(held: Held, *nodes: NodeSpec, synced: bool = True) -> dict[str, StopCause]:
    return stopped(plan(snapshot(nodes or [node("n1")], [held], synced=synced), DEFAULT))


def with_workload(held: Held, **changes: Any) -> Held:
    return replace(held[0], **changes), held[1]


def with_allocation(held: Held, **changes: Any) -> Held:
    return held[0], replace(held[1], **changes)


def starting(held: Held, deadline_s: float = NOW + 5) -> Held:
    """Its groups are being made and no runner has given a sign of life."""
    members = tuple(replace(m, phase=MemberPhase.CREATING) for m in held[1].members)
    workload = replace(held[0], ready_s=None, started_s=NOW - 25, lease_renewed_s=NOW - 25)
    return workload, replace(held[1], members=members, deadline_s=deadline_s)


def test_a_healthy_attempt_is_left_alone() -> None:
    assert changes(plan(snapshot([node("n1")], [running("a", ["n1"])]), DEFAULT)) == []


def test_a_cancelled_one_is_stopped_with_its_grace_and_for_the_reason_that_was_given() -> None:
    cancelled = with_workload(running("a", ["n1"]), cancel_requested=True, reason="wrong data")
    made = plan(snapshot([node("n1")], [cancelled]), DEFAULT)
    stop = made.decisions[0]
    assert isinstance(stop, Stop)
    assert stop.order.reason == "wrong data"
    assert (stop.order.cause, stop.order.deadline_s, stop.order.beneficiary) == (StopCause.CANCELLED, NOW + 30, None)


def test_a_lost_node_ends_a_gang_at_once() -> None:
    made = plan(snapshot([node("n1"), node("n2", health=NodeHealth.LOST)], [running("a", ["n1", "n2"])]), DEFAULT)
    stop = made.decisions[0]
    assert isinstance(stop, Stop)
    assert (stop.order.cause, stop.order.deadline_s) == (StopCause.NODE_LOST, NOW)
    assert "n2" in stop.order.reason


def test_a_node_that_nobody_knows_any_more_is_lost() -> None:
    assert decided(running("a", ["n1", "gone"])) == {"a": StopCause.NODE_LOST}


def test_an_application_loses_only_the_replicas_of_a_lost_node_and_gets_others() -> None:
    app = running("app", ["n1", "n2"], (2, 4), kind=Kind.SERVE)
    made = plan(snapshot([node("n1"), node("n2", health=NodeHealth.LOST)], [app]), DEFAULT)
    assert (stopped(made), shrunk(made), grown(made)) == ({}, {"app": (2,)}, {"app": ["n1"]})


def test_an_application_without_any_replica_left_is_started_again() -> None:
    app = running("app", ["n2", "n2"], (2, 4), kind=Kind.SERVE)
    assert decided(app, node("n1"), node("n2", health=NodeHealth.LOST)) == {"app": StopCause.NODE_LOST}


def test_seats_that_could_not_be_made_end_the_start() -> None:
    held = with_allocation(starting(running("a", ["n1"])), failed="infeasible")
    assert decided(held) == {"a": StopCause.START_FAILED}


def test_seats_that_are_late_end_the_start_and_those_in_time_do_not() -> None:
    assert decided(starting(running("a", ["n1"]), NOW - 1)) == {"a": StopCause.START_FAILED}
    assert decided(starting(running("a", ["n1"]), NOW)) == {}


def test_a_lapsed_lease_ends_the_attempt_but_not_before_its_margin() -> None:
    limit_s = DEFAULT.lease_s + DEFAULT.lease_margin_s
    assert decided(with_workload(running("a", ["n1"]), lease_renewed_s=NOW - limit_s)) == {}
    lapsed = with_workload(running("a", ["n1"]), lease_renewed_s=NOW - limit_s - 0.1)
    assert decided(lapsed) == {"a": StopCause.LEASE_LAPSED}


def test_leases_are_not_judged_before_the_books_are_synced() -> None:
    assert decided(with_workload(running("a", ["n1"]), lease_renewed_s=0.0), synced=False) == {}


def test_a_start_without_a_sign_of_life_yet_has_no_lease_to_lapse() -> None:
    assert decided(with_workload(running("a", ["n1"]), ready_s=None, started_s=0.0, lease_renewed_s=0.0)) == {}


def test_a_draining_node_is_left_with_the_grace_before_its_deadline() -> None:
    far = node("n1", health=NodeHealth.DRAINING, drain_deadline_s=NOW + 33)
    assert decided(running("a", ["n1"]), far) == {}
    near = node("n1", health=NodeHealth.DRAINING, drain_deadline_s=NOW + 32)
    made = plan(snapshot([near], [running("a", ["n1"])]), DEFAULT)
    stop = made.decisions[0]
    assert isinstance(stop, Stop)
    assert (stop.order.cause, stop.order.deadline_s) == (StopCause.DRAINED, NOW + 32)


def test_a_draining_node_without_a_deadline_is_left_now() -> None:
    assert decided(running("a", ["n1"]), node("n1", health=NodeHealth.DRAINING)) == {"a": StopCause.DRAINED}


def test_surplus_seats_leave_a_draining_node_without_ending_the_gang() -> None:
    nodes = [node("n1"), node("n2", health=NodeHealth.DRAINING)]
    made = plan(snapshot(nodes, [running("a", ["n1", "n1", "n2"], (2, 4))]), DEFAULT)
    assert (stopped(made), shrunk(made)) == ({}, {"a": (1,)})


def test_a_cordoned_node_is_not_left() -> None:
    assert decided(running("a", ["n1"]), node("n1", health=NodeHealth.CORDONED)) == {}


def test_nothing_is_stopped_twice_for_an_equal_reason() -> None:
    held = stopping(running("a", ["n1"]), cause=StopCause.DRAINED)
    assert decided(held, node("n1", health=NodeHealth.DRAINING)) == {}


def test_a_stronger_reason_replaces_a_stop_under_way_and_never_gives_more_time() -> None:
    held = stopping(with_workload(running("a", ["n1"]), cancel_requested=True), deadline_s=NOW + 3)
    made = plan(snapshot([node("n1")], [held]), DEFAULT)
    stop = made.decisions[0]
    assert isinstance(stop, Stop)
    assert (stop.order.cause, stop.order.deadline_s) == (StopCause.CANCELLED, NOW + 3)


def test_a_lost_node_under_a_stopping_attempt_ends_the_wait_for_it() -> None:
    held = stopping(running("a", ["n1"]))
    assert decided(held, node("n1", health=NodeHealth.LOST)) == {"a": StopCause.NODE_LOST}


def test_of_two_reasons_the_stronger_is_given() -> None:
    held = with_workload(running("a", ["n1"]), cancel_requested=True)
    assert decided(held, node("n1", health=NodeHealth.LOST)) == {"a": StopCause.NODE_LOST}


def test_an_application_has_time_to_be_built_before_its_seats_count_as_late() -> None:
    app = running("app", ["n1", "n2"], (2, 4), kind=Kind.SERVE)
    assert decided(starting(app, NOW - 300), node("n1"), node("n2")) == {}
    assert decided(starting(app, NOW - 601), node("n1"), node("n2")) == {"app": StopCause.START_FAILED}


def test_a_drain_does_not_wait_for_the_long_grace_of_an_attempt_that_is_stopping() -> None:
    held = stopping(running("a", ["n1"]), deadline_s=NOW + 3_600)
    made = plan(snapshot([node("n1", health=NodeHealth.DRAINING, drain_deadline_s=NOW + 60)], [held]), DEFAULT)
    stop = made.decisions[0]
    assert isinstance(stop, Stop) and held[0].stop is not None
    assert stop.order == replace(held[0].stop, deadline_s=NOW + 60)
    later = node("n1", health=NodeHealth.DRAINING, drain_deadline_s=NOW + 7_200)
    assert decided(held, later) == {}


def test_seats_that_are_leaving_keep_their_time_when_a_node_is_lost_under_others() -> None:
    held = running("a", ["n1", "n2", "n3"], (1, 3), kind=Kind.SERVE)
    nodes = [node("n1"), node("n2"), node("n3", health=NodeHealth.LOST)]
    for by_s, expected_s in ((NOW + 20, NOW + 20), (NOW - 20, NOW), (None, NOW)):
        workload, allocation = releasing(held, 2)
        made = plan(snapshot(nodes, [(replace(workload, release_by_s=by_s), allocation)]), DEFAULT)
        (resize,) = [d for d in made.decisions if isinstance(d, Resize)]
        assert (resize.remove, resize.release_by_s) == ((3,), expected_s)
