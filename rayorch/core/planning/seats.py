"""Where a gang's seats go: the smallest domain that takes all of them, then the best node for each.

Nothing here changes a Room that it is given: trials are made on copies, and a gang is placed whole or not at all.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rayorch.core.planning.claims import Shape
from rayorch.core.policy import SortKey
from rayorch.core.room import Room
from rayorch.core.topology import Domain, Topology
from rayorch.core.types import GPU, NodeId, Resources

NodeScore = Callable[[Resources, NodeId, Resources], SortKey]
"""(bundle, node, free there) -> sort key; the smallest goes first."""

DomainScore = Callable[[Domain], SortKey]
"""Which of several domains that take the whole gang; the smallest goes first."""


@dataclass(frozen=True, slots=True)
class Search:
    """Where to look. A seat must fit in every one of `rooms`; the first is the one that is scored.

    `closed`: nodes that are held for others.
    """

    rooms: tuple[Room, ...]
    topology: Topology
    score: NodeScore
    domain_score: DomainScore
    closed: frozenset[NodeId] = frozenset()

    def free_gpu_units(self, nodes: Sequence[NodeId]) -> int:
        """Free GPU units on open nodes, in the tightest room."""
        return min(sum(room.gpu_units(n) for n in nodes if n not in self.closed) for room in self.rooms)


def find(shape: Shape, search: Search) -> tuple[NodeId, ...] | None:
    """A node for every member, in the order of `shape.bundles` with each repeated by its count; None: no place.

    Greedy: large bundles first, each to the node of least score. It finds a place for equal bundles whenever there
    is one; for mixed ones it may miss one that a search would find.
    """
    need = sum(bundle.gpu_units * count for bundle, count in shape.bundles)
    if search.free_gpu_units(search.topology.nodes) < need:
        return None
    for domains in _spaces(shape, search.topology):
        open_domains = [d for d in domains if search.free_gpu_units(d.nodes) >= need]
        for domain in sorted(open_domains, key=lambda d: (*search.domain_score(d), d.name)):
            nodes = fill(shape.bundles, domain.nodes, search)
            if nodes is not None:
                return nodes
    return None


def _spaces(shape: Shape, topology: Topology) -> list[tuple[Domain, ...]]:
    """Sets of domains to try in turn: from the smallest that could do to the largest that is allowed."""
    everywhere = (Domain("", "", topology.nodes),)
    required, preferred = shape.topology.required, shape.topology.preferred
    if shape.near:
        spaces = [_domains_of(topology, level, shape.near) for level in (preferred, required) if level is not None]
        return spaces if required is not None else [*spaces, everywhere]
    if shape.packed:
        levels = list(topology.inwards_of(required))
    else:
        levels = [level for level in (preferred, required) if level is not None]
    spaces = [topology.at(level) for level in levels]
    return spaces if required is not None else [*spaces, everywhere]


def _domains_of(topology: Topology, level: str, near: tuple[NodeId, ...]) -> tuple[Domain, ...]:
    """The one domain of the level that all these nodes are in, if there is one."""
    found = {domain for node in near if (domain := topology.domain_of(level, node)) is not None}
    return tuple(found) if len(found) == 1 else ()


def fill(
    bundles: tuple[tuple[Resources, int], ...], nodes: Sequence[NodeId], search: Search
) -> tuple[NodeId, ...] | None:
    """A place for all bundles within `nodes`, or None."""
    scratch = [room.copy() for room in search.rooms]
    order = sorted(range(len(bundles)), key=lambda i: (-bundles[i][0].gpu_units, -bundles[i][0].units("CPU"), i))
    found: dict[int, list[NodeId]] = {}
    for position in order:
        bundle, count = bundles[position]
        chosen = _fill_equal(bundle, count, nodes, scratch, search)
        if chosen is None:
            return None
        found[position] = chosen
    return tuple(node for position in range(len(bundles)) for node in found[position])


def _fill_equal(
    bundle: Resources, count: int, nodes: Sequence[NodeId], scratch: list[Room], search: Search
) -> list[NodeId] | None:
    main = scratch[0]
    heap = [
        (search.score(bundle, node, main.free(node)), node)
        for node in nodes
        if node not in search.closed and all(room.fits(node, bundle) for room in scratch)
    ]
    heapq.heapify(heap)
    chosen: list[NodeId] = []
    while len(chosen) < count:
        if not heap:
            return None
        _, node = heapq.heappop(heap)
        for room in scratch:
            room.take(node, bundle)
        chosen.append(node)
        if all(room.fits(node, bundle) for room in scratch):
            heapq.heappush(heap, (search.score(bundle, node, main.free(node)), node))
    return chosen


def count_fitting(bundle: Resources, search: Search, limit: int) -> int:
    """How many such bundles the open nodes would take, at most `limit`: the number behind "fragmented"."""
    scratch = [room.copy() for room in search.rooms]
    count = 0
    for node in search.topology.nodes:
        while count < limit and node not in search.closed and all(room.fits(node, bundle) for room in scratch):
            for room in scratch:
                room.take(node, bundle)
            count += 1
    return count


def free_total(search: Search, name: str) -> int:
    """All that is free of a resource on nodes that take new members."""
    if name == GPU:
        return search.free_gpu_units(search.topology.nodes)
    room = search.rooms[0]
    return sum(room.free(n).units(name) for n in search.topology.nodes if n not in search.closed and room.usable(n))
