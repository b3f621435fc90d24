"""Where a gang's seats go: the smallest domain that takes all of them, then the best node for each.

Nothing here changes a Room that it is given: trials are made on copies, and a gang is placed whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from rayorch.core.planning.claims import Shape
from rayorch.core.planning.groups import Cell
from rayorch.core.planning.index import NodeScore, View
from rayorch.core.planning.nest import EVERYWHERE, fill_domain, fill_equal, seat
from rayorch.core.policy import SortKey
from rayorch.core.room import Room
from rayorch.core.sharing import GPU_MEMORY, device_need, uses_devices
from rayorch.core.topology import NODE_LEVEL, Domain, Topology
from rayorch.core.types import GPU, UNIT, NodeId, Resources, total
from rayorch.core.values import changed

DomainScore = Callable[[Domain], SortKey]
"""Which of several domains that take the whole gang; the smallest goes first."""


@dataclass(frozen=True, slots=True)
class Search:
    """Where to look. A seat must fit in every one of `rooms`; the first is the one that is scored.

    `closed`: nodes that are held for others. `model`: the only one that GPUs may be of now, empty: any. `models`: where
    `model` is empty, GPUs may be of any of these, as the score has it (for a single seat). `view`: an index of these
    rooms with these closed nodes and this score, where there is one; it only saves time. `tries`: how many other ways
    may still be tried for cells of different size.
    """

    rooms: tuple[Room, ...]
    topology: Topology
    score: NodeScore
    domain_score: DomainScore
    closed: frozenset[NodeId] = frozenset()
    model: str = ""
    view: View | None = None
    models: tuple[str, ...] = ()
    tries: list[int] = field(default_factory=lambda: [0], repr=False, compare=False)

    def on(self, model: str) -> Search:
        """The same where GPUs may be of one model only."""
        return changed(self, model=model)

    @property
    def wanted(self) -> tuple[str, ...]:
        """The models that GPUs may be of now; none: any."""
        return (self.model,) if self.model else self.models

    def has_model(self, node: NodeId) -> bool:
        """Whether GPUs of this node may be taken, by their model."""
        wanted = self.wanted
        return not wanted or self.topology.models.get(node) in wanted

    def free_gpu_units(self, nodes: Sequence[NodeId]) -> int:
        """Free GPU units on open nodes of the right model, in the tightest room."""
        nodes = self.topology.of_model(self.model, nodes)
        if nodes is self.topology.nodes and not self.closed:
            return min(room.free_gpu_units for room in self.rooms)
        return min(sum(room.gpu_units(n) for n in nodes if n not in self.closed) for room in self.rooms)

    def takes(self, node: NodeId, bundle: Resources) -> bool:
        """Whether the node is open and has room for the bundle."""
        if (self.model or self.models) and uses_devices(bundle) and not self.has_model(node):
            return False
        return node not in self.closed and all(room.fits(node, bundle) for room in self.rooms)


def find(shape: Shape, search: Search) -> tuple[NodeId, ...] | None:
    """A node for every member, in the order of `shape.bundles` with each repeated by its count; None: no place.

    Greedy: large bundles first, each to the node of least score. It finds a place for equal bundles whenever there
    is one; for mixed ones it may miss one that a search would find. Accelerator models are tried in their order; the
    members with GPUs all go to nodes of one, those without go wherever the rest of the shape lets them.
    """
    need = shape.gpu_units
    if min(room.free_gpu_units for room in search.rooms) < need:
        return None
    if shape.by_score and search.view is not None and len(shape.bundles) == 1 and shape.bundles[0][1] == 1:
        return _find(shape, need, changed(search, models=shape.accelerators) if shape.accelerators else search)
    if shape.accelerators:
        tried = (_find(shape, need, search.on(model)) for model in shape.accelerators)
        return next((nodes for nodes in tried if nodes is not None), None)
    if search.closed and search.view is None and search.free_gpu_units(search.topology.nodes) < need:
        return None
    return _find(shape, need, search)


def _find(shape: Shape, need: int, search: Search) -> tuple[NodeId, ...] | None:
    """A place on GPUs of one model, where the search names one."""
    if shape.layout is not None:
        return seat(shape.layout, search)
    unknown = search.topology.unknown.get(shape.topology.required or "")
    if unknown:  # a node that is in no domain of the level is not in one that they share
        search = replace(search, closed=search.closed | unknown, view=None)
    alone = len(shape.bundles) == 1 and shape.bundles[0][1] == 1
    for domains in _spaces(shape, search.topology):
        if alone and search.view is not None and domains and domains[0].level == EVERYWHERE:
            node = search.view.best(shape.bundles[0][0], search.wanted, search.score)
            return None if node is None else (node,)
        if domains is search.topology.at(NODE_LEVEL):
            nodes = _on_one_node(shape, need, search)
            if nodes is not None:
                return nodes
            continue
        if search.view is not None:
            able = search.view.able(domains, shape.bundles, search.model)
        else:
            able = [d for d in domains if search.free_gpu_units(d.nodes) >= need]
        for domain in able if len(able) < 2 else sorted(able, key=lambda d: (*search.domain_score(d), d.name)):
            nodes = _inside(shape, domain, search)
            if nodes is not None:
                return nodes
    return None


def fill_shape(shape: Shape, nodes: Sequence[NodeId], search: Search) -> tuple[NodeId, ...] | None:
    """The shape on some of these nodes, which are known to meet what it asks of the topology as a whole; or None."""
    if shape.layout is None:
        return fill(shape.bundles, nodes, search)
    return fill_domain(shape.layout, Domain(EVERYWHERE, "", tuple(nodes)), search)


def _inside(shape: Shape, domain: Domain, search: Search) -> tuple[NodeId, ...] | None:
    """A gang that is larger than a domain of the levels further inwards uses as few of them as it can."""
    levels = search.topology.inwards_of(domain.level or None)
    if shape.packed and any(level not in (domain.level, NODE_LEVEL) for level in levels):
        nodes = fill_domain(Cell(shape.topology, shape.bundles), domain, search)
        if nodes is not None:
            return nodes
    return fill(shape.bundles, domain.nodes, search)


def _on_one_node(shape: Shape, need: int, search: Search) -> tuple[NodeId, ...] | None:
    """All members on one node: the best one for a bundle as large as the gang."""
    one = total(bundle.times(count) for bundle, count in shape.bundles)
    if search.view is not None and all(
        bundle.gpu_units % UNIT == 0 and not device_need(bundle).shares for bundle, _ in shape.bundles
    ):  # whole devices: what takes the sum takes the parts
        node = search.view.best(one, search.wanted)
        return None if node is None else (node,) * sum(count for _, count in shape.bundles)
    main, rooms = search.rooms[0], search.rooms
    able = [
        (search.score(one, node, main.slot(node)), node)
        for node in search.topology.nodes
        if node not in search.closed
        and search.has_model(node)
        and all(room.usable(node) and room.gpu_units(node) >= need for room in rooms)
    ]
    for _, node in sorted(able):
        nodes = fill(shape.bundles, (node,), search)
        if nodes is not None:
            return nodes
    return None


def _spaces(shape: Shape, topology: Topology) -> Iterable[tuple[Domain, ...]]:
    """Sets of domains to try in turn: from the smallest that could do to the largest that is allowed."""
    everywhere = (Domain(EVERYWHERE, "", topology.nodes),)
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
    if nodes is search.topology.nodes and search.view is not None:
        first = search.view.first(bundles, search.model)
        if first is None:
            return None
        nodes = first
    whole = len(nodes) == len(search.topology.nodes)
    scratch = tuple(room.copy() if whole else room.part(nodes) for room in search.rooms)
    trial = replace(search, rooms=scratch, view=None)
    order = sorted(range(len(bundles)), key=lambda i: (-bundles[i][0].gpu_units, -bundles[i][0].units("CPU"), i))
    found: dict[int, list[NodeId]] = {}
    for position in order:
        bundle, count = bundles[position]
        chosen = fill_equal(bundle, count, nodes, trial)
        if chosen is None:
            return None
        found[position] = chosen
    return tuple(node for position in range(len(bundles)) for node in found[position])


def free_total(search: Search, name: str) -> int:
    """All that is free of a resource on nodes that take new members; of GPUs only those of the search's model."""
    if name == GPU:
        return search.free_gpu_units(search.topology.nodes)
    room = search.rooms[0]
    if name == GPU_MEMORY:
        return sum(room.slot(n).free_mib for n in search.topology.nodes if n not in search.closed and room.usable(n))
    return sum(room.free(n).units(name) for n in search.topology.nodes if n not in search.closed and room.usable(n))
