"""Moves: running gangs change their seats so that what is free lies together. Nobody loses its place by it.

*Consolidation* (stage 6, before anybody is evicted): a gang that would fit into what is free, if only that lay
together, gets its seats by moves of others, when its start is worth more than the moves cost. *Defragmentation* (stage
7, last): when nobody waits, a node that is little used is emptied into others, when a whole free node is worth more.

Only gangs are moved that have just saved their work, have run long enough since they were started (so that nothing is
moved to and fro) and hold their minimum alone; everything that is moved has its new seats in the same plan. While it
leaves, these are kept for it, and when it is back in its queue it goes before others for a while. Differs from KAI's
consolidation in that costs count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rayorch.core.decisions import Reserve, Stop
from rayorch.core.planning.bargain import cheapest, survey
from rayorch.core.planning.cells import stays_put
from rayorch.core.planning.charges import fits_quota
from rayorch.core.planning.claims import Claim, next_start
from rayorch.core.planning.draft import Draft
from rayorch.core.planning.rights import comes_back, settling
from rayorch.core.planning.seats import find
from rayorch.core.planning.takings import Move
from rayorch.core.room import Room
from rayorch.core.types import (
    UNIT,
    Allocation,
    Kind,
    MemberPhase,
    NodeId,
    State,
    StopCause,
    StopOrder,
    Workload,
    WorkloadId,
)

MOST_MOVABLE = 300
"""Of more gangs than that which could be moved only the cheapest are looked at."""

NewSeats = dict[WorkloadId, tuple[NodeId, ...]]


def consolidate(draft: Draft, claim: Claim) -> bool:
    """Move others so that the claim fits, and promise all their seats; False: it is not possible, or does not pay."""
    knobs = draft.facts.profile.eviction
    gain_gpu_s = knobs.start_worth_s * claim.shape.gpu_units / UNIT
    if not knobs.consolidate or claim.grows or claim.parts or len(draft.moved) >= knobs.moves_per_turn:
        return False
    fits = claim.shape.gpu_units <= draft.soon.room.free_gpu_units and fits_quota(claim, draft.soon.quota)
    moves = movable(draft) if fits and gain_gpu_s > 0 else ()
    for shape in claim.shape.by_model if moves else ():
        model = shape.accelerators[0] if shape.accelerators else ""
        there = survey(draft, shape, model, moves, gain_gpu_s)
        trial = _Trial(draft, replace(claim, shape=shape))
        found = cheapest(there, gain_gpu_s, trial.seats) if there is not None else None
        if found is not None:
            _order(draft, claim, found[0], trial.found[_ids(found[0])], gain_gpu_s)
            return True
    return False


def could_move(draft: Draft, gpu_units: int) -> bool:
    """Whether `consolidate` would look any further for a claim of so many GPUs that is within its quota."""
    knobs = draft.facts.profile.eviction
    if not knobs.consolidate or knobs.start_worth_s <= 0 or len(draft.moved) >= knobs.moves_per_turn:
        return False
    return 0 < gpu_units <= draft.soon.room.free_gpu_units and bool(movable(draft))


def defragment(draft: Draft) -> None:
    """Empty the node that is used least, if others have room for what runs there and it pays. At most one a turn."""
    knobs = draft.facts.profile.eviction
    if knobs.whole_node_worth_s <= 0 or draft.unplaced or draft.moved or not draft.facts.snapshot.synced:
        return
    by_node: dict[NodeId, list[Move]] = {}
    for move in movable(draft):
        nodes = {member.node for member in move.members}
        if len(nodes) == 1:
            by_node.setdefault(nodes.pop(), []).append(move)
    if not by_node:
        return
    room = draft.soon.room
    total = {node: draft.facts.nodes[node].total.gpu_units for node in by_node}
    whole = {id for id in draft.facts.topology.nodes if room.gpu_units(id) == draft.facts.nodes[id].total.gpu_units}
    for node in sorted(by_node, key=lambda node: (total[node] - room.gpu_units(node), node)):
        moves, gain_gpu_s = by_node[node], knobs.whole_node_worth_s * total[node] / UNIT
        used = sum(member.bundle.gpu_units for move in moves for member in move.members)
        if used != total[node] - room.gpu_units(node) or sum(move.cost_gpu_s for move in moves) >= gain_gpu_s:
            continue  # somebody else holds a part of it, or it costs too much
        seats = _seated(draft, None, moves, frozenset({node, *whole}))
        if seats is not None:
            _order(draft, None, tuple(moves), seats, gain_gpu_s)
            return


def keep_moved(draft: Draft) -> None:
    """Whoever leaves its seats for others keeps the room that it was promised, beside the one that it leaves for."""
    leaving = [
        (workload, order)
        for gone in draft.facts.leaving
        if (workload := draft.facts.workloads.get(gone.workload)) is not None
        and workload.state is State.STOPPING
        and (order := workload.stop) is not None
        and order.cause is StopCause.MOVED
        and order.beneficiary != workload.id
    ]
    if not leaving:
        return
    room = draft.soon.room.copy()
    for id in sorted({order.beneficiary for _, order in leaving if order.beneficiary is not None}):
        first = draft.facts.workloads.get(id)
        if first is not None and first.state is State.PENDING:
            _take(draft, room, _claim(draft, first))
    for workload, _ in leaving:
        claim = _claim(draft, workload)
        nodes = _take(draft, room, claim)
        if nodes is not None and all(draft.soon.room.fits(n, a.bundle) for n, a in zip(nodes, claim.asks, strict=True)):
            members = draft.charge(claim, nodes, draft.soon)
            draft.reserves.append(Reserve(workload.id, members, True, "the seats that it moves to"))


# ---------------------------------------------------------------- who can be moved


def movable(draft: Draft) -> tuple[Move, ...]:
    """What could be moved in this turn, the cheapest first; found once."""
    if draft.movable is None:
        facts = draft.facts
        found: list[Move] = []
        for id in facts.saved if facts.snapshot.synced else ():  # sorted below
            workload, allocation = facts.workloads[id], facts.held.get(id)
            if allocation is not None and _may_move(draft, workload, allocation):
                cost = facts.profile.victims(workload, allocation, facts.now_s)
                found.append(Move(workload, allocation.members, True, cost, cost))
        draft.movable = tuple(sorted(found, key=lambda move: move.key)[:MOST_MOVABLE])
    return tuple(move for move in draft.movable if move.victim.id not in draft.stops)


def _may_move(draft: Draft, workload: Workload, allocation: Allocation) -> bool:
    """Whether it is a gang that runs undisturbed, with its minimum alone, long enough, and has just saved its work."""
    knobs, now_s, spec = draft.facts.profile.eviction, draft.facts.now_s, workload.spec
    saved = workload.checkpoint
    if saved is None or saved.attempt != workload.attempt or now_s - saved.committed_s > knobs.move_after_checkpoint_s:
        return False
    if workload.state is not State.RUNNING or spec.kind in (Kind.SERVE, Kind.GANG) or spec.reservation:
        return False
    if spec.id in draft.protected or settling(draft, workload) or stays_put(draft, workload):
        return False
    if spec.id in draft.stops or spec.id in draft.removals or spec.id in draft.added:
        return False
    if any(m.phase is not MemberPhase.READY or m.surplus not in allocation.gang for m in allocation.members):
        return False
    return now_s - (workload.started_s or 0.0) >= knobs.move_cooldown_s and comes_back(draft, workload)


# ---------------------------------------------------------------- what if


def _claim(draft: Draft, workload: Workload) -> Claim:
    return draft.narrowed(draft.prices.of_claim(next_start(workload)))


def _seated(
    draft: Draft, claim: Claim | None, moves: Sequence[Move], closed: frozenset[NodeId] = frozenset()
) -> NewSeats | None:
    """Everybody's seats when these gangs have left: the claim's first, then theirs, the largest first."""
    room = draft.soon.room.copy()
    for move in moves:
        for member in move.members:
            room.give(member.node, member.bundle, member.devices)
    found: NewSeats = {}
    again = sorted((_claim(draft, move.victim) for move in moves), key=lambda c: (-c.shape.gpu_units, c.id))
    for each in ([claim] if claim is not None else []) + again:
        nodes = _take(draft, room, each, closed)
        if nodes is None:
            return None
        found[each.id] = nodes
    return found


@dataclass(slots=True)
class _Trial:
    """What-ifs for one claim, with the seats of all that is moved by each that works."""

    draft: Draft
    claim: Claim
    found: dict[tuple[WorkloadId, ...], NewSeats] = field(default_factory=dict)

    def seats(self, moves: list[Move]) -> tuple[NodeId, ...] | None:
        """The claim's seats when these gangs have moved; None: somebody would have none."""
        seats = _seated(self.draft, self.claim, moves)
        if seats is None:
            return None
        self.found[_ids(moves)] = seats
        return seats[self.claim.id]


def _ids(moves: Sequence[Move]) -> tuple[WorkloadId, ...]:
    return tuple(move.victim.id for move in moves)


def _take(draft: Draft, room: Room, claim: Claim, closed: frozenset[NodeId] = frozenset()) -> tuple[NodeId, ...] | None:
    search = draft.search(room)
    nodes = find(claim.shape, replace(search, closed=search.closed | closed) if closed else search)
    if nodes is not None:
        for ask, node in zip(claim.asks, nodes, strict=True):
            room.take(node, ask.bundle)
    return nodes


def _order(draft: Draft, claim: Claim | None, moves: Sequence[Move], seats: NewSeats, gain_gpu_s: float) -> None:
    """Stop who is moved, and promise everybody the seats, in the order in which they were found."""
    now_s = draft.facts.now_s
    cost_gpu_s = sum(move.cost_gpu_s for move in moves)
    why = f"so that {claim.id} fits" if claim is not None else "so that a whole node is free"
    reason = f"moved {why}: worth {gain_gpu_s:.0f} GPU-seconds, {cost_gpu_s:.0f} are lost"
    for move in moves:
        id = move.victim.id
        order = StopOrder(
            StopCause.MOVED,
            reason,
            now_s,
            now_s + move.victim.spec.grace_s,
            claim.id if claim is not None else id,
        )
        draft.stop(Stop(id, move.victim.attempt, order, move.cost_gpu_s))
    victims = {move.victim.id: move.victim for move in moves}
    for id, nodes in seats.items():
        if claim is not None and id == claim.id:
            names = ", ".join(sorted(victims))
            members = draft.charge(claim, nodes, draft.soon)
            draft.reserves.append(Reserve(id, members, True, f"seats that {names} moves away from"))
        else:
            members = draft.charge(_claim(draft, victims[id]), nodes, draft.soon)
            draft.moved.append(Reserve(id, members, True, f"its seats when it has been {reason}"))
