"""Stage 6. Reclaim, then preempt: which running workloads make room for a claim that is more entitled to it.

Reclaim: the claim keeps its queue (and all above it) within the deserved share; victims lie in queues that hold more
than theirs, whatever their priority. Preempt: victims have strictly lower priority; a claim that borrows takes from
other queues only what those borrow themselves. The freed room is the beneficiary's: until it has started it goes
before all others (bounded by `OWED_S`), so its victims come back after it. And nobody evicts the one that it made
room for. So no two workloads evict each other in turn.

The set is found by what-ifs on copies: surplus seats alone, then whole attempts too. The seats are chosen where least
work is lost, everything that frees nothing there is dropped, and then every single move that the claim does not need.
After Kueue's preemption (candidates, remove, add back); differs in that victims are chosen by lost work, and surplus
seats go before whole attempts. A claim that may have several accelerator models is looked at once for each: where
least work is lost, and where that is equal the model that it prefers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rayorch.core.decisions import Reserve, Stop
from rayorch.core.planning.charges import fits_quota
from rayorch.core.planning.claims import Claim, Shape, by_number, removable
from rayorch.core.planning.draft import Books, Draft, Move, Removal
from rayorch.core.planning.seats import Search, fill_shape, find
from rayorch.core.policy import SortKey
from rayorch.core.quota import Quota
from rayorch.core.topology import Domain
from rayorch.core.types import (
    UNIT,
    Member,
    NodeId,
    QueueId,
    Resources,
    StopCause,
    StopOrder,
    Workload,
    WorkloadId,
    charge_of,
)

WIDER = 4
"""How many times more candidates are looked at when the cheapest ones make no room."""

SINGLE_VICTIMS = 16
"""How many single victims are tried in place of a set of several."""


@dataclass(frozen=True, slots=True)
class Found:
    """What makes room, and the claim's seats then."""

    moves: tuple[Move, ...]
    nodes: tuple[NodeId, ...]

    @property
    def cost_gpu_s(self) -> float:
        """Lost work of all moves."""
        return sum(move.cost_gpu_s for move in self.moves)


def evict(draft: Draft, claim: Claim, cause: StopCause) -> bool:
    """Order the cheapest evictions after which the claim fits, and reserve its seats; False: there are none.

    `cause` is RECLAIMED or PREEMPTED. Spends the draft's budget of what-ifs; when that ends nobody is evicted.
    """
    if draft.budget <= 0:
        return False
    moves, reclaims = _allowed(draft, claim, cause), cause is StopCause.RECLAIMED
    trials = [
        Trial(draft, claim.on_models(shape.accelerators) if shape.accelerators else claim, shape, reclaims)
        for shape in claim.shape.by_model
    ]
    ways = [found for trial in trials if _could_suffice(trial, moves) and (found := _search(trial, moves)) is not None]
    if not ways:
        return False
    _order(draft, claim, cause, min(ways, key=lambda found: found.cost_gpu_s))
    return True


# ---------------------------------------------------------------- who may be a victim


def _all_moves(draft: Draft) -> tuple[Move, ...]:
    """Whatever could be evicted, cheapest first, surplus seats before whole attempts; kept until something is."""
    if draft.moves is None:
        profile, now_s = draft.facts.profile, draft.facts.now_s
        shrinks: list[Move] = []
        stops: list[Move] = []
        for workload, allocation in draft.facts.live():
            kept = draft.staying(workload.id)
            if not kept or workload.id in draft.protected:
                continue
            cost = profile.victims(workload, allocation, now_s)
            stops.append(Move(workload, kept, True, cost, charge_of(kept)))
            for together in by_number(removable(workload.spec, kept)):
                part = cost * len(together) / len(kept)
                shrinks.append(Move(workload, together, False, part, charge_of(together)))
        draft.moves = (*sorted(shrinks, key=lambda m: m.key), *sorted(stops, key=lambda m: m.key))
        draft.lowest_priority = min((move.victim.spec.priority for move in stops), default=0)
    return draft.moves


def _allowed(draft: Draft, claim: Claim, cause: StopCause) -> list[Move]:
    """The moves that the claim's queue and priority allow, in the same order.

    Where it matters that the victim's queue holds too much, each move is judged after those before it.
    """
    reclaims = cause is StopCause.RECLAIMED
    borrows = draft.soon.quota.borrows(claim.queue, claim.resources)
    known = _all_moves(draft)
    if reclaims and not _has_a_share(draft.soon.quota, claim):
        return []
    if not reclaims and draft.lowest_priority >= claim.priority:
        return []
    judged = reclaims or borrows
    queues = _above(draft, claim, reclaims) if judged else frozenset()
    if judged and not queues:
        return []
    moves = [
        move
        for move in known
        if (reclaims or move.victim.spec.priority < claim.priority)
        and (not judged or move.victim.spec.queue in queues)
        and move.victim.id not in (claim.id, claim.workload.yielded_to)
        and move.victim.id not in draft.added
    ]
    return _in_turn(draft, claim, moves, reclaims) if judged else moves


def _above(draft: Draft, claim: Claim, reclaims: bool) -> frozenset[QueueId]:
    """The queues whose moves `_in_turn` may choose, before any move: a first look that costs no look at moves."""
    quota = draft.soon.quota
    names = tuple(name for name, _ in claim.resources)
    found: set[QueueId] = set()
    sides: dict[tuple[QueueId, QueueId], bool] = {}
    for queue in draft.facts.live_queues:
        parting = quota.divergence(claim.queue, queue)
        if parting is None:
            if not reclaims:
                found.add(queue)
            continue
        if parting not in sides:
            sides[parting] = any(
                quota.above_deserved(parting[1], (name,)) and not (reclaims and not quota.deserves(parting[0], name))
                for name in names
            )
        if sides[parting]:
            found.add(queue)
    return frozenset(found)


def _has_a_share(quota: Quota, claim: Claim) -> bool:
    """A first look at whether the claim may reclaim: its own queue stays within its share, and some queue has one."""
    path = quota.path(claim.queue)
    for name, n in claim.resources:
        own = path[0].deserved.units(name) if path else 0
        if own and quota.used(claim.queue).units(name) + n > own:
            return False
    return any(quota.deserves(spec.id, name) for spec in path for name, _ in claim.resources)


def _in_turn(draft: Draft, claim: Claim, moves: list[Move], reclaims: bool) -> list[Move]:
    quota = draft.soon.quota.copy()
    taken: dict[WorkloadId, set[int]] = {}
    chosen: list[Move] = []
    for move in moves:
        parting = quota.divergence(claim.queue, move.victim.spec.queue)
        if parting is None:
            if reclaims:
                continue
        elif not _beyond_its_share(draft, quota, claim, move, parting, entitled=reclaims):
            continue
        chosen.append(move)
        gone = taken.setdefault(move.victim.id, set())
        quota.refund(move.victim.spec.queue, charge_of(m for m in move.members if m.surplus not in gone))
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
        for workload, _ in draft.facts.live():
            queue = workload.spec.queue
            if queue != side and not queue.startswith(f"{side}/"):
                continue
            kept = draft.staying(workload.id)
            parts = by_number(removable(workload.spec, kept))
            extra = {part[0].surplus: charge_of(part).units(name) for part in parts}
            rank = (-workload.spec.priority, workload.started_s or 0.0, workload.id)
            gangs.append((rank, 0, sum(m.charge.units(name) for m in kept if m.surplus not in extra)))
            spare += [(rank, number, units) for number, units in extra.items()]
        left = draft.soon.quota.deserved(side).units(name)
        found: set[tuple[WorkloadId, int]] = set()
        for (_, _, id), number, units in (*sorted(gangs), *sorted(spare)):
            left -= units
            if left < 0:
                found.add((id, number))
        draft.borrowed[key] = frozenset(found)
    return draft.borrowed[key]


def _names(amount: Resources) -> frozenset[str]:
    return frozenset(name for name, _ in amount)


def _could_suffice(trial: Trial, moves: Sequence[Move]) -> bool:
    """A cheap look before any what-if: all that is free or could be freed, against what is claimed."""
    if not moves:
        return False
    missing = trial.missing_gpu_units
    for move in moves:
        if missing <= 0:
            break
        missing -= trial.freed_gpu_units(move)
    return missing <= 0


# ---------------------------------------------------------------- what-ifs


@dataclass(slots=True)
class Trial:
    """What-ifs for one claim, of the given shape: its own, with one accelerator model where it names several."""

    draft: Draft
    claim: Claim
    shape: Shape
    within_share: bool

    @property
    def model(self) -> str:
        """The model that the claim's GPUs must be of, empty: any."""
        return self.shape.accelerators[0] if self.shape.accelerators else ""

    @property
    def missing_gpu_units(self) -> int:
        """How much more GPU must come free than will be anyway, of the right model."""
        room = self.draft.soon.room
        free = room.free_gpu_units
        if self.model:
            free = sum(room.gpu_units(node) for node, model in self._models.items() if model == self.model)
        return self.claim.resources.gpu_units - free

    def freed_gpu_units(self, move: Move) -> int:
        """What a move frees of GPUs of the right model."""
        if not self.model:
            return move.frees.gpu_units
        return sum(m.bundle.gpu_units for m in move.members if self._models.get(m.node) == self.model)

    @property
    def _models(self) -> Mapping[NodeId, str]:
        return self.draft.facts.topology.models

    def seats(self, moves: Sequence[Move], within: tuple[NodeId, ...] | None = None) -> tuple[NodeId, ...] | None:
        """The claim's seats once these moves have taken effect; None: it doesn't fit, or the budget is spent.

        `within`: only these nodes are looked at, which are known to meet what the claim asks of the topology.
        """
        if self.draft.budget <= 0:
            return None
        self.draft.budget -= 1
        books = self.draft.soon.copy()
        for victim, members, ends in freed_by(moves):
            books.give(victim, members, ends)
        quota = books.quota
        if not fits_quota(self.claim, quota):
            return None
        if self.within_share and quota.borrows(self.claim.queue, self.claim.resources):
            return None
        search = self._search(books, moves)
        if within is not None:
            return fill_shape(self.shape, within, search.on(self.model))
        return find(self.shape.loose, search)

    def _search(self, books: Books, moves: Sequence[Move]) -> Search:
        """Seats are scored by the work that is lost there, then as always."""
        costs = _costs_by_node(moves)
        plain = self.draft.search(books.room)

        def loss(node: NodeId, left: int) -> float:
            prices = costs.get(node)
            if prices is None:
                return 0.0
            deficit = sum(units for _, units in prices) - left
            cost = 0.0
            for price, units in prices:
                if deficit <= 0:
                    break
                cost += price
                deficit -= units
            return cost

        def score(bundle: Resources, node: NodeId, free: Resources) -> SortKey:
            return (loss(node, free.gpu_units - bundle.gpu_units), *plain.score(bundle, node, free))

        need = self.claim.resources.gpu_units

        def domain_score(domain: Domain) -> SortKey:
            right = self.draft.facts.topology.of_model(self.model, domain.nodes)
            really_free = sum(self.draft.soon.room.gpu_units(node) for node in right)
            return (max(0, need - really_free) / UNIT, *plain.domain_score(domain))

        return replace(plain, score=score, domain_score=domain_score)


def freed_by(moves: Sequence[Move]) -> list[tuple[Workload, tuple[Member, ...], bool]]:
    """Per victim the members that leave, each once, and whether its attempt ends."""
    leaving: dict[WorkloadId, dict[tuple[int, int], Member]] = {}
    victims: dict[WorkloadId, Workload] = {}
    ends: set[WorkloadId] = set()
    for move in moves:
        victims[move.victim.id] = move.victim
        seats = leaving.setdefault(move.victim.id, {})
        seats.update({(m.surplus, m.bundle_index): m for m in move.members})
        if move.stops:
            ends.add(move.victim.id)
    return [(victims[id], tuple(seats.values()), id in ends) for id, seats in sorted(leaving.items())]


def _costs_by_node(moves: Sequence[Move]) -> dict[NodeId, list[tuple[float, int]]]:
    costs: dict[NodeId, list[tuple[float, int]]] = {}
    shrunk = {(move.victim.id, m.surplus) for move in moves if not move.stops for m in move.members}
    for move in moves:
        units: dict[NodeId, int] = {}
        for member in move.members:
            if not move.stops or (move.victim.id, member.surplus) not in shrunk:
                units[member.node] = units.get(member.node, 0) + member.bundle.gpu_units
        for node, freed in units.items():
            costs.setdefault(node, []).append((move.cost_gpu_s, freed))
    for prices in costs.values():
        prices.sort()
    return costs


def _search(trial: Trial, moves: list[Move]) -> Found | None:
    """Surplus seats alone if they suffice; else whole attempts too, as few and as cheap as the budget can tell."""
    shrinks = [move for move in moves if not move.stops]
    found = _cheapest(trial, [], shrinks)
    if found is not None:
        return found
    stops = [move for move in moves if move.stops]
    found = _cheapest(trial, shrinks, stops)
    return _single(trial, stops, found) if found is not None else None


def _cheapest(trial: Trial, first: list[Move], moves: list[Move]) -> Found | None:
    """All of `first` and some of `moves`: no more of the dearer ones are looked at than it takes to find a place."""
    missing = trial.missing_gpu_units - sum(trial.freed_gpu_units(move) for move in first)
    count = 0
    while count < len(moves) and (missing > 0 or count == 0):
        missing -= trial.freed_gpu_units(moves[count])
        count += 1
    while moves:
        found = _reduced(trial, [*first, *moves[:count]])
        if found is not None or count >= len(moves):
            return found
        count = min(len(moves), count * WIDER)
    return None


def _reduced(trial: Trial, moves: list[Move]) -> Found | None:
    """The moves that the claim needs, of these: where least is lost, and then none that it could do without."""
    nodes = trial.seats(moves)
    if nodes is None:
        return None
    there = tuple(sorted(set(nodes)))
    local = [move for move in moves if any(m.node in there for m in move.members)]
    kept = local if trial.seats(local, there) is not None else moves
    # Dearest first, attempts before surplus seats; halves before single ones, so that many go in few what-ifs.
    kept = sorted(kept, key=lambda m: (m.stops, m.key), reverse=True)
    size = len(kept) // 2
    while size >= 1:
        kept = _without(trial, kept, size, there)
        size //= 2
    kept = _without(trial, kept, 1, None)  # and perhaps it fits elsewhere with fewer
    final = trial.seats(kept)
    return Found(tuple(kept), final) if final is not None and trial.draft.budget > 0 else None


def _without(trial: Trial, kept: list[Move], size: int, within: tuple[NodeId, ...] | None) -> list[Move]:
    """Drop each run of `size` moves that the claim can do without."""
    position = 0
    while position < len(kept):
        fewer = kept[:position] + kept[position + size :]
        if trial.seats(fewer, within) is not None:
            kept = fewer
        else:
            position += size
    return kept


def _single(trial: Trial, stops: list[Move], found: Found) -> Found:
    """One attempt in place of several moves, if it alone makes room and loses less work."""
    if len(found.moves) < 2:
        return found
    missing = trial.missing_gpu_units
    large = [move for move in stops if trial.freed_gpu_units(move) >= missing]
    for move in large[:SINGLE_VICTIMS]:
        if move.cost_gpu_s >= found.cost_gpu_s:
            break
        nodes = trial.seats([move])
        if nodes is not None:
            return Found((move,), nodes)
    return found


# ---------------------------------------------------------------- the orders


def _order(draft: Draft, claim: Claim, cause: StopCause, found: Found) -> None:
    """Stop and shrink the victims for the claim, and promise it the seats."""
    now_s = draft.facts.now_s
    verb = "reclaimed" if cause is StopCause.RECLAIMED else "preempted"
    stopped = {move.victim.id for move in found.moves if move.stops}
    reason = f"{verb} for {claim.id} (priority {claim.priority}, queue {claim.queue})"
    for move in found.moves:
        victim = move.victim
        by_s = now_s + victim.spec.grace_s
        if move.stops:
            order = StopOrder(cause, reason, now_s, by_s, claim.id)
            draft.stop(Stop(victim.id, victim.attempt, order, move.cost_gpu_s))
        elif victim.id not in stopped:
            draft.remove(victim, {m.surplus for m in move.members}, Removal(set(), by_s, claim.id, reason))
            draft.removals[victim.id].cost_gpu_s += move.cost_gpu_s
    members = draft.charge(claim, found.nodes, draft.soon)
    names = ", ".join(sorted({move.victim.id for move in found.moves}))
    draft.reserves.append(Reserve(claim.id, members, True, f"seats that {names} gives up"))
