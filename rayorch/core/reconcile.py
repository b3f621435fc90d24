"""From what is committed, held and running to the next actions, computed anew each turn.

Level-triggered: nothing is remembered between turns, so a restart of anything loses nothing, and an action that is
repeated is harmless. The order inside one attempt:

    start   Started ─▶ CreateGroups ─▶ StartRunner ─▶ MarkReady
    shrink  Resized ─▶ MarkReleasing, UpdateRunner ─▶ (applied, or the deadline) RemoveGroups
    stop    StopOrdered ─▶ UpdateRunner ─▶ (ended, or the deadline) KillRunner ─▶ RemoveGroups ─▶ EndAttempt

An attempt is journalled as ended only when it holds nothing: a new one can't start beside its leftovers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rayorch.core.actions import Action as Action
from rayorch.core.actions import BlockNodes as BlockNodes
from rayorch.core.actions import CreateGroups as CreateGroups
from rayorch.core.actions import DropReservation as DropReservation
from rayorch.core.actions import EndAttempt as EndAttempt
from rayorch.core.actions import KillRunner as KillRunner
from rayorch.core.actions import MarkReady as MarkReady
from rayorch.core.actions import MarkReleasing as MarkReleasing
from rayorch.core.actions import Rebind as Rebind
from rayorch.core.actions import RemoveGroups as RemoveGroups
from rayorch.core.actions import Reseat as Reseat
from rayorch.core.actions import StartRunner as StartRunner
from rayorch.core.actions import UpdateRunner as UpdateRunner
from rayorch.core.allocations import bind_seats
from rayorch.core.bound_devices import news_of
from rayorch.core.decisions import Resize
from rayorch.core.endings import Facts, ending, runner_existed
from rayorch.core.events import AttemptEnded
from rayorch.core.policy import Profile
from rayorch.core.reports import SeatInUse
from rayorch.core.runners import RunnerKey as RunnerKey
from rayorch.core.runners import RunnerPhase as RunnerPhase
from rayorch.core.runners import RunnerView as RunnerView
from rayorch.core.runners import grant_for as grant_for
from rayorch.core.runners import same_grant
from rayorch.core.snapshot import Snapshot
from rayorch.core.types import (
    LIVE,
    Allocation,
    Kind,
    Member,
    MemberPhase,
    NodeHealth,
    NodeId,
    NodeSpec,
    State,
    StopCause,
    Workload,
    WorkloadId,
)

# ---------------------------------------------------------------- the turn


@dataclass(frozen=True, slots=True)
class Known:
    """What is known at `now_s`, by id. `workloads`: at least those that are live. `runners` is complete: an attempt
    that is not in it was looked for and has no runner."""

    workloads: Mapping[WorkloadId, Workload]
    held: Mapping[RunnerKey, Allocation]
    runners: Mapping[RunnerKey, RunnerView]
    nodes: Mapping[NodeId, NodeSpec]
    now_s: float
    profile: Profile

    def live(self, key: RunnerKey) -> Workload | None:
        """The workload of this attempt, while the attempt is the current one and has not ended."""
        workload = self.workloads.get(key[0])
        if workload is None or workload.attempt != key[1] or workload.state not in LIVE:
            return None
        return workload

    def facts(self, workload: Workload) -> Facts:
        """All about its current attempt."""
        key, nodes, places = (workload.id, workload.attempt), self.nodes, {m.node for m in workload.placement}
        return Facts(
            workload=workload,
            allocation=self.held.get(key),
            view=self.runners.get(key),
            lost=tuple(sorted(n for n in places if n in nodes and nodes[n].health is NodeHealth.LOST)),
            missing=tuple(sorted(n for n in places if nodes and n not in nodes)),
            now_s=self.now_s,
            profile=self.profile,
            nodes=nodes,
        )


def reconcile(snapshot: Snapshot, runners: Mapping[RunnerKey, RunnerView], profile: Profile) -> tuple[Action, ...]:
    """The next actions. `runners` is complete: an attempt that is not in it was looked for and has no runner.

    Nothing is done while the allocator has not compared its books with the world (`snapshot.synced`): what looks
    missing may only be unknown yet.
    """
    if not snapshot.synced:
        return ()
    known = Known(
        workloads={w.id: w for w in snapshot.workloads if w.state in LIVE},
        held={(a.workload, a.attempt): a for a in snapshot.allocations},
        runners=runners,
        nodes={node.id: node for node in snapshot.nodes},
        now_s=snapshot.now_s,
        profile=profile,
    )
    live = {(w.id, w.attempt) for w in known.workloads.values()}
    return tuple(action for _, action in actions_for(known, live | known.held.keys() | runners.keys()))


def actions_for(known: Known, keys: Iterable[RunnerKey]) -> list[tuple[RunnerKey, Action]]:
    """The next actions for these attempts, each with its attempt: what is left of ended ones comes first."""
    live: list[tuple[RunnerKey, Workload]] = []
    left: list[tuple[RunnerKey, Action]] = []
    kills: list[tuple[RunnerKey, Action]] = []
    for key in sorted(keys):
        workload = known.live(key)
        if workload is not None:
            live.append((key, workload))
            continue
        allocation, view = known.held.get(key), known.runners.get(key)
        if allocation is not None:
            left.append((key, _give_back(allocation)))
        if view is not None and view.phase is not RunnerPhase.GONE:
            kills.append((key, KillRunner(*key, "the attempt is over")))
    made = [(key, action) for key, workload in live for action in _attempt(known.facts(workload))]
    return [*left, *kills, *made]


def _give_back(allocation: Allocation) -> Action:
    """Seats of an attempt that is not a live one: never committed, or left over."""
    if all(m.phase is MemberPhase.RESERVED for m in allocation.members):
        return DropReservation(allocation.workload, allocation.attempt)
    return RemoveGroups(allocation.workload, allocation.attempt, _numbers(allocation.members))


def _attempt(facts: Facts) -> list[Action]:
    blocks = _block_failed(facts)
    end = ending(facts)
    if end is not None:
        return [*blocks, *_wind_up(facts, end)]
    if facts.allocation is None or facts.workload.state is State.STOPPING:
        return [*blocks, *_stop_runner(facts)]
    followed = _follow_serve(facts, facts.allocation)
    moving = any(isinstance(action, Rebind) for action in followed)
    return [
        *blocks,
        *_make_groups(facts, facts.allocation),
        *_run(facts, facts.allocation),
        *followed,
        *_follow_devices(facts, facts.allocation),
        # Which of Serve's seats are empty is only known when the books have followed.
        *(_shrink(facts, facts.allocation) if not moving else ()),
        *_drop_failed_seats(facts, facts.allocation),
    ]


def _wind_up(facts: Facts, end: AttemptEnded) -> list[Action]:
    """The attempt is over: end what is left of it, and only then say so."""
    workload = facts.workload
    left: list[Action] = []
    if facts.alive:
        left.append(KillRunner(workload.id, workload.attempt, end.reason))
    if facts.allocation is not None:
        left.append(RemoveGroups(workload.id, workload.attempt, _numbers(facts.allocation.members)))
    return left or [EndAttempt(end)]


def _stop_runner(facts: Facts) -> list[Action]:
    """Tell the runner to stop; at the deadline, make it."""
    workload, view = facts.workload, facts.view
    if view is None or not view.phase.alive:
        return []
    order = workload.stop
    if order is None or facts.now_s >= order.deadline_s:
        reason = order.reason if order is not None else "its seats are gone"
        return [KillRunner(workload.id, workload.attempt, f"deadline: {reason}")]
    return _update_runner(facts)


# ---------------------------------------------------------------- a running attempt


def _make_groups(facts: Facts, allocation: Allocation) -> list[Action]:
    workload = facts.workload
    if workload.spec.kind is Kind.SERVE or allocation.failed:
        return []
    placed = set(_numbers(workload.placement))
    wanted = [m for m in allocation.members if m.surplus in placed and m.phase is MemberPhase.RESERVED]
    return [CreateGroups(workload.id, workload.attempt, _numbers(tuple(wanted)))] if wanted else []


def _block_failed(facts: Facts) -> list[Action]:
    """Block nodes on which a group could not be made, whatever has become of the attempt since."""
    allocation, order = facts.allocation, facts.workload.stop
    if allocation is None or facts.workload.spec.kind is Kind.SERVE:
        return []
    not_started = order is not None and order.cause is StopCause.START_FAILED
    if allocation.failed or not_started:
        waiting = {m.node for m in allocation.members if m.surplus in allocation.gang and not m.group_id}
        return _block(waiting, allocation.failed or "a placement group was not ready in time", facts)
    failed = {m.node for m in allocation.members if not m.group_id and _failed_seat(facts, m)}
    return _block(failed, "a placement group could not be made here", facts)


def _block(nodes: set[NodeId], reason: str, facts: Facts) -> list[Action]:
    """Block nodes that are not blocked yet."""
    there = [facts.nodes[id] for id in sorted(nodes) if id in facts.nodes]
    chosen = tuple(n.id for n in there if n.health is not NodeHealth.LOST and n.blocked_until_s <= facts.now_s)
    return [BlockNodes(chosen, facts.now_s + facts.profile.block_node_s, reason)] if chosen else []


def _run(facts: Facts, allocation: Allocation) -> list[Action]:
    """Start the runner once its seats are there, and keep its grant what it should be."""
    workload, view = facts.workload, facts.view
    if workload.spec.kind is Kind.GANG:
        begun = allocation.ready and workload.ready_s is None
        return [MarkReady(workload.id, workload.attempt)] if begun else []
    if view is None:
        seated = allocation.ready or workload.spec.kind is Kind.SERVE
        if not seated or allocation.failed or runner_existed(facts):
            return []
        grant = grant_for(workload, allocation, facts.profile.lease_s)
        return [StartRunner(workload.id, workload.attempt, grant)]
    actions = _update_runner(facts)
    if view.phase is RunnerPhase.RUNNING and workload.ready_s is None:
        actions.append(MarkReady(workload.id, workload.attempt))
    return actions


def _update_runner(facts: Facts) -> list[Action]:
    workload, view = facts.workload, facts.view
    if facts.allocation is None or view is None or not view.phase.alive:
        return []
    grant = grant_for(workload, facts.allocation, facts.profile.lease_s)
    if same_grant(workload.spec.kind, view.grant, grant):
        return []
    return [UpdateRunner(workload.id, workload.attempt, grant)]


def _shrink(facts: Facts, allocation: Allocation) -> list[Action]:
    """Take back the seats that the attempt was told to leave, as soon as it has left them or its time is over."""
    workload = facts.workload
    placed = set(_numbers(workload.placement))
    leaving = tuple(m for m in allocation.members if m.surplus not in placed)
    if not leaving:
        return []
    actions: list[Action] = []
    unmarked = tuple(m for m in leaving if m.phase is not MemberPhase.RELEASING)
    if unmarked:
        actions.append(MarkReleasing(workload.id, workload.attempt, _numbers(unmarked)))
    gone = tuple(m for m in leaving if _left(facts, allocation, m))
    if gone:
        actions.append(RemoveGroups(workload.id, workload.attempt, _numbers(gone)))
    return actions


def _left(facts: Facts, allocation: Allocation, member: Member) -> bool:
    """Whether a leaving seat may be taken: never used, left, or its deadline is over.

    Serve makes a replica's group wherever its grant says that there is a seat, so that of its seats none is free before
    the grant without it has been passed on, whatever the time.
    """
    workload, view = facts.workload, facts.view
    serve = workload.spec.kind is Kind.SERVE
    node = facts.nodes.get(member.node)
    if (not member.group_id and not serve) or (node is not None and node.health is NodeHealth.LOST):
        return True
    late = workload.release_by_s is not None and facts.now_s >= workload.release_by_s
    if view is None or not view.phase.alive:
        return late or view is not None
    wanted = grant_for(workload, allocation, facts.profile.lease_s)
    told = view.grant is not None and same_grant(workload.spec.kind, view.grant, wanted)
    applied = told and view.grant is not None and view.applied_version >= view.grant.version
    if not serve:
        return late or applied
    used = {seat.group_id for seat in view.in_use} if view.in_use is not None else None
    return told and (late or (applied and used is not None and member.group_id not in used))


def _follow_serve(facts: Facts, allocation: Allocation) -> list[Action]:
    """Serve chooses which seat it leaves: the books follow, and then the commitment follows the books."""
    workload, view = facts.workload, facts.view
    if workload.spec.kind is not Kind.SERVE or view is None or view.in_use is None or not view.phase.alive:
        return []
    known = {member.group_id for member in allocation.members}
    in_use = tuple(seat for seat in view.in_use if seat.group_id in known or _may_stand(facts, seat))
    if bind_seats(allocation, in_use) != allocation.members:
        return [Rebind(workload.id, workload.attempt, in_use)]
    placed = set(_numbers(workload.placement))
    seats = tuple(m for m in allocation.members if m.surplus in placed)
    same = [(m.surplus, m.node) for m in seats] == [(m.surplus, m.node) for m in workload.placement]
    if same or _numbers(seats) != _numbers(workload.placement):
        return []
    return [_reseat(facts, seats, (), "Serve's replicas are on other seats than planned")]


def _may_stand(facts: Facts, seat: SeatInUse) -> bool:
    """Whether a replica may still be where it was seen; the news may be older than the loss of its node.

    A seat that followed it there would leave the room of its own node to others, while its grant still shows that.
    """
    node = facts.nodes.get(NodeId(seat.node_id))
    return not facts.nodes or (node is not None and node.health is not NodeHealth.LOST)


def _follow_devices(facts: Facts, allocation: Allocation) -> list[Action]:
    """What Ray has bound is known from those who run there: the books follow."""
    workload, view = facts.workload, facts.view
    if workload.spec.kind is Kind.SERVE or view is None or not view.in_use or not view.phase.alive:
        return []
    return [Rebind(workload.id, workload.attempt, view.in_use)] if news_of(allocation, view.in_use) else []


def _drop_failed_seats(facts: Facts, allocation: Allocation) -> list[Action]:
    """A committed surplus seat that can't be had is taken out of the commitment."""
    failed = tuple(m for m in allocation.members if _failed_seat(facts, m))
    held = set(_numbers(allocation.members))
    gone = tuple(m for m in facts.workload.placement if m.surplus not in held)
    if not failed and not gone:
        return []
    dropped = set(_numbers((*failed, *gone)))
    if dropped & set(allocation.gang):
        return []  # without its minimum the attempt is ended, not shrunk
    left = tuple(m for m in facts.workload.placement if m.surplus not in dropped)
    return [_reseat(facts, left, tuple(sorted(dropped)), "its surplus seat could not be had")]


def _failed_seat(facts: Facts, member: Member) -> bool:
    """Committed, but given up by the allocator, or (Serve) on a lost node."""
    assert facts.allocation is not None
    if member.surplus in facts.allocation.gang or member.surplus not in _numbers(facts.workload.placement):
        return False
    on_lost_node = member.node in facts.lost and facts.workload.spec.kind is Kind.SERVE
    return member.phase is MemberPhase.RELEASING or on_lost_node


def _reseat(facts: Facts, members: tuple[Member, ...], removed: tuple[int, ...], reason: str) -> Reseat:
    resize = Resize(facts.workload.id, facts.workload.attempt, (), removed, reason)
    return Reseat(resize, members)


def _numbers(members: tuple[Member, ...]) -> tuple[int, ...]:
    """The surplus numbers, each once."""
    return tuple(sorted({m.surplus for m in members}))
