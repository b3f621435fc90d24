"""Where the seats of a tree of cells go: each cell in the smallest domain that takes it, whole or not at all.

A cell first tries the domains of the innermost level, then those further out, up to the one that it requires. Inside
the domain that was found, equal units (seats, or equal cells) are divided among the domains of the next level inwards
(`segments.py`), and so on down to the nodes. Nothing here changes a Room that it is given: whatever is tried is tried
on copies, and a trial that fails is dropped.

Exact for equal units: they find a place whenever there is one. Cells of different size are placed largest first, each
where least is left over, and a bounded number of other ways is tried when that fails; a way that only an exhaustive
search would find may be missed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rayorch.core.planning import segments
from rayorch.core.planning.groups import Cell
from rayorch.core.planning.index import EVERYWHERE as EVERYWHERE
from rayorch.core.topology import NODE_LEVEL, Domain, Topology
from rayorch.core.types import CPU, NodeId, Resources, TopologyRequest

if TYPE_CHECKING:
    from rayorch.core.planning.seats import Search

MAX_TRIES = 64
"""How many domains are tried in all, in one search, for cells of different size beside each other."""

Unit = Resources | Cell
"""One of a row of equal things to be placed: a seat, or a cell."""


@dataclass(frozen=True, slots=True)
class Found:
    """A node for each seat of a cell in its order, and the search with these seats charged."""

    nodes: tuple[NodeId, ...]
    search: Search


def seat(cell: Cell, search: Search, within: Domain | None = None) -> tuple[NodeId, ...] | None:
    """A node for every seat of the cell, in its order; None: no place. `within`: only these nodes are looked at."""
    everywhere = Domain(EVERYWHERE, "", search.topology.nodes)
    found = _cell(cell, within or everywhere, replace(search, tries=[MAX_TRIES]))
    return found.nodes if found is not None else None


def fill_domain(cell: Cell, domain: Domain, search: Search) -> tuple[NodeId, ...] | None:
    """The same inside a domain that is known to meet what the cell itself asks of the topology."""
    found = _fill(cell, domain, _fork(replace(search, tries=[MAX_TRIES])))
    return found.nodes if found is not None else None


# ---------------------------------------------------------------- one cell


def _cell(cell: Cell, within: Domain, search: Search) -> Found | None:
    """The cell in the smallest domain inside `within` that takes it."""
    return next(_ways(cell, within, search), None)


def _ways(cell: Cell, within: Domain, search: Search) -> Iterator[Found]:
    """The same, domain after domain. `search` is not charged."""
    if cell.accelerators and search.model and search.model not in cell.accelerators:
        return
    if cell.accelerators and not search.model:
        for model in cell.accelerators:
            for found in _ways(cell, within, search.on(model)):
                yield Found(found.nodes, replace(found.search, model=""))
        return
    for domains in _spaces(cell, within, search.topology):
        for domain in _roomy(cell, domains, search):
            way = _fill(cell, domain, _fork(search)) if _could(cell, domain, search) else None
            if way is not None:
                yield way


def _roomy(cell: Cell, domains: Sequence[Domain], search: Search) -> list[Domain]:
    """The domains that have as much room in all as the cell takes, the one to try first comes first."""
    whole = isinstance(domains, tuple) and bool(domains) and search.topology.is_whole(domains[0])
    if search.view is not None and whole:
        view = search.view
        roomy = [d for d in view.able(domains, cell.bundles, search.model) if view.units(d) >= cell.gpu_units]
    else:
        roomy = [domain for domain in domains if search.free_gpu_units(domain.nodes) >= cell.gpu_units]
    if len(roomy) < 2:
        return roomy
    return sorted(roomy, key=lambda domain: (*search.domain_score(domain), domain.name))


def _could(cell: Cell, domain: Domain, search: Search) -> bool:
    """A necessary test, sufficient for a cell of equal units: there is room for each kind of unit on its own."""
    seats = all(times(bundle, domain, search, count) >= count for bundle, count in cell.seats)
    return seats and all(times(inner, domain, search, count) >= count for inner, count in cell.inside)


def _spaces(cell: Cell, within: Domain, topology: Topology) -> Iterator[Sequence[Domain]]:
    """Sets of domains to try in turn, from the smallest that could do to the largest that is allowed."""
    required = cell.topology.required
    if cell.near:
        for level in topology.inwards_of(required):
            yield _around(cell.near, level, within, topology)
        if required is None:
            yield (within,)
        return
    limit = required if required is not None else within.level
    unknown = topology.unknown.get(required or "")
    if unknown:  # a node that is in no domain of the level is not in one that they share
        within = Domain(NODE_LEVEL, within.name, tuple(node for node in within.nodes if node not in unknown))
    for level in topology.inwards_of(limit or None):
        if level == within.level and required is None:
            break
        yield _parts(within, level, topology)
    if required is None:
        yield (within,)


def _around(near: tuple[NodeId, ...], level: str, within: Domain, topology: Topology) -> tuple[Domain, ...]:
    """The one domain of the level that all these nodes are in, as far as it lies in `within`."""
    found = {topology.domain_of(level, node) for node in near}
    domain = found.pop() if len(found) == 1 else None
    if domain is None:
        return ()
    if within.level == EVERYWHERE:
        return (domain,)
    inside = frozenset(within.nodes)
    kept = tuple(node for node in domain.nodes if node in inside)
    return (domain if len(kept) == len(domain.nodes) else Domain(level, domain.name, kept),) if kept else ()


def _parts(within: Domain, level: str, topology: Topology) -> Sequence[Domain]:
    """The domains of the level inside this one, cut down to its nodes; O(its nodes)."""
    if within.level == EVERYWHERE and len(within.nodes) == len(topology.nodes):
        return topology.at(level)
    found: dict[str, tuple[Domain, list[NodeId]]] = {}
    for node in within.nodes:
        domain = topology.domain_of(level, node)
        if domain is not None:
            found.setdefault(domain.name, (domain, []))[1].append(node)
    return [
        domain if len(nodes) == len(domain.nodes) else Domain(level, domain.name, tuple(nodes))
        for domain, nodes in found.values()
    ]


# ---------------------------------------------------------------- inside a cell


def _fill(cell: Cell, domain: Domain, search: Search) -> Found | None:
    """All that the cell consists of, inside a domain that meets what the cell itself asks; `search` may be charged."""
    origin = _fork(search) if len(cell.inside) > 1 else search
    units: list[tuple[Unit, int]] = [*cell.seats, *cell.inside]
    placed: dict[int, tuple[NodeId, ...]] = {}
    for position in sorted(range(len(units)), key=lambda i: (*_size(units[i][0]), i)):
        unit, count = units[position]
        found = _row(unit, count, domain, search, cell.topology, placed)
        if found is None:
            return _another_way(cell, domain, origin) if len(cell.inside) > 1 else None
        placed[position], search = found.nodes, found.search
    return Found(_in_order(units, placed, search.topology), search)


def _in_order(
    units: list[tuple[Unit, int]], placed: dict[int, tuple[NodeId, ...]], topology: Topology
) -> tuple[NodeId, ...]:
    """All seats by their places: equal units beside each other lie along the topology, so that ranks do."""
    nodes: list[NodeId] = []
    for position, (unit, count) in enumerate(units):
        size = unit.count if isinstance(unit, Cell) else 1
        found = placed[position]
        parts = [found[n * size : (n + 1) * size] for n in range(count)]
        parts.sort(key=lambda part: topology.paths[part[0]][::-1] if part else ())
        nodes += [node for part in parts for node in part]
    return tuple(nodes)


def _another_way(cell: Cell, domain: Domain, search: Search) -> Found | None:
    """The cells inside in other domains than those where least is left over, as many ways as `MAX_TRIES` allows."""
    inner = [entry for entry, count in cell.inside for _ in range(count)]
    if len(inner) > MAX_TRIES or search.tries[0] <= 0:
        return None
    order = sorted(range(len(inner)), key=lambda i: (*_size(inner[i]), i))

    def rest(depth: int, search: Search) -> tuple[dict[int, tuple[NodeId, ...]], Search] | None:
        if depth == len(order):
            return {}, search
        for found in _ways(inner[order[depth]], domain, search):
            if (below := rest(depth + 1, found.search)) is not None:
                return {order[depth]: found.nodes, **below[0]}, below[1]
            search.tries[0] -= 1
            if search.tries[0] <= 0:
                break
        return None

    cells = rest(0, search)
    if cells is None:
        return None
    placed, search = cells
    seats: list[NodeId] = []
    for bundle, count in cell.seats:
        found = _row(bundle, count, domain, search, cell.topology, placed)
        if found is None:
            return None
        seats += found.nodes
        search = found.search
    return Found((*seats, *(node for i in range(len(inner)) for node in placed[i])), search)


def _size(unit: Unit) -> tuple[int, int]:
    """What goes first: more GPUs, then more seats or CPUs."""
    if isinstance(unit, Cell):
        return -unit.gpu_units, -unit.count
    return -unit.gpu_units, -unit.units(CPU)


def _row(
    unit: Unit,
    count: int,
    domain: Domain,
    search: Search,
    wish: TopologyRequest,
    placed: dict[int, tuple[NodeId, ...]],
) -> Found | None:
    """`count` equal units inside the domain; beside what has been placed of the same cell, if they fit there."""
    if placed and isinstance(unit, Resources):
        used = frozenset(node for nodes in placed.values() for node in nodes)
        beside = Domain(domain.level, domain.name, tuple(node for node in domain.nodes if node in used))
        if times(unit, beside, search, count) >= count:
            return _on_nodes(unit, count, beside.nodes, search)
    return _spread(unit, count, domain, search, wish)


def _spread(unit: Unit, count: int, domain: Domain, search: Search, wish: TopologyRequest) -> Found | None:
    """Equal units divided among the domains of the next level inwards, and so on; the nodes in order of the units."""
    level = _next_level(unit, domain, search.topology, wish.balanced)
    if level is None:
        return _in_place(unit, count, domain, search)
    children = _children(domain, level, search.topology, strays=not _needs(unit))
    if len(children) == 1 and len(children[0].nodes) == len(domain.nodes):
        return _spread(unit, count, children[0], search, wish)
    capacities = [times(unit, child, search, count) for child in children]
    ranks = [search.domain_score(child) for child in children]
    divide = segments.balanced if wish.balanced else segments.together
    parts = divide(capacities, ranks, count)
    if parts is None:
        return None
    nodes: list[NodeId] = []
    for index in sorted(parts):
        if parts[index]:
            found = _spread(unit, parts[index], children[index], search, wish)
            if found is None:
                return None
            nodes += found.nodes
            search = found.search
    return Found(tuple(nodes), search)


def _next_level(unit: Unit, domain: Domain, topology: Topology, evenly: bool) -> str | None:
    """The next level inwards at which the units are divided; None: they are placed one by one."""
    outside_in = tuple(reversed(topology.inwards_of(domain.level or None)))
    further = [level for level in outside_in if level != domain.level]
    if isinstance(unit, Cell):
        required = unit.topology.required
        return further[0] if required in further else None  # without one it looks for its own place
    if not further or (further[0] == NODE_LEVEL and not evenly):
        return None
    return further[0]


def _needs(unit: Unit) -> bool:
    """Whether the unit must lie in one domain of a level."""
    return isinstance(unit, Cell) and unit.topology.required is not None


def _children(domain: Domain, level: str, topology: Topology, strays: bool) -> list[Domain]:
    """The domains of the level inside this one; with `strays` also the nodes that have no value of it, one by one."""
    found = list(_parts(domain, level, topology))
    if strays:
        known = {node for child in found for node in child.nodes}
        found += [Domain(NODE_LEVEL, node, (node,)) for node in domain.nodes if node not in known]
    return found


def _in_place(unit: Unit, count: int, domain: Domain, search: Search) -> Found | None:
    """Units one by one: seats to the nodes of least score, cells each to the smallest domain that takes it."""
    if isinstance(unit, Resources):
        return _on_nodes(unit, count, domain.nodes, search)
    nodes: list[NodeId] = []
    for _ in range(count):
        found = _cell(unit, domain, search)
        if found is None:
            return None
        nodes += found.nodes
        search = found.search
    return Found(tuple(nodes), search)


def _on_nodes(bundle: Resources, count: int, nodes: Sequence[NodeId], search: Search) -> Found | None:
    chosen = fill_equal(bundle, count, nodes, search)
    return Found(tuple(chosen), replace(search, view=None)) if chosen is not None else None


def fill_equal(bundle: Resources, count: int, nodes: Sequence[NodeId], trial: Search) -> list[NodeId] | None:
    """Equal bundles on the trial's rooms, which are charged: each to the node of least score."""
    main = trial.rooms[0]
    heap = [(trial.score(bundle, node, main.slot(node)), node) for node in nodes if trial.takes(node, bundle)]
    heapq.heapify(heap)
    chosen: list[NodeId] = []
    while len(chosen) < count:
        if not heap:
            return None
        _, node = heapq.heappop(heap)
        for room in trial.rooms:
            room.take(node, bundle)
        chosen.append(node)
        if len(chosen) < count and trial.takes(node, bundle):
            heapq.heappush(heap, (trial.score(bundle, node, main.slot(node)), node))
    return chosen


def _fork(search: Search) -> Search:
    return replace(search, rooms=tuple(room.copy() for room in search.rooms))


# ---------------------------------------------------------------- capacities


def times(unit: Unit, domain: Domain, search: Search, limit: int) -> int:
    """How many such units the domain takes, at most `limit`. Exact for seats, and for cells of equal units."""
    if isinstance(unit, Resources):
        if search.view is not None and search.topology.is_whole(domain):
            return min(limit, search.view.count(unit, search.model, domain))
        return count_fitting(unit, domain.nodes, search, limit)
    level = unit.topology.required
    if level is None or level == domain.level:
        return _cells(unit, domain, search, limit)
    count = 0
    for child in _children(domain, level, search.topology, strays=False):
        count += _cells(unit, child, search, limit - count)
        if count >= limit:
            break
    return count


def _cells(cell: Cell, domain: Domain, search: Search, limit: int) -> int:
    """How many such cells the one domain takes, whose level is that of the cell."""
    if len(cell.seats) + len(cell.inside) == 1:
        runs: list[tuple[Unit, int]] = [*cell.seats, *cell.inside]
        unit, size = runs[0]
        return times(unit, domain, search, limit * size) // size
    if cell.gpu_units and search.free_gpu_units(domain.nodes) < cell.gpu_units:
        return 0
    count, trial = 0, _fork(search)
    while count < limit:
        found = _fill(cell, domain, _fork(trial))
        if found is None:
            break
        count, trial = count + 1, found.search
    return count


def count_fitting(bundle: Resources, nodes: Sequence[NodeId], search: Search, limit: int) -> int:
    """How many such bundles the open ones of these nodes would take, at most `limit`."""
    count = 0
    for node in nodes:
        if search.takes(node, bundle):
            count += min(room.pieces(node, bundle) for room in search.rooms)
            if count >= limit:
                return limit
    return count
