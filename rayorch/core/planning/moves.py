"""Stage 7, last of all: running gangs are moved by the profile's `moves` policy, so that less is stranded.

The policy says which seats go where (`core.moves`); what follows from it is as with every other move: the gang is told
to stop, has its grace to save its work, its new seats are kept free while it leaves, and with these it goes before all
others when it is back in its queue. A gang is only moved to room that is free at this moment and promised to nobody, so
that no move waits for another.

Nobody is moved who has no room to come back to, whose restart costs much or who has been moved or started a short
while ago; and only so many in so much time (`DefragmentKnobs`). How many were moved lately is told by the workloads
themselves: each knows when and why its last attempt ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rayorch.core.decisions import Reserve, Stop
from rayorch.core.moves import Mover, MovesView, Step, moves_somebody
from rayorch.core.placement import NodeView
from rayorch.core.planning.adapt import coveted
from rayorch.core.planning.cells import stays_put
from rayorch.core.planning.charges import fits_quota, refund_quota
from rayorch.core.planning.claims import Claim, next_start
from rayorch.core.planning.draft import Draft
from rayorch.core.planning.groups import Cell
from rayorch.core.planning.repair import keeps_to
from rayorch.core.planning.rights import comes_back, settling
from rayorch.core.resources import gpus_of_model
from rayorch.core.room import Room
from rayorch.core.sharing import device_need
from rayorch.core.types import (
    UNIT,
    Allocation,
    Kind,
    Member,
    MemberPhase,
    NodeId,
    QueueId,
    Resources,
    State,
    StopCause,
    StopOrder,
    Workload,
    WorkloadId,
)

NODES_LOOKED_AT = 2_000
"""Of more nodes only those are looked at that have most free which is not a whole device, the first by id."""


def move(draft: Draft) -> None:
    """Order the moves that the policy wants, as far as they are allowed."""
    facts, knobs = draft.facts, draft.facts.profile.defragment
    if (
        not moves_somebody(facts.profile.moves)
        or not facts.placement.classes
        or not facts.snapshot.synced
        or draft.moved
    ):
        return
    if draft.unplaced and not knobs.while_waiting:
        return
    most = _most(draft)
    if most <= 0:
        return
    nodes = _nodes(draft)
    movers = _movers(draft, nodes)
    if not movers:
        return
    view = MovesView(
        nodes=nodes,
        targets=_targets(draft, nodes),
        movers=tuple(movers),
        placement=facts.placement,
        device=facts.profile.device,
        most=most,
        worth_s=knobs.worth_s,
        least_gain=knobs.least_gain,
        allows=_Rules(draft).allows,
        seed=knobs.seed,
    )
    _order_all(draft, view, facts.profile.moves(view))


# ---------------------------------------------------------------- how many


def _most(draft: Draft) -> int:
    """How many gangs may be moved in this turn: what the window, and the pace, leave."""
    facts, knobs = draft.facts, draft.facts.profile.defragment
    running, recent = 0, 0
    for id in facts.live_ids:
        workload = facts.workloads[id]
        running += workload.state is State.RUNNING
        moved_s = _moved_s(workload)
        if moved_s is not None and facts.now_s - moved_s < knobs.window_s:
            if facts.now_s - moved_s < knobs.every_s:
                return 0
            recent += 1
    for id in sorted(facts.repairs):
        workload = facts.workloads[id]
        if workload.state is State.PENDING and workload.last_cause is StopCause.MOVED:
            return 0  # the last ones are not back yet
    return min(knobs.per_turn, max(1, int(knobs.most * running)) - recent)


def _moved_s(workload: Workload) -> float | None:
    """When the workload was last moved, or told to; None: it was not."""
    if workload.stop is not None and workload.stop.cause is StopCause.MOVED:
        return workload.stop.ordered_s
    return workload.requeued_s if workload.last_cause is StopCause.MOVED else None


# ---------------------------------------------------------------- who, and where


def _nodes(draft: Draft) -> dict[NodeId, NodeView]:
    """The nodes that count, with what is free there soon; those where more is held than there is are left out."""
    facts, room = draft.facts, draft.soon.room
    found: list[tuple[int, NodeId]] = []
    for id in facts.topology.nodes:
        if not room.usable(id):
            continue
        slot = room.slot(id)
        if min((*slot.left, *slot.amounts.values()), default=0) >= 0:
            broken = sum(units for units in slot.devices if units < UNIT)
            found.append((-broken, id))
    if len(found) > NODES_LOOKED_AT:
        found = sorted(found)[:NODES_LOOKED_AT]
    return {id: facts.node_view(id, room.slot(id)) for _, id in sorted(found, key=lambda item: item[1])}


def _targets(draft: Draft, nodes: Iterable[NodeId]) -> frozenset[NodeId]:
    """Open nodes on which nothing is under way, and that nobody who waits could use."""
    now, soon, closed = draft.now.room, draft.soon.room, draft.closed
    taken = coveted(draft)

    def is_quiet(id: NodeId) -> bool:
        one, other = now.slot(id), soon.slot(id)
        return one is other or (one.left == other.left and one.amounts == other.amounts)

    return frozenset(id for id in nodes if id not in closed and id not in taken and is_quiet(id))


def _movers(draft: Draft, nodes: dict[NodeId, NodeView]) -> list[Mover]:
    """Who may be moved, by id."""
    facts = draft.facts
    found: list[Mover] = []
    for id in facts.live_ids:
        workload, allocation = facts.workloads[id], facts.held[id]
        if not _may_move(draft, workload, allocation) or not all(m.node in nodes for m in allocation.members):
            continue
        cost_gpu_s = facts.profile.victims(workload, allocation, facts.now_s)
        if cost_gpu_s > facts.profile.defragment.most_lost_s * (allocation.held.gpu_units / UNIT or 1.0):
            continue
        seats = _in_order(workload, allocation.members)
        if seats:
            found.append(Mover(workload.id, seats, cost_gpu_s, _models(draft, workload, seats)))
    return found


def _in_order(workload: Workload, members: tuple[Member, ...]) -> tuple[Member, ...]:
    """The members in the order in which a start asks for them; none where it might ask for others."""
    if len(members) == 1 and len(workload.spec.roles) == 1:
        return members
    claim = next_start(workload)
    held = {(m.role, m.index): m for m in members}
    if claim.others or (claim.shape.layout is not None and claim.shape.layout.has_channels):
        return ()
    if len(held) != len(claim.asks) or any((ask.role, ask.index) not in held for ask in claim.asks):
        return ()
    return tuple(held[ask.role, ask.index] for ask in claim.asks)


def _may_move(draft: Draft, workload: Workload, allocation: Allocation) -> bool:
    """Whether it is a gang of plain seats that runs undisturbed, with its minimum alone, and has rested."""
    spec, now_s, knobs = workload.spec, draft.facts.now_s, draft.facts.profile.defragment
    if workload.state is not State.RUNNING or workload.ready_s is None or spec.kind in (Kind.SERVE, Kind.GANG):
        return False
    if now_s - (workload.started_s or 0.0) < knobs.cooldown_s or spec.reservation or spec.joint is not None:
        return False
    if workload.last_cause is StopCause.MOVED and now_s - (workload.requeued_s or 0.0) < knobs.cooldown_s:
        return False
    id = workload.id
    if id in draft.protected or id in draft.stops or id in draft.removals or id in draft.added:
        return False
    if settling(draft, workload) or stays_put(draft, workload):
        return False
    return comes_back(draft, workload) and all(
        m.phase is MemberPhase.READY and m.surplus in allocation.gang and device_need(m.bundle).plain
        for m in allocation.members
    )


def _models(draft: Draft, workload: Workload, seats: tuple[Member, ...]) -> tuple[str, ...]:
    """The models that will do: that which it has, or those that it names without preferring any; none: all."""
    spec = workload.spec
    if not any(member.bundle.gpu_units for member in seats):
        return ()
    if draft.facts.profile.defragment.across_models and (not spec.accelerators or spec.any_model) and len(seats) == 1:
        return spec.accelerators
    models = draft.facts.topology.models
    return tuple(sorted({models.get(member.node, "") for member in seats if member.bundle.gpu_units}))


@dataclass(slots=True)
class _Rules:
    """Where gangs may lie: as they must, and nowhere less close together than they do."""

    draft: Draft
    claims: dict[WorkloadId, Claim] = field(default_factory=dict)
    fits: dict[tuple[QueueId, Resources], bool] = field(default_factory=dict)

    def allows(self, mover: Mover, nodes: tuple[NodeId, ...]) -> bool:
        """See MovesView."""
        workload = self.draft.facts.workloads[mover.id]
        topology = self.draft.facts.topology
        if not self._model_fits(workload, mover, nodes):
            return False
        if len(nodes) == 1 and workload.spec.topology.required is None:
            return True
        claim = self._claim(workload)
        if not keeps_to(claim.shape.layout or Cell(claim.shape.topology, claim.shape.bundles), nodes, topology):
            return False
        if len(nodes) > 1:
            before, after = self._domains(tuple(m.node for m in mover.members)), self._domains(nodes)
            return not any(after[level] > before.get(level, 0) for level in after)
        return True

    def _claim(self, workload: Workload) -> Claim:
        found = self.claims.get(workload.id)
        if found is None:
            found = self.claims[workload.id] = next_start(workload)
        return found

    def _domains(self, nodes: tuple[NodeId, ...]) -> dict[str, int]:
        """How many domains of each level they are in."""
        found: dict[str, set[str]] = {}
        for node in nodes:
            for level, name in self.draft.facts.topology.paths.get(node, ()):
                found.setdefault(level, set()).add(name)
        return {level: len(names) for level, names in found.items()}

    def _model_fits(self, workload: Workload, mover: Mover, nodes: tuple[NodeId, ...]) -> bool:
        """Whether limits of its queue on another model of GPU leave room; only a single seat may have another one."""
        units, models = mover.members[0].bundle.gpu_units, self.draft.facts.topology.models
        if len(nodes) > 1 or not units or models.get(nodes[0]) == models.get(mover.members[0].node):
            return True
        more = gpus_of_model(models.get(nodes[0], ""), units)
        key = workload.spec.queue, more
        if key not in self.fits:
            self.fits[key] = all(books.quota.fits(key[0], more) for books in self.draft.both)
        return self.fits[key]


# ---------------------------------------------------------------- the orders


def _order_all(draft: Draft, view: MovesView, steps: tuple[Step, ...]) -> None:
    """Stop who is moved and promise it its seats, gang by gang; what breaks a rule is left out.

    The policy is somebody's function: it is not taken at its word.
    """
    movers = {mover.id: mover for mover in view.movers}
    by_gang: dict[WorkloadId, list[Step]] = {}
    for step in steps:
        by_gang.setdefault(step.mover, []).append(step)
    for id, ours in list(by_gang.items())[: view.most]:
        mover = movers.get(id)
        if mover is None or any(step.seat not in range(len(mover.members)) for step in ours):
            continue
        nodes = [member.node for member in mover.members]
        for step in ours:
            nodes[step.seat] = step.node
        if not view.allows(mover, tuple(nodes)) or not _have_room(draft, view, mover, nodes):
            continue
        claim = draft.prices.of_claim(next_start(draft.facts.workloads[id]))
        if _may_return(draft, mover, claim):
            _order(draft, view, mover, claim, tuple(nodes), sum(step.gain for step in ours))


def _have_room(draft: Draft, view: MovesView, mover: Mover, nodes: list[NodeId]) -> bool:
    """Whether all seats that change have room which is free now, beside each other, and the others are as they were."""
    if not any(node != member.node for node, member in zip(nodes, mover.members, strict=True)):
        return False
    rooms = [books.room.copy() for books in draft.both]
    for node, member in zip(nodes, mover.members, strict=True):
        if node == member.node:
            continue
        if node not in view.targets or (mover.models and member.bundle.gpu_units and not _of(draft, node, mover)):
            return False
        if not _take(rooms, node, member):
            return False
    return True


def _may_return(draft: Draft, mover: Mover, claim: Claim) -> bool:
    """Whether what it gives back is enough quota for it to start again: limits may have been lowered since."""
    workload, quota = draft.facts.workloads[mover.id], draft.soon.quota.copy()
    refund_quota(workload, mover.members, True, quota)
    return fits_quota(claim, quota)


def _of(draft: Draft, node: NodeId, mover: Mover) -> bool:
    return draft.facts.topology.models.get(node, "") in mover.models


def _take(rooms: list[Room], node: NodeId, member: Member) -> bool:
    for room in rooms:
        if not room.fits(node, member.bundle):
            return False
        room.take(node, member.bundle)
    return True


def _order(draft: Draft, view: MovesView, mover: Mover, claim: Claim, nodes: tuple[NodeId, ...], gain: float) -> None:
    workload, now_s = draft.facts.workloads[mover.id], draft.facts.now_s
    reason = (
        f"moved so that less of what is free is stranded: {gain:.2f} GPUs, worth {gain * view.worth_s:.0f} "
        f"GPU-seconds; {mover.cost_gpu_s:.0f} are lost"
    )
    seats = tuple((ask.role, ask.index, str(node)) for ask, node in zip(claim.asks, nodes, strict=True))
    by_s = now_s + workload.spec.grace_s
    order = StopOrder(StopCause.MOVED, reason, now_s, by_s, workload.id, seats, gain)
    draft.stop(Stop(workload.id, workload.attempt, order, mover.cost_gpu_s))
    members = draft.charge(claim, nodes, draft.soon)
    draft.moved.append(Reserve(workload.id, members, True, f"its seats when it has been {reason}"))
