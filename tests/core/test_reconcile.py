"""Reconciliation: facts in, the next actions out. Each test is one situation and all that follows from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.core.events import AttemptEnded
from rayorch.core.grants import Grant
from rayorch.core.lifecycle import Move
from rayorch.core.reconcile import (
    Action,
    BlockNodes,
    CreateGroups,
    DropReservation,
    EndAttempt,
    KillRunner,
    MarkReady,
    MarkReleasing,
    Rebind,
    RemoveGroups,
    Reseat,
    RunnerPhase,
    RunnerView,
    StartRunner,
    UpdateRunner,
    grant_for,
    reconcile,
)
from rayorch.core.reports import SeatInUse
from rayorch.core.runners import same_grant
from rayorch.core.snapshot import Snapshot, Versions
from rayorch.core.types import (
    Allocation,
    Device,
    Kind,
    Member,
    MemberPhase,
    NodeHealth,
    NodeId,
    NodeSpec,
    State,
    StopCause,
    StopOrder,
    Workload,
    WorkloadId,
)
from rayorch.policies.default import DEFAULT
from tests.build import node, queue, seat, seats, workload

W = WorkloadId("w")
PROFILE = replace(
    DEFAULT, lease_s=10.0, lease_margin_s=2.0, failure_settle_s=3.0, block_node_s=30.0, retry_backoff_s=5.0
)
NOW = 100.0
N1 = NodeId("n1")


def running(kind: Kind = Kind.TRAIN, retries: int = 0, **facts: object) -> Workload:
    """Attempt 1 of "w" on two seats of n1, ready, last seen at 98."""
    base = Workload(
        workload("w", 2, 4, kind=kind, max_retries=retries),
        State.RUNNING,
        0.0,
        attempt=1,
        placement=seats("n1", 2),
        started_s=50.0,
        ready_s=60.0,
        lease_renewed_s=98.0,
    )
    return replace(base, **facts)  # type: ignore[arg-type]


def starting(**facts: object) -> Workload:
    return running(**{"ready_s": None, "started_s": 99.0, "lease_renewed_s": 99.0, **facts})  # type: ignore[arg-type]


def stopping(cause: StopCause, deadline_s: float = 130.0, **facts: object) -> Workload:
    order = StopOrder(cause, cause.value, 95.0, deadline_s)
    return running(**{"state": State.STOPPING, "stop": order, **facts})  # type: ignore[arg-type]


def held(
    phase: MemberPhase = MemberPhase.READY, members: tuple[Member, ...] = seats("n1", 2), **facts: object
) -> Allocation:
    group = "" if phase in (MemberPhase.RESERVED, MemberPhase.CREATING) else "g0"
    base = Allocation(W, 1, tuple(replace(m, phase=phase, group_id=group) for m in members), 99.0, 130.0)
    return replace(base, **facts)  # type: ignore[arg-type]


def view(work: Workload, allocation: Allocation, **facts: object) -> RunnerView:
    """A running runner that has the grant that it should have, as its version 4, and has applied it."""
    grant = replace(grant_for(work, allocation, PROFILE.lease_s), version=4)
    base = RunnerView(W, 1, RunnerPhase.RUNNING, grant=grant, applied_version=4)
    return replace(base, **facts)  # type: ignore[arg-type]


def turn(
    work: Workload | None,
    allocation: Allocation | None = None,
    runner: RunnerView | None = None,
    nodes: tuple[NodeSpec, ...] = (node("n1"), node("n2")),
    now_s: float = NOW,
    synced: bool = True,
) -> tuple[Action, ...]:
    snapshot = Snapshot(
        Versions(),
        now_s,
        (queue("q"),),
        (work,) if work is not None else (),
        nodes,
        (allocation,) if allocation is not None else (),
        synced,
    )
    return reconcile(snapshot, {(W, runner.attempt): runner} if runner is not None else {}, PROFILE)


def end_of(actions: tuple[Action, ...]) -> AttemptEnded:
    (action,) = actions
    assert isinstance(action, EndAttempt)
    return action.event


# ---------------------------------------------------------------- the way of a start


def test_a_start_makes_its_groups_then_its_runner_then_is_ready() -> None:
    work = starting()
    assert turn(work, held(MemberPhase.RESERVED)) == (CreateGroups(W, 1, (0,)),)
    assert turn(work, held(MemberPhase.CREATING)) == ()
    assert turn(work, held()) == (StartRunner(W, 1, grant_for(work, held(), 10.0)),)
    assert turn(work, held(), view(work, held(), phase=RunnerPhase.STARTING)) == ()
    assert turn(work, held(), view(work, held())) == (MarkReady(W, 1),)
    assert turn(running(), held(), view(work, held())) == ()


def test_a_runner_that_can_not_be_asked_for_does_not_keep_its_seats_for_ever() -> None:
    later_s = NOW + PROFILE.start_deadline_s + 181.0
    assert turn(starting(), held(), now_s=later_s) == (RemoveGroups(W, 1, (0,)),)
    ended = end_of(turn(starting(), now_s=later_s))
    assert (ended.move, ended.cause) == (Move.REQUEUED, StopCause.START_FAILED)


def test_nothing_is_done_before_the_books_were_compared_with_the_world() -> None:
    assert turn(starting(), None, synced=False) == ()
    assert turn(None, held(), synced=False) == ()


def test_a_leased_gang_is_ready_with_its_group_and_has_no_runner() -> None:
    assert turn(starting(spec=workload("w", 2, kind=Kind.GANG)), held()) == (MarkReady(W, 1),)
    assert turn(running(Kind.GANG), held()) == ()


def test_serve_is_started_before_its_groups_exist() -> None:
    members = (seat("n1", 0, surplus=1), seat("n1", 1, surplus=2))
    work = starting(spec=workload("w", 2, 4, kind=Kind.SERVE), placement=members)
    allocation = held(MemberPhase.RESERVED, members, gang=(1, 2))
    (action,) = turn(work, allocation)
    assert isinstance(action, StartRunner)
    assert [(s.surplus, s.node_id, s.group_id) for s in action.grant.seats] == [(1, "n1", ""), (2, "n1", "")]


def test_a_failed_gang_blocks_its_nodes_once_and_starts_nothing() -> None:
    failed = held(MemberPhase.CREATING, failed="too late")
    assert turn(starting(), failed) == (BlockNodes((N1,), 130.0, "too late"),)
    assert turn(starting(), failed, nodes=(replace(node("n1"), blocked_until_s=120.0),)) == ()


def test_a_reservation_that_was_never_committed_is_dropped() -> None:
    pending = Workload(workload("w", 2), State.PENDING, 0.0)
    assert turn(pending, held(MemberPhase.RESERVED)) == (DropReservation(W, 1),)
    assert turn(pending, held()) == (RemoveGroups(W, 1, (0,)),)
    assert turn(None, held()) == (RemoveGroups(W, 1, (0,)),)


def test_a_committed_start_whose_reservation_was_lost_is_planned_again_at_once() -> None:
    event = end_of(turn(starting(), None))
    assert (event.move, event.cause, event.not_before_s) == (Move.REQUEUED, StopCause.START_FAILED, NOW)


def test_a_runner_of_a_former_attempt_is_ended() -> None:
    old = RunnerView(W, 1, RunnerPhase.ENDED, exit_code=0)
    assert turn(running(attempt=2), replace(held(), attempt=2), old)[0] == KillRunner(W, 1, "the attempt is over")
    assert turn(None, None, old) == (KillRunner(W, 1, "the attempt is over"),)
    assert turn(None, None, replace(old, phase=RunnerPhase.GONE)) == ()


def test_a_runner_that_never_shows_a_sign_of_life_is_given_up() -> None:
    work = starting()
    silent = view(work, held(), phase=RunnerPhase.STARTING)
    assert turn(work, held(), silent, now_s=300.0) == ()
    late = turn(work, held(), silent, now_s=99.0 + 30.0 + 180.0)
    assert [type(action) for action in late] == [KillRunner, RemoveGroups]


# ---------------------------------------------------------------- the work ends


@pytest.mark.parametrize(
    ("code", "retries", "failures", "move", "not_before_s"),
    [
        (0, 0, 0, Move.SUCCEEDED, NOW),
        (1, 0, 0, Move.FAILED, NOW),
        (1, 2, 0, Move.REQUEUED, NOW + 5.0),
        (1, 2, 1, Move.REQUEUED, NOW + 10.0),
        (1, 2, 2, Move.FAILED, NOW),
    ],
)
def test_the_work_ends_by_itself(code: int, retries: int, failures: int, move: Move, not_before_s: float) -> None:
    work = running(retries=retries, failures=failures)
    ended = view(work, held(), phase=RunnerPhase.ENDED, exit_code=code, ended_s=90.0)
    assert turn(work, held(), ended) == (RemoveGroups(W, 1, (0,)),)
    event = end_of(turn(work, None, ended))
    assert (event.move, event.cause, event.exit_code, event.not_before_s) == (move, None, code, not_before_s)


def test_a_failure_waits_for_news_of_a_lost_node() -> None:
    on_two = (*seats("n1", 1), replace(seats("n2", 2)[1], surplus=0))
    work = running(retries=1, placement=on_two)
    ended = view(work, held(members=on_two), phase=RunnerPhase.ENDED, exit_code=1, ended_s=98.0)
    assert turn(work, held(members=on_two), ended) == ()
    lost = (node("n1"), replace(node("n2"), health=NodeHealth.LOST))
    assert turn(work, held(members=on_two), ended, lost) == (RemoveGroups(W, 1, (0,)),)
    event = end_of(turn(work, None, ended, lost))
    assert (event.move, event.cause, event.not_before_s) == (Move.REQUEUED, StopCause.NODE_LOST, NOW + 12.0)


def test_a_failure_on_one_node_waits_for_no_news_for_who_tells_of_it_is_on_that_node() -> None:
    work = running(retries=1)
    ended = view(work, held(), phase=RunnerPhase.ENDED, exit_code=1, ended_s=NOW)
    assert turn(work, held(), ended) == (RemoveGroups(W, 1, (0,)),)
    assert end_of(turn(work, None, ended)).cause is None


def test_a_lost_gpu_under_it_is_not_the_works_fault() -> None:
    on = tuple(replace(member, devices=(n,), exact=True) for n, member in enumerate(seats("n1", 2)))
    work, holds = running(retries=0), held(members=on)
    ended = view(work, holds, phase=RunnerPhase.ENDED, exit_code=1, ended_s=NOW - 1.0)

    def at(*devices: Device) -> tuple[NodeSpec, ...]:
        return (replace(node("n1"), devices=devices), node("n2"))

    well = at(Device(0, uuid="GPU-0"), Device(1, uuid="GPU-1"))
    assert turn(work, holds, ended, well) == ()  # its agent may be about to tell
    assert end_of(turn(work, None, ended, well, now_s=NOW + 3.0)).move is Move.FAILED
    gone = at(Device(0, uuid="GPU-0"), Device(1, uuid="GPU-1", sick="lost: GPU is lost", lost=True))
    assert turn(work, holds, ended, gone) == (RemoveGroups(W, 1, (0,)),)
    event = end_of(turn(work, None, ended, gone))
    assert (event.move, event.cause, event.not_before_s) == (Move.REQUEUED, StopCause.NODE_LOST, NOW)
    assert event.reason == "GPU 1 of n1 under it was lost"
    elsewhere = at(Device(0, uuid="GPU-0"), Device(1, uuid="GPU-1"), Device(2, lost=True, sick="lost", uuid="GPU-2"))
    assert end_of(turn(work, None, ended, elsewhere, now_s=NOW + 3.0)).move is Move.FAILED
    assert turn(work, holds, view(work, holds), gone) == ()  # what runs on is left alone


# ---------------------------------------------------------------- contact is lost


def test_a_runner_without_a_goodbye_may_still_run_for_two_leases() -> None:
    work = running()
    gone = view(work, held(), phase=RunnerPhase.GONE)
    for runner in (gone, None):  # None: the controller was restarted as well and never knew it
        assert turn(work, held(), runner) == (RemoveGroups(W, 1, (0,)),)
        event = end_of(turn(work, None, runner))
        assert (event.move, event.cause, event.not_before_s) == (Move.REQUEUED, StopCause.LEASE_LAPSED, 98.0 + 22.0)


def test_a_runner_that_gave_up_its_lease_is_lost_contact() -> None:
    work = running()
    lapsed = view(work, held(), phase=RunnerPhase.ENDED, exit_code=None, message="no answer")
    event = end_of(turn(work, None, lapsed))
    assert (event.cause, event.not_before_s) == (StopCause.LEASE_LAPSED, 120.0)


def test_after_a_head_restart_every_attempt_is_requeued() -> None:
    fresh = (node("n3"), node("n4"))  # the same machines as new Ray nodes
    event = end_of(turn(running(lease_renewed_s=99.0), None, nodes=fresh))
    assert (event.move, event.cause, event.not_before_s) == (Move.REQUEUED, StopCause.NODE_LOST, 99.0 + 22.0)
    start = end_of(turn(starting(), None, nodes=fresh))
    assert (start.cause, start.not_before_s) == (StopCause.START_FAILED, NOW)


def test_seats_on_a_node_that_nobody_knows_end_the_attempt() -> None:
    work = running()
    actions = turn(work, held(), view(work, held()), nodes=(node("n2"),))
    assert [type(action) for action in actions] == [KillRunner, RemoveGroups]


def test_an_inventory_that_knows_no_node_yet_ends_nothing() -> None:
    assert turn(running(), held(), view(running(), held()), nodes=()) == ()


def test_a_group_that_somebody_removed_ends_a_begun_attempt() -> None:
    work = running(Kind.GANG)
    assert turn(work, held(failed="removed by somebody else")) == (RemoveGroups(W, 1, (0,)),)


# ---------------------------------------------------------------- the way of a stop


def test_a_stop_is_passed_on_and_forced_at_its_deadline() -> None:
    work = stopping(StopCause.PREEMPTED)
    before = view(running(), held())
    (told,) = turn(work, held(), before)
    assert isinstance(told, UpdateRunner) and told.grant.stop == work.stop and told.grant.seats
    assert turn(work, held(), view(work, held())) == ()
    (forced,) = turn(work, held(), view(work, held()), now_s=130.0)
    assert isinstance(forced, KillRunner)
    unreachable = turn(work, held(), view(work, held()), now_s=142.0)
    assert [type(action) for action in unreachable] == [KillRunner, RemoveGroups]


@pytest.mark.parametrize(
    ("cause", "move", "not_before_s"),
    [
        (StopCause.PREEMPTED, Move.REQUEUED, NOW),
        (StopCause.RECLAIMED, Move.REQUEUED, NOW),
        (StopCause.DRAINED, Move.REQUEUED, NOW),
        (StopCause.CANCELLED, Move.CANCELLED, NOW),
        (StopCause.NODE_LOST, Move.REQUEUED, 95.0 + 12.0),
    ],
)
def test_a_stop_that_was_obeyed(cause: StopCause, move: Move, not_before_s: float) -> None:
    work = stopping(cause)
    ended = view(work, held(), phase=RunnerPhase.ENDED, exit_code=75)
    assert turn(work, held(), ended) == (RemoveGroups(W, 1, (0,)),)
    event = end_of(turn(work, None, ended))
    assert (event.move, event.cause, event.not_before_s) == (move, cause, not_before_s)


def test_a_stop_whose_runner_is_gone_waits_for_its_lease() -> None:
    event = end_of(turn(stopping(StopCause.PREEMPTED), None))
    assert event.not_before_s == 98.0 + 22.0


def test_a_stop_before_the_runner_was_started_takes_effect_at_once() -> None:
    work = stopping(StopCause.PREEMPTED, ready_s=None, started_s=99.0, lease_renewed_s=99.0)
    assert turn(work, held()) == (RemoveGroups(W, 1, (0,)),)
    assert end_of(turn(work, None)).not_before_s == NOW


def test_a_start_that_failed_again_backs_off() -> None:
    work = stopping(StopCause.START_FAILED, ready_s=None, started_s=90.0, lease_renewed_s=90.0, start_failures=2)
    assert end_of(turn(work, None)).not_before_s == NOW + 10.0


@pytest.mark.parametrize(
    ("kind", "told", "cancelled", "move"),
    [
        (Kind.TRAIN, False, False, Move.SUCCEEDED),
        (Kind.TRAIN, True, False, Move.SUCCEEDED),  # a training driver that is stopped exits otherwise
        (Kind.JOB, False, False, Move.SUCCEEDED),
        (Kind.JOB, True, False, Move.REQUEUED),
        (Kind.TRAIN, True, True, Move.CANCELLED),
        (Kind.TRAIN, False, True, Move.SUCCEEDED),
    ],
)
def test_exit_code_0_during_a_stop(kind: Kind, told: bool, cancelled: bool, move: Move) -> None:
    work = stopping(StopCause.PREEMPTED, spec=workload("w", 2, kind=kind), cancel_requested=cancelled)
    granted = view(work if told else running(), held())
    event = end_of(turn(work, None, replace(granted, phase=RunnerPhase.ENDED, exit_code=0)))
    assert event.move is move


def test_a_leased_gang_has_until_the_deadline_and_expires_without_heartbeats() -> None:
    gang = workload("w", 2, kind=Kind.GANG)
    assert turn(stopping(StopCause.PREEMPTED, spec=gang), held()) == ()
    assert turn(stopping(StopCause.PREEMPTED, spec=gang), held(), now_s=130.0) == (RemoveGroups(W, 1, (0,)),)
    assert turn(stopping(StopCause.CANCELLED, spec=gang), held()) == (RemoveGroups(W, 1, (0,)),)
    assert end_of(turn(stopping(StopCause.LEASE_LAPSED, spec=gang), None)).move is Move.CANCELLED


# ---------------------------------------------------------------- growing and shrinking


SURPLUS = seat("n2", 2, surplus=1)
FOUR = replace(SURPLUS, phase=MemberPhase.READY, group_id="g1")


def grown(allocation: Allocation, member: Member) -> Allocation:
    return replace(allocation, members=(*allocation.members, member))


def test_a_growth_makes_its_group_and_then_shows_in_the_grant() -> None:
    work = running(placement=(*seats("n1", 2), SURPLUS))
    runner = view(running(), held())
    assert turn(work, grown(held(), SURPLUS), runner) == (CreateGroups(W, 1, (1,)),)
    (action,) = turn(work, grown(held(), FOUR), runner)
    assert isinstance(action, UpdateRunner)
    assert [(s.surplus, s.bundle_index, s.group_id) for s in action.grant.seats] == [
        (0, 0, "g0"),
        (0, 1, "g0"),
        (1, 0, "g1"),
    ]


def test_a_growth_that_was_never_committed_is_given_back() -> None:
    actions = turn(running(), grown(held(), SURPLUS), view(running(), held()))
    assert actions == (MarkReleasing(W, 1, (1,)), RemoveGroups(W, 1, (1,)))


def test_a_shrink_is_told_waits_until_it_is_applied_and_is_forced_at_its_deadline() -> None:
    before = running(placement=(*seats("n1", 2), SURPLUS))
    work = running(release_by_s=120.0)
    leaving = grown(held(), replace(FOUR, phase=MemberPhase.RELEASING))
    first = turn(work, grown(held(), FOUR), view(before, grown(held(), FOUR)))
    assert [type(action) for action in first] == [UpdateRunner, MarkReleasing]
    told = view(work, leaving, applied_version=3)
    assert turn(work, leaving, told) == ()
    assert turn(work, leaving, replace(told, applied_version=4)) == (RemoveGroups(W, 1, (1,)),)
    assert turn(work, leaving, told, now_s=120.0) == (RemoveGroups(W, 1, (1,)),)
    assert turn(work, held(), view(work, leaving)) == ()  # the end of a shrink is no news to the runner


def test_a_surplus_seat_that_could_not_be_had_is_taken_out_of_the_commitment() -> None:
    work = running(placement=(*seats("n1", 2), SURPLUS))
    given_up = grown(held(), replace(SURPLUS, phase=MemberPhase.RELEASING))
    block, reseat = turn(work, given_up, view(work, given_up))
    assert isinstance(block, BlockNodes) and block.nodes == ("n2",)
    assert isinstance(reseat, Reseat) and (reseat.members, reseat.resize.remove) == (seats("n1", 2), (1,))


# ---------------------------------------------------------------- Serve


REPLICAS = tuple(seat("n1" if n < 3 else "n2", n - 1, surplus=n) for n in (1, 2, 3))


def serving(placement: tuple[Member, ...] = REPLICAS, release_by_s: float | None = None) -> Workload:
    return running(Kind.SERVE, placement=placement, release_by_s=release_by_s)


def replicas(*phases: MemberPhase) -> Allocation:
    members = tuple(replace(m, phase=p, group_id=f"g{m.surplus}") for m, p in zip(REPLICAS, phases, strict=True))
    return Allocation(W, 1, members, 99.0, 130.0, gang=(1,))


READY, LEAVING = MemberPhase.READY, MemberPhase.RELEASING


def used(*numbers: int) -> tuple[SeatInUse, ...]:
    return tuple(SeatInUse("worker", REPLICAS[n - 1].node, f"g{n}") for n in numbers)


def test_serve_gave_up_another_replica_the_books_and_then_the_commitment_follow() -> None:
    work = serving(REPLICAS[:2], release_by_s=150.0)
    books = replicas(READY, READY, LEAVING)
    runner = view(work, books, in_use=used(1, 3))
    assert turn(work, books, runner) == (Rebind(W, 1, used(1, 3)),)
    swapped = replace(
        books,
        members=(
            books.members[0],
            replace(books.members[1], node=NodeId("n2"), group_id="g3"),
            replace(books.members[2], node=N1, group_id=""),
        ),
    )
    update, reseat = turn(work, swapped, runner)
    assert isinstance(update, UpdateRunner) and [s.node_id for s in update.grant.seats] == ["n1", "n2"]
    assert isinstance(reseat, Reseat) and [(m.surplus, m.node) for m in reseat.members] == [(1, "n1"), (2, "n2")]
    followed = replace(work, placement=reseat.members)
    assert turn(followed, swapped, view(followed, swapped, in_use=used(1, 3))) == (RemoveGroups(W, 1, (3,)),)


def test_a_new_seat_does_not_follow_old_news_of_a_replica_to_a_lost_node() -> None:
    # Replica 1 was on n3, which is lost, and its seat is given up; the runner has not said yet that it has left it.
    seat = replace(REPLICAS[2], node=NodeId("n1"))
    work = serving((REPLICAS[1], seat))
    books = replicas(READY, READY, READY)
    books = replace(books, members=(books.members[1], seat))
    runner = view(work, books, in_use=(replace(used(1)[0], node_id="n3"), *used(2)))
    there = (node("n1"), node("n2"), node("n3"))
    assert any(isinstance(action, Rebind) for action in turn(work, books, runner, nodes=there))
    for lost in (there[:2], (*there[:2], replace(there[2], health=NodeHealth.LOST))):
        assert not any(isinstance(action, Rebind) for action in turn(work, books, runner, nodes=lost))


def test_a_replica_that_is_still_used_is_not_taken_before_the_deadline() -> None:
    work = serving(REPLICAS[:2], release_by_s=150.0)
    books = replicas(READY, READY, LEAVING)
    runner = view(work, books, in_use=used(1, 2, 3), applied_version=3)
    assert turn(work, books, runner) == ()
    assert turn(work, books, runner, now_s=150.0) == (RemoveGroups(W, 1, (3,)),)


def test_no_seat_of_serve_is_taken_that_its_grant_still_shows() -> None:
    before, work = serving(), serving(REPLICAS[:2], release_by_s=150.0)
    empty = replace(replicas(READY, READY, LEAVING), members=(*REPLICAS[:2], replace(REPLICAS[2], phase=LEAVING)))
    old = view(before, replicas(READY, READY, READY), in_use=used(1, 2), applied_version=4)
    (update,) = [a for a in turn(work, empty, old, now_s=150.0) if not isinstance(a, Rebind)]
    assert isinstance(update, UpdateRunner)  # Serve may be making a group there by the old grant, deadline or not
    books = replicas(READY, READY, LEAVING)
    told = view(work, books, in_use=used(1, 2), applied_version=3)
    assert turn(work, books, told, now_s=149.0) == (Rebind(W, 1, used(1, 2)),)
    seated = replace(books, members=(*books.members[:2], replace(books.members[2], group_id="")))
    assert turn(work, seated, told, now_s=150.0) == (RemoveGroups(W, 1, (3,)),)


def test_no_seat_of_serve_is_taken_in_the_turn_in_which_its_books_follow() -> None:
    work = serving(REPLICAS[:2], release_by_s=150.0)
    books = replicas(READY, READY, LEAVING)
    runner = view(work, books, in_use=used(1, 3))
    assert turn(work, books, runner, now_s=150.0) == (Rebind(W, 1, used(1, 3)),)


def test_a_leaving_seat_on_a_lost_node_is_taken_at_once() -> None:
    work = serving(REPLICAS[:2], release_by_s=150.0)
    books = replicas(READY, READY, LEAVING)
    runner = view(work, books, in_use=used(1, 2, 3), applied_version=3)
    lost = (node("n1"), replace(node("n2"), health=NodeHealth.LOST))
    assert turn(work, books, runner, lost) == (RemoveGroups(W, 1, (3,)),)


def test_a_runner_that_has_not_said_what_serve_uses_takes_nothing_away() -> None:
    work = serving(REPLICAS[:2], release_by_s=150.0)
    books = replicas(READY, READY, LEAVING)
    assert turn(work, books, view(work, books, in_use=None)) == ()


def test_a_lost_replica_is_taken_out_of_the_commitment() -> None:
    work = serving()
    books = replicas(READY, READY, READY)
    lost = (node("n1"), replace(node("n2"), health=NodeHealth.LOST))
    actions = turn(work, books, view(work, books, in_use=used(1, 2, 3)), lost)
    (reseat,) = [action for action in actions if isinstance(action, Reseat)]
    assert [m.surplus for m in reseat.members] == [1, 2]


# ---------------------------------------------------------------- grants


def test_a_grant_shows_only_seats_that_are_committed_and_exist() -> None:
    work = running(placement=(*seats("n1", 2), SURPLUS))
    for member, count in ((SURPLUS, 2), (replace(SURPLUS, phase=MemberPhase.CREATING), 2), (FOUR, 3)):
        assert len(grant_for(work, grown(held(), member), 10.0).seats) == count
    assert len(grant_for(running(), grown(held(), FOUR), 10.0).seats) == 2


def test_same_grant_looks_at_what_matters() -> None:
    one = grant_for(running(), held(), 10.0)
    assert same_grant(Kind.TRAIN, replace(one, version=9), one)
    assert not same_grant(Kind.TRAIN, None, one)
    assert not same_grant(Kind.TRAIN, replace(one, seats=one.seats[:1]), one)
    renamed: Grant = replace(one, seats=tuple(replace(s, group_id="x") for s in one.seats))
    assert same_grant(Kind.SERVE, renamed, one) and not same_grant(Kind.TRAIN, renamed, one)
    assert same_grant(Kind.TRAIN, replace(one, release_by_s=5.0), one)
    assert not same_grant(Kind.TRAIN, one, replace(one, release_by_s=5.0))
