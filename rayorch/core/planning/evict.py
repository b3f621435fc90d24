"""Stage 6. Reclaim, then preempt: which running workloads make room for a claim that is more entitled to it.

Reclaim: the claim keeps its queue (and all above it) within the deserved share; victims lie in queues that hold more
than theirs, whatever their priority. Preempt: victims have strictly lower priority; a claim that borrows takes from
other queues only what those borrow themselves. Either way the victims' own restart would come after the beneficiary,
so no two workloads evict each other in turn.

The set is found by what-ifs on copies: surplus seats alone, then whole attempts too. The seats are chosen where least
work is lost, everything that frees nothing there is dropped, and then every single move that the claim does not need.
After Kueue's preemption (candidates, remove, add back); differs in that victims are chosen by lost work, and surplus
seats go before whole attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rayorch.core.decisions import Reserve, Stop
from rayorch.core.planning.claims import Claim, removable
from rayorch.core.planning.draft import Books, Draft, Removal
from rayorch.core.planning.seats import Search, find
from rayorch.core.policy import SortKey
from rayorch.core.quota import Quota
from rayorch.core.topology import Domain
from rayorch.core.types import UNIT, Member, NodeId, QueueId, Resources, StopCause, StopOrder, Workload, WorkloadId

SINGLE_VICTIMS = 16
"""How many single victims are tried in place of a set of several."""


@dataclass(frozen=True, slots=True)
class Move:
    """One thing that frees room: a surplus seat of a running attempt, or (stops) all that it holds."""

    victim: Workload
    members: tuple[Member, ...]
    stops: bool
    cost_gpu_s: float

    @property
    def key(self) -> SortKey:
        """Cheapest first, then lower priority, then who started last, then the id."""
        number = max((m.surplus for m in self.members), default=0)
        return (self.cost_gpu_s, self.victim.spec.priority, -(self.victim.started_s or 0.0), self.victim.id, -number)


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
    moves = _moves(draft, claim, cause)
    if not moves or not _could_suffice(draft, claim, moves):
        return False
    trial = Trial(draft, claim, cause is StopCause.RECLAIMED)
    found = _search(trial, moves)
    if found is None:
        return False
    _order(draft, claim, cause, found)
    return True


# ---------------------------------------------------------------- who may be a victim


def _moves(draft: Draft, claim: Claim, cause: StopCause) -> list[Move]:
    """All moves that are allowed, cheapest first, surplus seats before whole attempts."""
    quota = draft.soon.quota.copy()
    eligible = _reclaimable(claim) if cause is StopCause.RECLAIMED else _preemptible(claim, quota)
    profile, now_s = draft.facts.profile, draft.facts.now_s
    shrinks: list[Move] = []
    stops: list[Move] = []
    for workload, allocation in draft.facts.live():
        if workload.id in draft.protected or workload.id == claim.id or workload.id in draft.added:
            continue
        kept = draft.staying(workload.id)
        if not kept or not eligible(workload, quota, kept):
            continue
        cost = profile.victims(workload, allocation, now_s)
        stops.append(Move(workload, kept, True, cost))
        surplus = removable(workload.spec, kept)
        shrinks += [Move(workload, (m,), False, cost / len(kept)) for m in surplus]
    chosen: list[Move] = []
    for move in (*sorted(shrinks, key=lambda m: m.key), *sorted(stops, key=lambda m: m.key)):
        if eligible(move.victim, quota, move.members):
            chosen.append(move)
            _refund_once(quota, move, chosen)
    return chosen


def _refund_once(quota: Quota, move: Move, chosen: Sequence[Move]) -> None:
    """Take a move's members off the quota, those that an earlier move has taken excepted."""
    taken = {m.surplus for other in chosen[:-1] if other.victim.id == move.victim.id for m in other.members}
    for member in move.members:
        if member.surplus not in taken:
            quota.refund(move.victim.spec.queue, member.bundle)


Eligible = Callable[[Workload, Quota, tuple[Member, ...]], bool]


def _reclaimable(claim: Claim) -> Eligible:
    def eligible(victim: Workload, quota: Quota, members: tuple[Member, ...]) -> bool:
        return _over_its_share(claim, victim.spec.queue, quota, members, entitled=True)

    return eligible


def _preemptible(claim: Claim, quota: Quota) -> Eligible:
    borrows = quota.borrows(claim.queue, claim.resources)

    def eligible(victim: Workload, quota: Quota, members: tuple[Member, ...]) -> bool:
        if victim.spec.priority >= claim.priority:
            return False
        if not borrows or quota.divergence(claim.queue, victim.spec.queue) is None:
            return True
        return _over_its_share(claim, victim.spec.queue, quota, members, entitled=False)

    return eligible


def _over_its_share(claim: Claim, queue: QueueId, quota: Quota, members: Iterable[Member], entitled: bool) -> bool:
    """Whether, where the two queues' paths part, the victim's side holds more than it deserves of what is claimed.

    `entitled`: only of resources that the claim's side has a share of.
    """
    parting = quota.divergence(claim.queue, queue)
    if parting is None:
        return False
    ours, theirs = parting
    names = {name for member in members for name, _ in member.bundle} & {name for name, _ in claim.resources}
    if entitled:
        names = {name for name in names if quota.deserves(ours, name)}
    return quota.above_deserved(theirs, names)


def _could_suffice(draft: Draft, claim: Claim, moves: Sequence[Move]) -> bool:
    """A cheap look before any what-if: all that is free or could be freed, against what is claimed."""
    freed = sum(m.bundle.gpu_units for move in moves for m in move.members)
    free = draft.search(draft.soon.room).free_gpu_units(draft.facts.topology.nodes)
    return free + freed >= claim.resources.gpu_units


# ---------------------------------------------------------------- what-ifs


@dataclass(slots=True)
class Trial:
    """What-ifs for one claim."""

    draft: Draft
    claim: Claim
    within_share: bool

    def seats(self, moves: Sequence[Move]) -> tuple[NodeId, ...] | None:
        """The claim's seats once these moves have taken effect; None: it doesn't fit, or the budget is spent."""
        if self.draft.budget <= 0:
            return None
        self.draft.budget -= 1
        books = self.draft.soon.copy()
        for queue, members in freed_by(moves):
            books.give(queue, members)
        quota = books.quota
        if not quota.fits(self.claim.queue, self.claim.resources):
            return None
        if self.within_share and quota.borrows(self.claim.queue, self.claim.resources):
            return None
        return find(self.claim.shape, self._search(books, moves))

    def _search(self, books: Books, moves: Sequence[Move]) -> Search:
        """Seats are scored by the work that is lost there, then as always."""
        costs = _costs_by_node(moves)
        plain = self.draft.search(books.room)

        def loss(node: NodeId, left: int) -> float:
            deficit = sum(units for _, units in costs.get(node, ())) - left
            cost = 0.0
            for price, units in costs.get(node, ()):
                if deficit <= 0:
                    break
                cost += price
                deficit -= units
            return cost

        def score(bundle: Resources, node: NodeId, free: Resources) -> SortKey:
            return (loss(node, free.gpu_units - bundle.gpu_units), *plain.score(bundle, node, free))

        need = self.claim.resources.gpu_units

        def domain_score(domain: Domain) -> SortKey:
            really_free = sum(self.draft.soon.room.gpu_units(node) for node in domain.nodes)
            return (max(0, need - really_free) / UNIT, *plain.domain_score(domain))

        return Search(plain.rooms, plain.topology, score, domain_score, plain.closed)


def freed_by(moves: Sequence[Move]) -> list[tuple[QueueId, tuple[Member, ...]]]:
    """Per victim the members that leave, each once."""
    leaving: dict[WorkloadId, dict[tuple[int, int], Member]] = {}
    queues: dict[WorkloadId, QueueId] = {}
    for move in moves:
        queues[move.victim.id] = move.victim.spec.queue
        seats = leaving.setdefault(move.victim.id, {})
        seats.update({(m.surplus, m.bundle_index): m for m in move.members})
    return [(queues[id], tuple(seats.values())) for id, seats in sorted(leaving.items())]


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
    found = _reduced(trial, shrinks) if shrinks else None
    if found is not None:
        return found
    stops = [move for move in moves if move.stops]
    found = _reduced(trial, moves) if stops else None
    return _single(trial, stops, found) if found is not None else None


def _reduced(trial: Trial, moves: list[Move]) -> Found | None:
    nodes = trial.seats(moves)
    if nodes is None:
        return None
    there = set(nodes)
    local = [move for move in moves if any(m.node in there for m in move.members)]
    kept = local if trial.seats(local) is not None else moves
    # Dearest first, attempts before surplus seats; halves before single ones, so that many go in few what-ifs.
    kept = sorted(kept, key=lambda m: (m.stops, m.key), reverse=True)
    size = max(1, len(kept) // 2)
    while size >= 1:
        position = 0
        while position < len(kept):
            if trial.draft.budget <= 0:
                return None  # rather nobody than more than needed
            without = kept[:position] + kept[position + size :]
            if trial.seats(without) is not None:
                kept = without
            else:
                position += size
        size //= 2
    final = trial.seats(kept)
    return Found(tuple(kept), final) if final is not None else None


def _single(trial: Trial, stops: list[Move], found: Found) -> Found:
    """One attempt in place of several moves, if it alone makes room and loses less work."""
    if len(found.moves) < 2:
        return found
    need = trial.claim.resources.gpu_units
    free = trial.draft.search(trial.draft.soon.room).free_gpu_units(trial.draft.facts.topology.nodes)
    large = [m for m in stops if sum(s.bundle.gpu_units for s in m.members) + free >= need]
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
