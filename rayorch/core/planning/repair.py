"""Gangs that lost a part: what is left of their seats is theirs again, and the rest comes as near to it as can be.

A gang whose attempt ended because a node was lost, was drained or fell silent goes before new work for
`Profile.repair_hold_s`. Meanwhile nobody but another such gang that goes before it gets the seats that it still could
have; after that it has released everything and waits like the others. Such gangs are all looked at before any of them
keeps anything, so that no two of them hold what the other lacks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from rayorch.core.decisions import Reserve
from rayorch.core.planning.claims import Claim, Shape, next_start
from rayorch.core.planning.draft import Draft
from rayorch.core.planning.groups import Cell
from rayorch.core.planning.nest import seat
from rayorch.core.planning.seats import Search, find
from rayorch.core.policy import SortKey
from rayorch.core.sharing import uses_devices
from rayorch.core.slot import Slot
from rayorch.core.topology import Domain, Topology
from rayorch.core.types import Kind, Member, NodeId, Resources, State, TopologyRequest, total

Pins = Mapping[int, NodeId]
"""The node of each seat, by its place among those that are asked for, that is taken again."""


def seats_for(draft: Draft, claim: Claim, search: Search) -> tuple[NodeId, ...] | None:
    """Seats for a claim; for a gang that lost a part, first those that are left with new ones beside them."""
    former = claim.workload.former
    if claim.grows or claim.parts or not former:
        return find(claim.shape, search)
    search = _not_of_others(draft, claim, search)
    nodes = again(claim, former, search)
    return nodes if nodes is not None else find(claim.shape, search)


def breaking(draft: Draft) -> list[Claim]:
    """The next attempts of gangs that are being ended because they lost a part: their seats come free, but for them."""
    found: list[Claim] = []
    for id in sorted(draft.facts.repairs):
        workload = draft.facts.workloads[id]
        if workload.state is State.STOPPING and not workload.cancel_requested and workload.spec.kind is not Kind.SERVE:
            found.append(next_start(replace(workload, former=workload.placement)))
    return found


def keep_seats(draft: Draft) -> None:
    """Hold what is left of these gangs' seats until they can start again; nothing that comes after may have them."""
    claims, draft.unrepaired = draft.unrepaired, []
    for claim in claims:
        former = {(m.role, m.index): m.node for m in claim.workload.former}
        members: list[Member] = []
        for ask in claim.asks:
            node = former.get((ask.role, ask.index))
            if node is not None and draft.keep(claim.id, node, ask.bundle):
                members.append(ask.on(node, ()))
        if members:
            reason = "what is left of the seats of its last attempt; nothing behind it may take them"
            draft.kept_seats[claim.id] = tuple(members)
            draft.reserves.append(Reserve(claim.id, tuple(members), False, reason, kept=True))


def return_seats(draft: Draft) -> None:
    """Before nodes are asked for: to those that wait for nothing but room, which is looked for beside these seats."""
    gated = {claim.id for claim in draft.gated}
    for id in sorted(draft.kept):
        if id not in gated and draft.facts.workloads[id].state is State.PENDING:
            draft.let_go(id)


def take_back_seats(draft: Draft) -> None:
    """Afterwards, so that the reasons of those who wait name what is kept from them."""
    for id in sorted(draft.kept_seats.keys() - draft.kept.keys()):
        for member in draft.kept_seats[id]:
            draft.keep(id, member.node, member.bundle)


def lacking_part(draft: Draft, claim: Claim) -> Claim:
    """Those seats of the claim alone that are not kept for it; where a domain is required, in that of the others."""
    kept = {(member.role, member.index) for member in draft.kept_seats[claim.id]}
    asks = tuple(ask for ask in claim.asks if (ask.role, ask.index) not in kept)
    counts = Counter(ask.bundle for ask in asks)
    level = claim.shape.topology.required
    near = tuple(sorted({m.node for m in draft.kept_seats[claim.id]})) if level is not None else ()
    bundles = tuple(sorted(counts.items(), key=repr))
    shape = Shape(bundles, TopologyRequest(required=level), False, near, claim.shape.accelerators)
    return replace(claim, asks=asks, shape=shape, resources=total(ask.bundle for ask in asks), others=())


def again(claim: Claim, former: tuple[Member, ...], search: Search) -> tuple[NodeId, ...] | None:
    """The seats of the last attempt that are there, each in its place, and new ones near them; None: there is no way.

    Without any that is there, the gang has nothing to keep to, and this is None too.
    """
    places = {(m.role, m.index): m.node for m in former}
    trial = replace(search, rooms=tuple(room.copy() for room in search.rooms), view=None)
    pins: dict[int, NodeId] = {}
    for position, ask in enumerate(claim.asks):
        node = places.get((ask.role, ask.index))
        if node is not None and trial.takes(node, ask.bundle):
            for room in trial.rooms:
                room.take(node, ask.bundle)
            pins[position] = node
    models = {trial.topology.models.get(n, "") for p, n in pins.items() if uses_devices(claim.asks[p].bundle)}
    if not pins or (claim.shape.accelerators and not models <= set(claim.shape.accelerators)):
        return None
    if claim.shape.accelerators and len(models) != 1:
        return None  # nothing says of which model the others would have to be
    cell = claim.shape.layout or Cell(claim.shape.topology, claim.shape.bundles)
    rest, positions = _missing(cell, 0, pins)
    nodes = dict(pins)
    if positions:
        found = seat(rest, trial.on(models.pop()) if claim.shape.accelerators else trial)
        if found is None:
            return None
        nodes.update(zip(positions, found, strict=True))
    chosen = tuple(nodes[position] for position in range(len(claim.asks)))
    return chosen if keeps_to(cell, chosen, search.topology) else None


def keeps_to(cell: Cell, nodes: tuple[NodeId, ...], topology: Topology) -> bool:
    """Whether seats on these nodes, in the cell's order, lie in one domain wherever they must."""
    level = cell.topology.required
    if level is not None:
        domains = {topology.domain_of(level, node) for node in nodes}
        if len(domains) > 1 or None in domains:
            return False
    first = sum(count for _, count in cell.seats)
    for inner, count in cell.inside:
        for _ in range(count):
            if not keeps_to(inner, nodes[first : first + inner.count], topology):
                return False
            first += inner.count
    return True


def _missing(cell: Cell, first: int, pins: Pins) -> tuple[Cell, list[int]]:
    """The cell without the seats that are taken again, near these; and the places of the others, in its order."""
    near = tuple(sorted({pins[place] for place in range(first, first + cell.count) if place in pins}))
    if not near:
        return cell, list(range(first, first + cell.count))
    positions: list[int] = []
    seats: list[tuple[Resources, int]] = []
    for bundle, count in cell.seats:
        lacking = [place for place in range(first, first + count) if place not in pins]
        positions += lacking
        seats += [(bundle, len(lacking))] if lacking else []
        first += count
    inside: list[tuple[Cell, int]] = []
    for inner, count in cell.inside:
        for _ in range(count):
            part, lacking = _missing(inner, first, pins)
            positions += lacking
            inside += [(part, 1)] if lacking else []
            first += inner.count
    return replace(cell, seats=tuple(seats), inside=tuple(inside), near=near), positions


def _not_of_others(draft: Draft, claim: Claim, search: Search) -> Search:
    """What others may take again goes last, if it can be helped."""
    repairs = (draft.facts.workloads[id] for id in sorted(draft.facts.repairs) if id != claim.id)
    theirs = frozenset(member.node for workload in repairs for member in workload.former)
    if not theirs:
        return search

    def score(bundle: Resources, node: NodeId, slot: Slot) -> SortKey:
        return (int(node in theirs), *search.score(bundle, node, slot))

    def domain_score(domain: Domain) -> SortKey:
        return (any(node in theirs for node in domain.nodes), *search.domain_score(domain))

    return replace(search, score=score, domain_score=domain_score, view=None)
