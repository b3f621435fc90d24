"""Stage 6, last: reclaim by place. Any work of a side that holds more than its share may go, where least is lost.

What else counts as borrowed is told by priority and seniority (`victims.py`), and may lie so scattered that no node
comes free by it. So for a claim within its share that nothing else makes room for, whatever lies in the sides beside it
that hold more than they deserve is looked at, node by node, as long as no queue that gives ends below its share.

Why nobody takes back in turn. For each resource and depth of the tree count what queues hold of their shares,
min(held, deserved). The claim stays within all shares on its path, so it raises that count where the paths part;
whoever gives ends at its share or above, so it lowers it nowhere there or below. (Of what is not GPUs a claim with GPUs
may take from a queue below its share; then the count of GPUs rises all the same.) The counts, of GPUs before others and
deeper levels before higher ones, only rise by such reclaims, and they are bounded; and who gave would now borrow, so it
may not reclaim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from rayorch.core.planning.claims import Claim
from rayorch.core.planning.draft import Draft, Move
from rayorch.core.planning.evict import Found, Trial, lacks_only_quota, order, without
from rayorch.core.planning.victims import has_a_share, may_go, moves_of, sides_above
from rayorch.core.room import Room
from rayorch.core.types import (
    GPU,
    MODEL_PREFIX,
    NodeId,
    QueueId,
    Resources,
    StopCause,
    WorkloadId,
)

STEPS = 4_000
"""How many sets of moves are gone through for one claim."""

STEPS_ON_NODE = 256
"""How many of them on one node."""

DOMAINS = 8
"""In how many domains of a required level seats are tried for real."""

Limit = tuple[QueueId, str]
"""A queue's share of a resource."""


def reclaim_by_place(draft: Draft, claim: Claim) -> bool:
    """Order the stops of any work of sides above their shares after which the claim fits; False: there are none."""
    if not draft.facts.profile.eviction.by_place or draft.budget <= 0:
        return False
    if not has_a_share(draft.soon.quota, claim.queue, claim.resources):
        return False
    lot = _lot(draft, claim)
    if lot is None or lacks_only_quota(draft, claim):
        return False
    ways = [
        found
        for shape in claim.shape.by_model
        if (found := _search(lot, Trial.on(draft, claim, shape, True))) is not None
    ]
    if not ways:
        return False
    order(draft, claim, StopCause.RECLAIMED, min(ways, key=lambda found: found.price))
    return True


# ---------------------------------------------------------------- what may go


@dataclass(frozen=True, slots=True)
class Piece:
    """A move, and how much it takes of what each queue may lose."""

    move: Move
    takes: tuple[tuple[Limit, int], ...]

    @property
    def id(self) -> WorkloadId:
        """Whose it is."""
        return self.move.victim.spec.id


@dataclass(frozen=True, slots=True)
class OnNode:
    """What a piece frees on one node of the resource that counts; the least price for that goes first."""

    piece: Piece
    frees: int

    @property
    def key(self) -> tuple[float, bool, tuple[object, ...]]:
        """By what a unit costs there, surplus seats before whole attempts, then by the move's own key."""
        price = self.piece.move.price
        return (price / self.frees if self.frees else price, self.piece.move.stops, self.piece.move.key)


@dataclass(frozen=True, slots=True)
class Lot:
    """All that could go for claims of a queue.

    `name`: the resource by which numbers are compared; `most`: no more of it than that. `may_lose`: how much each queue
    may lose of what it has a share of; what is not named is not bounded.
    """

    name: str
    most: int
    may_lose: Mapping[Limit, int]
    on: Mapping[NodeId, Sequence[OnNode]]


def _lot(draft: Draft, claim: Claim) -> Lot | None:
    """Made once for all claims of a queue that name the same resources, until something is taken or leaves."""
    names = tuple(name for name, n in claim.resources if n > 0)
    key = (claim.queue, names, len(draft.charged))
    if draft.lot is None or draft.lot[0] != key:
        draft.lot = (key, _made(draft, claim, names))
    return draft.lot[1]


def _made(draft: Draft, claim: Claim, names: tuple[str, ...]) -> Lot | None:
    quota = draft.soon.quota
    above = {name: set(sides_above(draft, claim, name, True)) for name in names}
    if not any(above.values()):
        return None
    counted = GPU if GPU in names else next(name for name in names if above[name])
    may_lose: dict[Limit, int] = {}
    on: dict[NodeId, list[OnNode]] = {}
    sums: dict[Limit | None, int] = {}
    for queue, live in draft.facts.live_in.items():
        parting = quota.divergence(claim.queue, queue)
        if parting is None:
            continue
        over = [name for name in names if parting[1] in above[name]]
        if not over:
            continue
        limits = _limits(draft, queue, parting, GPU in names and quota.deserves(parting[0], GPU))
        may_lose.update(limits)
        for workload in live:
            for move in moves_of(draft, workload):
                frees = move.frees
                if not any(frees.units(name) for name in over):
                    continue
                takes = tuple((limit, n) for limit in limits if (n := frees.units(limit[1])) > 0)
                if all(n <= limits[limit] for limit, n in takes) and may_go(draft, claim, move, True):
                    _put(on, Piece(move, takes), counted)
                    top = next((limit for limit, _ in reversed(takes) if limit[1] == counted), None)
                    sums[top] = sums.get(top, 0) + frees.units(counted)
    for entries in on.values():
        entries.sort(key=lambda entry: entry.key)
    most = sum(n if limit is None else min(n, may_lose[limit]) for limit, n in sums.items())
    return Lot(counted, most, may_lose, on) if on else None


def _put(on: dict[NodeId, list[OnNode]], piece: Piece, counted: str) -> None:
    frees: dict[NodeId, int] = {}
    for member in piece.move.members:
        frees[member.node] = frees.get(member.node, 0) + member.bundle.units(counted)
    for node, n in frees.items():
        on.setdefault(node, []).append(OnNode(piece, n))


def _limits(draft: Draft, queue: QueueId, parting: tuple[QueueId, QueueId], for_gpus: bool) -> dict[Limit, int]:
    """What each queue from the parting down to this one may lose of what it has a share of.

    `for_gpus`: the claim takes up a share of GPUs. Then what a queue holds less of than its share, but for GPUs, does
    not protect it. Any other claim must leave the queues above the parting their shares too: it may take GPUs with it.
    """
    quota, found = draft.soon.quota, dict[Limit, int]()
    for spec in quota.path(queue):
        for name, due in spec.deserved:
            more = quota.used_of(spec.id, name) - due
            if due > 0 and (more >= 0 or not for_gpus or name == GPU or name.startswith(MODEL_PREFIX)):
                found[spec.id, name] = max(0, more)
        if for_gpus and spec.id == parting[1]:
            break
    return found


# ---------------------------------------------------------------- where least is lost


def _search(lot: Lot, trial: Trial) -> Found | None:
    """The moves that were found to count for least, in the domain where that is so, and the seats then."""
    pieces = sorted(
        (bundle for bundle, count in trial.shape.bundles for _ in range(count)),
        key=lambda bundle: (-bundle.units(lot.name), -bundle.units("CPU")),
    )
    if lot.name == GPU and trial.missing_gpu_units > lot.most:
        return None
    steps = [STEPS]
    tries: list[tuple[float, int, list[Move]]] = []
    for nth, nodes in enumerate(_spaces(trial)):
        if steps[0] <= 0:
            break
        filling = Filling(lot, trial, trial.draft.soon.room.copy(), dict(lot.may_lose), steps)
        if (moves := filling.fill(pieces, nodes)) is not None and moves:
            tries.append((sum(move.price for move in moves), nth, moves))
    for _, _, moves in sorted(tries, key=lambda found: found[:2])[:DOMAINS]:
        if trial.seats(moves) is not None:
            kept = without(trial, sorted(moves, key=lambda move: (move.stops, move.key), reverse=True), 1, None)
            final = trial.seats(kept)
            return Found(tuple(kept), final) if final is not None and kept else None
    return None


def _spaces(trial: Trial) -> Iterable[Sequence[NodeId]]:
    """The sets of nodes of which the claim must keep to one, by the outermost level that it names."""
    shape, topology = trial.shape, trial.draft.facts.topology
    level = shape.topology.required
    if level is None:
        return (topology.of_model(trial.model, topology.nodes),)
    if shape.near:
        domains = {domain for node in shape.near if (domain := topology.domain_of(level, node)) is not None}
        return tuple(topology.of_model(trial.model, domain.nodes) for domain in domains) if len(domains) == 1 else ()
    return tuple(topology.of_model(trial.model, domain.nodes) for domain in topology.at(level))


@dataclass(slots=True)
class Filling:
    """A gang being seated in one domain, piece by piece, each where it costs least beyond those before it.

    `room`: as it is when all chosen moves have taken effect and the pieces before are seated. `left`: what each queue
    may still lose. `gone`: the surplus numbers that are chosen of each victim (0: all that it holds).
    """

    lot: Lot
    trial: Trial
    room: Room
    left: dict[Limit, int]
    steps: list[int]
    chosen: list[Move] = field(default_factory=list)
    gone: dict[WorkloadId, set[int]] = field(default_factory=dict)

    def fill(self, pieces: Sequence[Resources], nodes: Sequence[NodeId]) -> list[Move] | None:
        """The moves after which all pieces have a seat, or None."""
        heap: list[tuple[float, int, NodeId, tuple[OnNode, ...] | None]] = []
        like: Resources | None = None
        for bundle in pieces:
            if bundle != like:
                like, heap = bundle, [entry for node in nodes if (entry := self._bound(node, bundle)) is not None]
                heapify(heap)
            if not self._seat(bundle, heap, set(nodes) if self.trial.shape.topology.required else None):
                return None
        return self.chosen

    def _seat(
        self,
        bundle: Resources,
        heap: list[tuple[float, int, NodeId, tuple[OnNode, ...] | None]],
        within: set[NodeId] | None,
    ) -> bool:
        while heap:
            _, free, node, ways = heappop(heap)
            if ways is None or not self._still(node, bundle, ways):
                best = self._cheapest(node, bundle)
                if best is not None:
                    heappush(heap, (sum(way.piece.move.price for way in best), free, node, best))
                elif self.steps[0] <= 0:
                    return False
                continue
            others = {member.node for way in ways for member in way.piece.move.members} - {node}
            for way in ways:
                self._choose(way.piece)
            self.room.take(node, bundle)
            for again in (node, *sorted(others if within is None else others & within)):
                if (entry := self._bound(again, bundle)) is not None:
                    heappush(heap, entry)
            return True
        return False

    def _bound(self, node: NodeId, bundle: Resources) -> tuple[float, int, NodeId, None] | None:
        """No less than that the piece costs on the node; None: it can't lie there, by numbers."""
        room = self.room
        if not room.usable(node) or node in self.trial.draft.closed or node in self.trial.draft.keeping:
            return None
        if self.trial.model and self.trial.draft.facts.topology.models.get(node) != self.trial.model:
            return None
        free = room.free(node).units(self.lot.name)
        if room.fits(node, bundle):
            return (0.0, free, node, None)
        missing, cost = bundle.units(self.lot.name) - free, 0.0
        entries = self.lot.on.get(node, ())
        for entry in entries:
            if missing <= 0:
                break
            if entry.frees and self._open(entry.piece):
                part = min(1.0, missing / entry.frees)
                missing, cost = missing - entry.frees, cost + part * entry.piece.move.price
        return (cost, free, node, None) if missing <= 0 and entries else None

    def _open(self, piece: Piece) -> bool:
        """Whether the move may still go, after those that are chosen."""
        gone = self.gone.get(piece.id)
        if gone is not None and (piece.move.stops or 0 in gone or piece.move.members[0].surplus in gone):
            return False
        return all(n <= self.left[limit] for limit, n in piece.takes)

    def _still(self, node: NodeId, bundle: Resources, ways: Sequence[OnNode]) -> bool:
        """Whether what was found for the piece still holds."""
        taken: dict[Limit, int] = {}
        for way in ways:
            if not self._open(way.piece):
                return False
            for limit, n in way.piece.takes:
                taken[limit] = taken.get(limit, 0) + n
        return all(n <= self.left[limit] for limit, n in taken.items()) and self._fits(node, bundle, ways)

    def _fits(self, node: NodeId, bundle: Resources, ways: Sequence[OnNode]) -> bool:
        if not ways:
            return self.room.fits(node, bundle)
        room = self.room.part((node,))
        for way in ways:
            for member in way.piece.move.members:
                if member.node == node:
                    room.give(node, member.bundle, member.devices)
        return room.fits(node, bundle)

    def _choose(self, piece: Piece) -> None:
        self.chosen.append(piece.move)
        numbers = {0} if piece.move.stops else {m.surplus for m in piece.move.members}
        self.gone.setdefault(piece.id, set()).update(numbers)
        for limit, n in piece.takes:
            self.left[limit] -= n
        for member in piece.move.members:
            self.room.give(member.node, member.bundle, member.devices)

    def _cheapest(self, node: NodeId, bundle: Resources) -> tuple[OnNode, ...] | None:
        """The moves that count for least after which the piece fits on the node, of every set or of so many."""
        if self.room.fits(node, bundle):
            return ()
        entries = [entry for entry in self.lot.on.get(node, ()) if self._open(entry.piece)]
        missing = bundle.units(self.lot.name) - self.room.free(node).units(self.lot.name)
        rest = [0] * (len(entries) + 1)
        for i in range(len(entries) - 1, -1, -1):
            rest[i] = rest[i + 1] + entries[i].frees
        best: list[tuple[float, tuple[OnNode, ...]]] = []
        steps = [min(STEPS_ON_NODE, self.steps[0])]
        spent = steps[0]

        def go(i: int, missing: int, chosen: tuple[OnNode, ...], price: float, left: dict[Limit, int]) -> None:
            if steps[0] <= 0 or (best and price >= best[0][0]) or missing > rest[i]:
                return
            steps[0] -= 1
            if missing <= 0 and chosen and self._fits(node, bundle, chosen):
                best[:] = [(price, chosen)]
                return
            if i == len(entries):
                return
            piece = entries[i].piece
            if _together(chosen, piece) and all(n <= left.get(k, self.left[k]) for k, n in piece.takes):
                after = left | {k: left.get(k, self.left[k]) - n for k, n in piece.takes}
                go(i + 1, missing - entries[i].frees, (*chosen, entries[i]), price + piece.move.price, after)
            go(i + 1, missing, chosen, price, left)

        go(0, missing, (), 0.0, {})
        self.steps[0] -= spent - steps[0]
        return best[0][1] if best else None


def _together(chosen: Sequence[OnNode], piece: Piece) -> bool:
    """Whether the move can be chosen beside these: of one victim either surplus seats or all that it holds."""
    return all(way.piece.id != piece.id or not (way.piece.move.stops or piece.move.stops) for way in chosen)
