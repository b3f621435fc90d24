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

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from rayorch.core.decisions import Reserve, Stop
from rayorch.core.planning.bargain import cheapest, survey
from rayorch.core.planning.charges import fits_quota
from rayorch.core.planning.claims import Claim, Shape
from rayorch.core.planning.draft import Draft, Move, Removal
from rayorch.core.planning.overlay import Overlay
from rayorch.core.planning.seats import Search, fill_shape, find
from rayorch.core.planning.victims import allowed, surplus
from rayorch.core.policy import SortKey
from rayorch.core.room import Room
from rayorch.core.slot import Slot
from rayorch.core.topology import Domain, Topology
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
    total,
)

WIDER = 4
"""How many times more candidates are looked at when the cheapest ones make no room."""

MANY = 300
"""Of more moves than that only those that numbers single out are tried."""

SINGLE_VICTIMS = 16
"""How many single victims are tried in place of a set of several."""


@dataclass(frozen=True, slots=True)
class Found:
    """What makes room, and the claim's seats then."""

    moves: tuple[Move, ...]
    nodes: tuple[NodeId, ...]

    @property
    def price(self) -> float:
        """What the lost work of all moves counts for."""
        return sum(move.price for move in self.moves)


def evict(draft: Draft, claim: Claim, cause: StopCause) -> bool:
    """Order the cheapest evictions after which the claim fits, and reserve its seats; False: there are none.

    `cause` is RECLAIMED or PREEMPTED. Spends the draft's budget of what-ifs; when that ends nobody is evicted.
    """
    if draft.budget <= 0 or lacks_only_quota(draft, claim):
        return False
    moves, reclaims = allowed(draft, claim, reclaims=cause is StopCause.RECLAIMED), cause is StopCause.RECLAIMED
    if not moves:
        return False
    trials = [Trial.on(draft, claim, shape, reclaims) for shape in claim.shape.by_model]
    ways = [found for trial in trials if _could_suffice(trial, moves) and (found := _search(trial, moves)) is not None]
    if not ways:
        return False
    order(draft, claim, cause, min(ways, key=lambda found: found.price))
    return True


def take_surplus(draft: Draft, claim: Claim) -> bool:
    """Order the cheapest surplus seats of others after which the claim fits, where the profile says so; with them
    whatever is less important, if that alone was not enough."""
    if not draft.facts.profile.eviction.surplus_yields or draft.budget <= 0 or lacks_only_quota(draft, claim):
        return False
    seats = surplus(draft, claim)
    if not seats:
        return False
    lower = [move for move in allowed(draft, claim, reclaims=False) if move.stops]
    shrinks, stops = sorted(seats, key=attrgetter("rank")), sorted(lower, key=attrgetter("rank"))
    for shape in claim.shape.by_model:
        trial = Trial.on(draft, claim, shape, False)
        if not _could_suffice(trial, [*shrinks, *stops]):
            continue
        found = _cheapest(trial, [], shrinks) or _cheapest(trial, shrinks, stops)
        if found is not None:
            stops_some = any(move.stops for move in found.moves)
            reason = "" if stops_some else f"surplus seats given up for {claim.id}"
            order(draft, claim, StopCause.PREEMPTED, found, reason)
            return True
    return False


def lacks_only_quota(draft: Draft, claim: Claim) -> bool:
    """Whether a profile that evicts lazily leaves others alone, because there is room for the claim."""
    if not draft.facts.profile.eviction.lazy or fits_quota(claim, draft.soon.quota):
        return False
    return find(claim.shape, draft.soon_search()) is not None


# ---------------------------------------------------------------- what-ifs


def _could_suffice(trial: Trial, moves: Sequence[Move]) -> bool:
    """A cheap look before any what-if: all that is free or could be freed, against what is claimed."""
    missing = trial.missing_gpu_units
    for move in moves:
        if missing <= 0:
            break
        missing -= trial.freed_gpu_units(move)
    return missing <= 0


@dataclass(frozen=True, slots=True)
class Ground:
    """Some of the nodes, for what-ifs that look at no others."""

    topology: Topology
    room: Room


@dataclass(slots=True)
class Trial:
    """What-ifs for one claim, of the given shape: its own, with one accelerator model where it names several."""

    draft: Draft
    claim: Claim
    shape: Shape
    within_share: bool
    ground: Ground | None = None

    @classmethod
    def on(cls, draft: Draft, claim: Claim, shape: Shape, within_share: bool) -> Trial:
        """For one of the claim's shapes by model; `within_share`: it must end within what its queue deserves."""
        asked = claim.on_models(shape.accelerators) if shape.accelerators else claim
        return cls(draft, asked, shape, within_share)

    @property
    def model(self) -> str:
        """The model that the claim's GPUs must be of, empty: any."""
        return self.shape.accelerators[0] if self.shape.accelerators else ""

    @property
    def missing_gpu_units(self) -> int:
        """How much more GPU must come free than will be anyway, of the right model."""
        free = self.draft.soon.room.free_gpu_units
        if self.model:
            view = self.draft.soon_search().view
            free = view.units_of_model(self.model) if view is not None else 0
        return self.shape.gpu_units - free

    def freed_gpu_units(self, move: Move) -> int:
        """What a move frees of GPUs of the right model."""
        if not self.model:
            return sum(m.bundle.gpu_units for m in move.members)
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
        freed = freed_by(moves)
        quota = self.draft.soon.quota.copy()
        for (queue, owner), (amount, attempts) in given_back(moves, freed).items():
            quota.refund(queue, amount, owner, attempts)
        if not fits_quota(self.claim, quota):
            return None
        if self.within_share and quota.borrows(self.claim.queue, self.claim.resources):
            return None
        room = (self.ground.room if self.ground is not None else self.draft.soon.room).copy()
        for members in (members for _, members, _ in freed):
            for member in members:
                room.give(member.node, member.bundle, member.devices)
        search = self._search(room, moves)
        if within is not None:
            return fill_shape(self.shape, within, search.on(self.model))
        return find(self.shape.loose, search)

    def _search(self, room: Room, moves: Sequence[Move]) -> Search:
        """Seats are scored by the work that is lost there, then as always."""
        costs = _costs_by_node(moves)
        plain, soon = self.draft.search(room), self.draft.soon_search()
        if self.ground is not None:
            plain = replace(plain, topology=self.ground.topology)

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

        def score(bundle: Resources, node: NodeId, slot: Slot) -> SortKey:
            return (loss(node, slot.gpu_units - bundle.gpu_units), *plain.score(bundle, node, slot))

        need = self.shape.gpu_units
        view = None
        if self.ground is None and soon.view is not None and soon.score == plain.score:
            view = Overlay(soon.view, room, {m.node for move in moves for m in move.members}, score)

        def domain_score(domain: Domain) -> SortKey:
            if self.model or view is None or soon.view is None:
                right = self.draft.facts.topology.of_model(self.model, domain.nodes)
                really_free = sum(self.draft.soon.room.gpu_units(node) for node in right)
            else:
                really_free = soon.view.units(domain)
            free = plain.domain_score(domain) if view is None else (view.units(domain),)
            return (max(0, need - really_free) / UNIT, *free)

        return replace(plain, score=score, domain_score=domain_score, view=view)


Freed = list[tuple[Workload, tuple[Member, ...], bool]]
"""Per victim the members that leave, each once, and whether its attempt ends."""


def freed_by(moves: Sequence[Move]) -> Freed:
    """What leaves with all of these moves."""
    alone = {move.victim.spec.id: move for move in moves}
    if len(alone) == len(moves):
        return [(move.victim, move.members, move.stops) for _, move in sorted(alone.items())]
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


def given_back(moves: Sequence[Move], freed: Freed) -> dict[tuple[QueueId, str], tuple[Resources, int]]:
    """What comes back by (queue, owner), and how many attempts of theirs end."""
    known = {move.victim.spec.id: move for move in moves}
    found: dict[tuple[QueueId, str], tuple[list[Resources], int]] = {}
    for victim, members, ends in freed:
        amounts, attempts = found.get((victim.spec.queue, victim.spec.owner), ([], 0))
        amounts.append(known[victim.spec.id].frees if len(known) == len(moves) else charge_of(members))
        found[victim.spec.queue, victim.spec.owner] = (amounts, attempts + ends)
    return {key: (total(amounts), attempts) for key, (amounts, attempts) in found.items()}


def _costs_by_node(moves: Sequence[Move]) -> dict[NodeId, list[tuple[float, int]]]:
    costs: dict[NodeId, list[tuple[float, int]]] = {}
    shrunk = {(move.victim.id, m.surplus) for move in moves if not move.stops for m in move.members}
    for move in moves:
        units: dict[NodeId, int] = {}
        for member in move.members:
            if not move.stops or (move.victim.id, member.surplus) not in shrunk:
                units[member.node] = units.get(member.node, 0) + member.bundle.gpu_units
        for node, freed in units.items():
            costs.setdefault(node, []).append((move.price, freed))
    for prices in costs.values():
        prices.sort()
    return costs


def _search(trial: Trial, moves: list[Move]) -> Found | None:
    """The cheapest moves that can be told. Where there are many, numbers say where to look."""
    if len(moves) > MANY and (found := _bargained(trial, moves, math.inf)) is not None:
        return found
    moves = sorted(moves, key=attrgetter("rank"))
    shrinks, stops = [move for move in moves if not move.stops], [move for move in moves if move.stops]
    found = _cheapest(trial, [], shrinks) or _cheapest(trial, shrinks, stops)
    if found is None:
        return None
    return single(trial, stops, _bargained(trial, moves, found.price) or found)


def _bargained(trial: Trial, moves: list[Move], bound: float) -> Found | None:
    """Moves that count for less than `bound`, found by numbers and tried on the nodes that matter."""
    there = survey(trial.draft, trial.shape, trial.model, moves, bound)
    if there is None:
        return None
    facts = trial.draft.facts
    ground = Ground(Topology.of(facts.nodes[id] for id in there.nodes), trial.draft.soon.room.part(there.nodes))
    small = replace(trial, ground=ground)
    found = cheapest(there, bound, small.seats)
    if found is None:
        return None
    kept = without(small, sorted(found[0], key=lambda m: m.key, reverse=True), 1, None)
    nodes = small.seats(kept)
    return Found(tuple(kept), nodes) if nodes is not None else Found(*found)


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
        kept = without(trial, kept, size, there)
        size //= 2
    kept = without(trial, kept, 1, None)  # and perhaps it fits elsewhere with fewer
    final = trial.seats(kept)
    return Found(tuple(kept), final) if final is not None and trial.draft.budget > 0 else None


def without(trial: Trial, kept: list[Move], size: int, within: tuple[NodeId, ...] | None) -> list[Move]:
    """Drop each run of `size` moves that the claim can do without."""
    position = 0
    while position < len(kept):
        fewer = kept[:position] + kept[position + size :]
        if trial.seats(fewer, within) is not None:
            kept = fewer
        else:
            position += size
    return kept


def single(trial: Trial, stops: list[Move], found: Found) -> Found:
    """One attempt in place of several moves, if it alone makes room and loses less; `stops`: the cheapest first."""
    if len(found.moves) < 2:
        return found
    missing = trial.missing_gpu_units
    large = [move for move in stops if trial.freed_gpu_units(move) >= missing]
    for move in large[:SINGLE_VICTIMS]:
        if move.price >= found.price:
            break
        nodes = trial.seats([move])
        if nodes is not None:
            return Found((move,), nodes)
    return found


# ---------------------------------------------------------------- the orders


def order(draft: Draft, claim: Claim, cause: StopCause, found: Found, reason: str = "") -> None:
    """Stop and shrink the victims for the claim, and promise it the seats."""
    now_s = draft.facts.now_s
    verb = "reclaimed" if cause is StopCause.RECLAIMED else "preempted"
    stopped = {move.victim.id for move in found.moves if move.stops}
    reason = reason or f"{verb} for {claim.id} (priority {claim.priority}, queue {claim.queue})"
    for move in found.moves:
        victim = move.victim
        by_s = now_s + victim.spec.grace_s
        if move.stops:
            ordered = StopOrder(cause, reason, now_s, by_s, claim.id)
            draft.stop(Stop(victim.id, victim.attempt, ordered, move.cost_gpu_s))
        elif victim.id not in stopped:
            draft.remove(victim, {m.surplus for m in move.members}, Removal(set(), by_s, claim.id, reason))
            draft.removals[victim.id].cost_gpu_s += move.cost_gpu_s
    members = draft.charge(claim, found.nodes, draft.soon)
    names = ", ".join(sorted({move.victim.id for move in found.moves}))
    draft.reserves.append(Reserve(claim.id, members, True, f"seats that {names} gives up"))
