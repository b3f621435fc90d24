"""Who waits is looked at within the cells of its queue, before all other work of the turn.

A claim is *within cells* when its seats fit into those that its queue has bound, beside what lies there in cells, and
into so many more as the queue is still owed. It starts there, bound cells first, so that no more are taken than it
needs; what is lent there goes, as little as will do and where least is lost. Small cells before larger ones; a gang
lies in cells of one kind. Whatever is not within cells is looked at in its turn like all other work.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from rayorch.core.cells import CellKind, touched
from rayorch.core.decisions import Reserve, Start
from rayorch.core.ordering import SortKey
from rayorch.core.planning.cells import CellBook, Owner, leaving_from
from rayorch.core.planning.charges import fits_quota
from rayorch.core.planning.claims import Claim, Shape, start_claim
from rayorch.core.planning.draft import Draft, Move
from rayorch.core.planning.evict import Found, order
from rayorch.core.planning.queue_gates import queue_gate
from rayorch.core.planning.rights import delay_left_s
from rayorch.core.planning.seats import Search, fill_shape, find
from rayorch.core.planning.together import starts_of
from rayorch.core.planning.victims import holder_of
from rayorch.core.planning.waiting import Verdict
from rayorch.core.planning.waits import quota_waits, releasing_wait
from rayorch.core.planning.walk import Walk
from rayorch.core.room import Room
from rayorch.core.topology import NODE_LEVEL, Domain, Topology
from rayorch.core.types import CellNodes, NodeId, QueueId, StopCause, Workload

LOOKS = 64
"""How many of those who wait in one queue are looked at within its cells in one turn."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a claim is within cells; why it waits then, None: it starts."""

    within: bool
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Seats within cells, the cells that they lie in, and what must go before."""

    moves: tuple[Move, ...]
    nodes: tuple[NodeId, ...]
    domains: tuple[Domain, ...]


def serve_in_cells(draft: Draft, walk: Walk) -> None:
    """Start all that are within the cells of their queues, or make room for them; the walk passes over these."""
    book = draft.cells
    if book is None or not draft.facts.snapshot.synced:
        return
    failed: set[tuple[QueueId, Shape]] = set()
    shut: set[QueueId] = set()
    for key, claim in _waiting(draft, walk):
        owner = holder_of(draft, claim.queue)
        if owner is None or (owner, claim.shape) in failed or claim.queue in shut:
            continue
        outcome = _serve(draft, book, claim, owner)
        if not outcome.within:
            failed.add((owner, claim.shape))
            if draft.facts.strict(claim.queue):
                shut.add(claim.queue)
            continue
        book.served[claim.id] = outcome.verdict
        if walk.pass_over(claim.id) and outcome.verdict is not None:
            walk.left(key, claim, outcome.verdict)


def _waiting(draft: Draft, walk: Walk) -> Iterator[tuple[SortKey, Claim]]:
    """Those of queues with cells, first whom room is being freed for, then queue by queue in order."""
    owed: list[tuple[SortKey, Claim]] = []
    others: list[tuple[SortKey, Claim]] = []
    gated = walk.gated_ids()
    for key, claim in sorted(walk.joint_claims(), key=lambda entry: entry[0]):
        first = any(part.id in draft.facts.owed for part in claim.parts)
        if all(_may_lie_in_cells(part.workload) for part in claim.parts):
            (owed if first else others).append((key, claim))
    for queue, lines in walk.docket.lines():
        if holder_of(draft, queue) is None or queue_gate(draft, queue, True):
            continue
        entries = heapq.merge(*(line.entries for line in lines))
        for _, (key, workload) in zip(range(LOOKS), entries, strict=False):
            if workload.id not in gated and workload.spec.joint is None and _may_lie_in_cells(workload):
                place = walk.docket.place(workload.id)
                assert place is not None
                claim = start_claim(workload, draft.prices.of_gang(place[0].gang))
                (owed if workload.id in draft.facts.owed else others).append((key, claim))
    yield from sorted(owed, key=lambda entry: entry[0])
    yield from others


def _may_lie_in_cells(workload: Workload) -> bool:
    return not workload.spec.reservation


def _serve(draft: Draft, book: CellBook, claim: Claim, owner: QueueId) -> Outcome:
    """Start it in the smallest cells of its queue that take it, or make room for it there."""
    claim = draft.narrowed(claim)
    if claim.others or not fits_quota(claim, draft.soon.quota):
        return Outcome(False)
    kinds = [kind for queue, kind in book.count if queue == owner]
    sizes = {kind: max((len(d.nodes) for d in _domains(book, (owner, kind))), default=0) for kind in kinds}
    for kind in sorted(kinds, key=lambda kind: (sizes[kind], kind.gpus, kind)):
        on = _on_kind(claim, kind)
        place = None if on is None else _within(draft, book, on, (owner, kind))
        if on is None or place is None or (place.moves and delay_left_s(claim.workload, draft.facts.now_s)):
            continue
        verdict = _take(draft, on, place, (owner, kind))
        book.bind((owner, kind), place.domains)
        return Outcome(True, verdict)
    return Outcome(False)


def _take(draft: Draft, claim: Claim, place: Place, owner: Owner) -> Verdict | None:
    """Start it there, or promise it the place; why it still waits then."""
    queue, kind = owner
    if not place.moves and fits_quota(claim, draft.now.quota) and _free_now(draft, claim, place.nodes):
        members = draft.charge(claim, place.nodes, *draft.both)
        for start in starts_of(claim, members, f"{len(members)} seats in cells of queue {queue}"):
            draft.starts[start.workload] = replace(start, cell=kind.level, cell_domains=_named(start, place.domains))
        return None
    if place.moves:
        reason = f"its place is in a cell of queue {queue}, which takes it up with {claim.id}"
        order(draft, claim, StopCause.RECLAIMED, Found(place.moves, place.nodes), reason)
    else:
        members = draft.charge(claim, place.nodes, draft.soon)
        said = f"seats in cells of queue {queue} that are being freed"
        draft.reserves.append(Reserve(claim.id, members, True, said))
    wait, expected_s = releasing_wait(draft, draft.reserves[-1].members)
    if expected_s is not None:
        draft.estimates.setdefault(claim.id, expected_s)
    return Verdict(lambda: (*quota_waits(draft, claim), wait), False)


def _named(start: Start, domains: Sequence[Domain]) -> tuple[CellNodes, ...]:
    """The cells that the start lies in, as its owner keeps them; single nodes go without saying."""
    there = touched(domains, {member.node for member in start.members})
    return tuple((domain.name, domain.nodes) for domain in there if domain.level != NODE_LEVEL)


def _on_kind(claim: Claim, kind: CellKind) -> Claim | None:
    """The claim on GPUs of the kind; None: it may not have them."""
    models = claim.shape.accelerators
    if not models:
        return claim
    return claim.on_models((kind.model,)) if kind.model in models else None


def _domains(book: CellBook, owner: Owner) -> Iterable[Domain]:
    yield from book.bound.get(owner, ())
    yield from book.whole.get(owner[1], {}).values()


# ---------------------------------------------------------------- seats within cells


def _within(draft: Draft, book: CellBook, claim: Claim, owner: Owner) -> Place | None:
    """Where it fits into the queue's cells, in those that are bound and as few others as it takes."""
    for bound, more in _groups(draft, book, owner, claim.shape):
        for count in range(len(more) + 1):
            domains = [*bound, *more[:count]]
            if not domains or not _enough(draft, claim.shape, domains):
                continue
            nodes = tuple(sorted(node for domain in domains for node in domain.nodes))
            seats = find(claim.shape, _search(draft, nodes, _moves_on(draft, book, nodes)))
            if seats is not None:
                return _fewest(draft, book, claim.shape, seats, touched(domains, seats))
    return None


def _groups(draft: Draft, book: CellBook, owner: Owner, shape: Shape) -> list[tuple[list[Domain], list[Domain]]]:
    """The bound cells and those that may be bound; where the claim asks for one domain of an outer level, in each."""
    topology, level = draft.facts.topology, shape.topology.required

    def is_clear(domain: Domain) -> bool:
        room = _room(draft, domain.nodes, _moves_on(draft, book, domain.nodes))
        return all(room.free(node) == draft.facts.nodes[node].total for node in domain.nodes)

    bound = sorted(book.bound.get(owner, ()), key=lambda d: d.name)
    levels = topology.levels
    unknown = level not in levels or owner[1].level not in levels
    if level is None or unknown or levels.index(level) >= levels.index(owner[1].level):
        return [(bound, book.candidates(owner, sum(count for _, count in shape.bundles), is_clear))]
    more = book.candidates(owner, book.owed(owner), is_clear)
    groups: dict[str, tuple[list[Domain], list[Domain]]] = {}
    for domains, which in ((bound, 0), (more, 1)):
        for domain in domains:
            outer = topology.domain_of(level, domain.nodes[0])
            if outer is not None:
                groups.setdefault(outer.name, ([], []))[which].append(domain)

    def first(group: tuple[list[Domain], list[Domain]]) -> tuple[object, ...]:
        """Where most of the queue's work lies already, then where the next cell costs least."""
        next_one = group[1][0] if group[1] else None
        return (-len(group[0]), next_one is None, (book.price(next_one), next_one.name) if next_one else ())

    return sorted(groups.values(), key=first)


def _enough(draft: Draft, shape: Shape, domains: Sequence[Domain]) -> bool:
    """Whether the cells have as many GPUs as are asked for, all together."""
    nodes = draft.facts.nodes
    return shape.gpu_units <= sum(nodes[node].total.gpu_units for domain in domains for node in domain.nodes)


def _moves_on(draft: Draft, book: CellBook, nodes: Iterable[NodeId]) -> list[Move]:
    """All that may still go from these nodes."""
    moves = {id(move): move for node in nodes for move in book.lent.get(node, ())}
    changed = (draft.stops, draft.removals)
    return [move for move in moves.values() if not any(move.victim.spec.id in known for known in changed)]


def _search(draft: Draft, nodes: tuple[NodeId, ...], moves: Sequence[Move]) -> Search:
    """These nodes alone, as they are when the moves have taken effect."""
    room = _room(draft, nodes, moves)
    topology = Topology.of(draft.facts.nodes[node] for node in nodes)
    return replace(draft.search(room), topology=topology, closed=frozenset(), view=None)


def _room(draft: Draft, nodes: Sequence[NodeId], moves: Sequence[Move]) -> Room:
    room = draft.soon.room.part(nodes)
    for node in nodes:
        for member in leaving_from(node, moves):
            room.give(node, member.bundle, member.devices)
    return room


def _fewest(
    draft: Draft, book: CellBook, shape: Shape, seats: tuple[NodeId, ...], domains: tuple[Domain, ...]
) -> Place:
    """The seats on these nodes after no more moves than it takes; the cheapest go."""
    nodes = tuple(sorted(set(seats)))
    kept = sorted(_moves_on(draft, book, nodes), key=lambda move: (move.stops, move.key), reverse=True)
    for move in tuple(kept):
        fewer = [other for other in kept if other is not move]
        found = fill_shape(shape, nodes, _search(draft, nodes, fewer))
        if found is not None:
            kept, seats = fewer, found
    return Place(tuple(kept), seats, domains)


def _free_now(draft: Draft, claim: Claim, nodes: tuple[NodeId, ...]) -> bool:
    """Whether the seats are free now, and not only when what is leaving has left."""
    rooms = [books.room.part(set(nodes)) for books in draft.both]
    for ask, node in zip(claim.asks, nodes, strict=True):
        if not all(room.fits(node, ask.bundle) for room in rooms):
            return False
        for room in rooms:
            room.take(node, ask.bundle)
    return True
