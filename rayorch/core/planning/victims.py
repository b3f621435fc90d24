"""Stage 6, first half: who may be a victim of a claim, the cheapest first.

Most claims that wait have nobody to evict, and that must be known without a look at everybody who runs: queues that
hold more than their share are few, and so are the seats that they have borrowed. Everybody is looked at only for a
claim that is more important than the least important work that runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter

from rayorch.core.lost_time import RateOf, rate_of
from rayorch.core.planning.claims import Claim, by_number, removable
from rayorch.core.planning.draft import Draft, Move
from rayorch.core.planning.heal import Protected
from rayorch.core.planning.rights import fenced_off, settling
from rayorch.core.planning.takings import Offer
from rayorch.core.quota import Quota
from rayorch.core.types import Member, QueueId, Resources, Workload, WorkloadId, charge_of

MOST_DOUBLINGS = 40
"""Priorities may be a million apart; beyond this the more important work is as good as untouchable."""


def allowed(draft: Draft, claim: Claim, reclaims: bool) -> list[Move]:
    """The moves that the claim's queue and priority allow, in no order.

    Where it matters that the victim's queue holds too much, each move is judged after those before it: surplus seats
    before whole attempts, the cheapest first.
    """
    quota = draft.soon.quota
    if reclaims:
        if not has_a_share(quota, claim.queue, claim.resources):
            return []
        return _in_turn(draft, claim, _borrowed_moves(draft, claim, True), True)
    if _lowest_priority(draft) >= claim.priority:
        return []
    if not quota.borrows(claim.queue, claim.resources):
        return _below(draft, claim)
    own = [move for queue in _inside(draft, claim.queue) for move in _moves_in(draft, queue)]
    moves = [*own, *_borrowed_moves(draft, claim, False)]
    return _in_turn(draft, claim, [move for move in moves if move.victim.spec.priority < claim.priority], False)


def surplus(draft: Draft, claim: Claim) -> list[Move]:
    """Surplus seats of training no more important than the claim: in its own queue and those on its path, and what
    others have borrowed; in no order."""
    found: list[Move] = []
    for id in draft.facts.growing:
        workload = draft.facts.workloads[id]
        if workload.spec.priority <= claim.priority:
            found += [move for move in moves_of(draft, workload) if not move.stops]
    return _in_turn(draft, claim, found, False) if found else []


def nobody(draft: Draft, queue: QueueId, priority: int, amount: Resources) -> bool:
    """Whether `allowed` certainly finds nobody for a claim of that queue, priority and amount, whatever the
    cause, and that it takes nobody's room by order."""
    eviction = draft.facts.profile.eviction
    if eviction.by_order or (eviction.surplus_yields and draft.facts.growing):
        return False
    return _lowest_priority(draft) >= priority and not has_a_share(draft.soon.quota, queue, amount)


def _below(draft: Draft, claim: Claim) -> list[Move]:
    """Whatever is less important, wherever it runs, but for what `may_go` excludes."""
    priority, queue, added = claim.priority, claim.queue, draft.added
    spared = (claim.workload.spec.id, claim.workload.yielded_to)
    found: list[Move] = []
    open_to: dict[QueueId, bool] = {}
    for move in _all_moves(draft):
        spec = move.victim.spec
        if spec.priority >= priority or spec.id in spared or spec.id in added:
            continue
        if move.victim.cell and move.stops and not may_take(draft, queue, move.victim):
            continue
        may = open_to.get(spec.queue)
        if may is None:
            may = open_to[spec.queue] = not fenced_off(draft, queue, spec.queue)
        if may:
            found.append(move)
    return found


def may_go(draft: Draft, claim: Claim, move: Move, reclaims: bool, takes_back: bool = False) -> bool:
    """Whether neither what happened before nor a fence keeps the claim from asking for this.

    `takes_back`: it may also ask the one that it made room for itself.
    """
    id = move.victim.spec.id
    if id == claim.workload.spec.id or id in draft.added or (id == claim.workload.yielded_to and not takes_back):
        return False
    if move.victim.cell and move.stops and not may_take(draft, claim.queue, move.victim):
        return False
    return reclaims or not fenced_off(draft, claim.queue, move.victim.spec.queue)


# ---------------------------------------------------------------- moves


def _all_moves(draft: Draft) -> tuple[Move, ...]:
    """Whatever could be evicted; kept until something is."""
    if draft.moves is not None and draft.moved_on:
        draft.moves = tuple(move for move in draft.moves if move.victim.spec.id not in draft.moved_on)
        draft.moved_on.clear()
    if draft.moves is None:
        rate = rate_of(draft.facts.profile.victims)
        if rate is not None and isinstance(draft.protected, Protected) and draft.facts.profile.preemption:
            _price_all(draft, draft.protected, rate)
        found, known = list[Move](), draft.moves_of
        for live in draft.facts.live_in.values():
            for workload in live:
                own = known.get(workload.spec.id)
                found += moves_of(draft, workload) if own is None else own
        draft.moves = tuple(found)
    return draft.moves


def _price_all(draft: Draft, protected: Protected, rate: RateOf) -> None:
    """The moves of everybody who has just one, his stop, whose cost follows from the time: see `_made` for the rule."""
    facts, known, changed = draft.facts, draft.moves_of, (draft.stops, draft.removals)
    now_s, held, more = facts.now_s, facts.held, protected.own
    offers = draft.memory.offers if not draft.released else {}  # the memory may have gone on
    exempt_s, weights = facts.profile.eviction.exempt_s, dict[int, float]()
    for queue, live in facts.live_in.items():
        spec = draft.now.quota.min_runtime(queue)
        least_s = max(exempt_s, spec.min_runtime_s) if spec is not None else exempt_s
        for workload in live:
            id = workload.spec.id
            if id in known or id in more or id in changed[0] or id in changed[1]:
                continue
            offer = offers.get(id)
            same = offer is None or (offer.workload is workload and offer.allocation is held[id])
            if id not in offers or not same:
                offer = offers[id] = Offer.of(workload, held[id], rate)
            if offer is None:
                continue
            ran_s = now_s - offer.started_s
            if ran_s < least_s or ran_s < offer.least_s:
                known[id] = ()
                continue
            priority = workload.spec.priority
            weight = weights.get(priority)
            if weight is None:
                weight = weights[priority] = _weight(draft, workload)
            cost = offer.rate.at(now_s)
            known[id] = (offer.at(cost, cost * weight),)


def _moves_in(draft: Draft, queue: QueueId) -> Iterable[Move]:
    for workload in draft.facts.live_in.get(queue, ()):
        yield from moves_of(draft, workload)


def moves_of(draft: Draft, workload: Workload) -> tuple[Move, ...]:
    """What one attempt could give: surplus seats, or all that it holds."""
    id = workload.spec.id
    known = draft.moves_of.get(id)
    if known is None:
        known = draft.moves_of[id] = _made(draft, workload)
    return known


def _made(draft: Draft, workload: Workload) -> tuple[Move, ...]:
    id = workload.spec.id
    kept = draft.staying(id)
    if not kept or id in draft.protected:
        return ()
    cost = draft.facts.profile.victims(workload, draft.facts.held[id], draft.facts.now_s)
    weight = _weight(draft, workload)
    moves: list[Move] = []
    if not settling(draft, workload):
        moves.append(Move(workload, kept, True, cost, cost * weight))
    for together in by_number(removable(workload.spec, kept)):
        part = cost * len(together) / len(kept)
        moves.append(Move(workload, together, False, part, part * weight))
    return tuple(moves)


def _weight(draft: Draft, workload: Workload) -> float:
    """How much a lost GPU-second of this work counts: twice as much for every so many points of priority."""
    points = draft.facts.profile.eviction.priority_doubles
    return 2.0 ** max(-MOST_DOUBLINGS, min(MOST_DOUBLINGS, workload.spec.priority / points)) if points else 1.0


def _lowest_priority(draft: Draft) -> int:
    """The lowest priority of all that could be evicted when the turn began."""
    if draft.lowest_priority is None:
        workloads, protected = draft.facts.workloads, draft.protected
        if isinstance(protected, Protected) and not protected.own:
            draft.lowest_priority = draft.facts.lowest_priority
            return draft.lowest_priority
        priorities = (workloads[id].spec.priority for id in draft.facts.held if id not in protected)
        draft.lowest_priority = min(priorities, default=2**63)
    return draft.lowest_priority


# ---------------------------------------------------------------- who holds more than its share


def may_take(draft: Draft, queue: QueueId, victim: Workload) -> bool:
    """Whether a claim of that queue may stop it: what lies in cells goes for the queue that has them only."""
    owner = holder_of(draft, victim.spec.queue)
    return owner is None or queue == owner or queue.startswith(f"{owner}/")


def holder_of(draft: Draft, queue: QueueId) -> QueueId | None:
    """The nearest queue of the path that has cells; its work and that of the queues below it may use them."""
    return next((spec.id for spec in draft.now.quota.path(queue) if spec.cells), None)


def _inside(draft: Draft, queue: QueueId) -> list[QueueId]:
    """The queues with live work whose path does not part from this one's: it, those below and those above."""
    quota = draft.soon.quota
    return [other for other in draft.facts.live_in if quota.divergence(queue, other) is None]


def sides_above(draft: Draft, claim: Claim, name: str, entitled: bool) -> list[QueueId]:
    """Queues beside the claim's path that hold more than they deserve of a resource.

    `entitled`: only where the claim's side has a share of it.
    """
    quota, over = draft.soon.quota, _over(draft, name)
    found: list[QueueId] = []
    for spec in quota.path(claim.queue):
        if not entitled or quota.deserves(spec.id, name):
            found += [side for side in over.get(spec.parent, ()) if side != spec.id]
    return found


def _over(draft: Draft, name: str) -> Mapping[QueueId | None, set[QueueId]]:
    """All queues that hold more than they deserve of a resource, by the queue above them, as of the last change."""
    quota, log = draft.soon.quota, draft.charged
    seen, found = draft.over.get(name, (0, {}))
    if name not in draft.over:
        due = draft.facts.snapshot.queues
    else:
        due = tuple({spec.id: spec for queue in log[seen:] for spec in quota.path(queue)}.values())
    for spec in due:
        if quota.above_deserved(spec.id, (name,)):
            found.setdefault(spec.parent, set()).add(spec.id)
        elif spec.parent in found:
            found[spec.parent].discard(spec.id)
    draft.over[name] = (len(log), found)
    return found


def has_a_share(quota: Quota, queue: QueueId, amount: Resources) -> bool:
    """A first look at whether a claim may reclaim: its own queue stays within its share, and some queue has one."""
    path = quota.path(queue)
    for name, n in amount.items:
        own = path[0].deserved.units(name) if path else 0
        if own and quota.used_of(queue, name) + n > own:
            return False
    return any(quota.deserves(spec.id, name) for spec in path for name, _ in amount.items)


def _borrowed_moves(draft: Draft, claim: Claim, entitled: bool) -> list[Move]:
    """The moves that give back what queues beside the claim's have borrowed."""
    seats: set[tuple[WorkloadId, int]] = set()
    for name, _ in claim.resources:
        for side in sides_above(draft, claim, name, entitled):
            seats |= _borrowed(draft, side, name)
    workloads = draft.facts.workloads
    return [
        move
        for id in sorted({id for id, _ in seats})
        for move in moves_of(draft, workloads[id])
        if (id, 0 if move.stops else move.members[0].surplus) in seats
    ]


def _in_turn(draft: Draft, claim: Claim, moves: list[Move], reclaims: bool) -> list[Move]:
    quota = draft.soon.quota.copy()
    taken: dict[WorkloadId, set[int]] = {}
    chosen: list[Move] = []
    for move in sorted({id(move): move for move in moves}.values(), key=attrgetter("rank")):
        if not may_go(draft, claim, move, reclaims):
            continue
        parting = quota.divergence(claim.queue, move.victim.spec.queue)
        if parting is None:
            if reclaims:
                continue
        elif not _beyond_its_share(draft, quota, claim, move, parting, entitled=reclaims):
            continue
        chosen.append(move)
        gone = taken.setdefault(move.victim.id, set())
        back = charge_of(m for m in move.members if m.surplus not in gone) if gone else move.frees
        quota.refund(move.victim.spec.queue, back)
        gone.update(m.surplus for m in move.members)
    return chosen


def _beyond_its_share(
    draft: Draft, quota: Quota, claim: Claim, move: Move, parting: tuple[QueueId, QueueId], entitled: bool
) -> bool:
    """Whether, where the two queues' paths part, the victim's side still holds more than it deserves of what is
    claimed, and these seats are part of what it borrowed. `entitled`: only of resources that the claim's side has a
    share of.
    """
    ours, theirs = parting
    for name, _ in claim.resources:
        if entitled and not quota.deserves(ours, name):
            continue
        if move.frees.units(name) and quota.above_deserved(theirs, (name,)):
            seat = 0 if move.stops else move.members[0].surplus
            if (move.victim.id, seat) in _borrowed(draft, theirs, name):
                return True
    return False


def _borrowed(draft: Draft, side: QueueId, name: str) -> frozenset[tuple[WorkloadId, int]]:
    """What of a queue's holdings counts as borrowed: what goes beyond its share, by priority, then by seniority.

    (workload, 0) stands for the gang's minimum, (workload, n) for surplus seat n; surplus seats come after all
    minimums. So a queue keeps its most important work when others take back what they lent it.
    """
    key = (side, name)
    if key not in draft.borrowed:
        gangs: list[tuple[tuple[int, float, WorkloadId], int, int]] = []
        spare: list[tuple[tuple[int, float, WorkloadId], int, int]] = []
        held, charged = draft.facts.held, draft.facts.charged
        below = [queue for queue in draft.facts.live_in if queue == side or queue.startswith(f"{side}/")]
        for workload in (workload for queue in below for workload in draft.facts.live_in[queue]):
            spec = workload.spec
            kept = draft.staying(spec.id)
            rank = (-spec.priority, workload.started_s or 0.0, spec.id)
            extra: dict[int, int] = {}
            if spec.resizable:
                extra = {part[0].surplus: _units(part, name) for part in by_number(removable(spec, kept))}
                kept = tuple(m for m in kept if m.surplus not in extra)
            whole = kept is held[spec.id].members  # what it is charged has been worked out
            gangs.append((rank, 0, charged[spec.id][1].units(name) if whole else _units(kept, name)))
            spare += [(rank, number, units) for number, units in extra.items()]
        left = draft.soon.quota.deserved(side).units(name)
        found: set[tuple[WorkloadId, int]] = set()
        for (_, _, id), number, units in (*sorted(gangs), *sorted(spare)):
            left -= units
            if left < 0:
                found.add((id, number))
        draft.borrowed[key] = frozenset(found)
    return draft.borrowed[key]


def _units(members: tuple[Member, ...], name: str) -> int:
    """What they count for of one resource; those that are alike are worked out once."""
    units, each, like = 0, 0, None
    for member in members:
        if like is None or not (
            member.bundle is like.bundle and member.model == like.model and member.countables is like.countables
        ):
            like, each = member, member.charge.units(name)
        units += each
    return units
