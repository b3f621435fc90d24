"""The index of a what-if: that of the room as it is, with other answers for nodes on which something would leave.

A what-if changes a few nodes of thousands. On all others the index below holds, so a question costs what would change.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rayorch.core.planning.index import Bundles, NodeScore, View
from rayorch.core.room import Room
from rayorch.core.sharing import uses_devices
from rayorch.core.topology import Domain
from rayorch.core.types import NodeId, Resources

Counts = dict[str, dict[str, int]]


class Overlay(View):
    """A view of one room that differs from the view below on some nodes only.

    `score` may differ on these nodes alone: of any two others it must rank first the one that the view below ranks
    first.
    """

    __slots__ = ("_below", "_differences", "_more_units", "_room", "_touched")

    def __init__(self, below: View, room: Room, touched: Collection[NodeId], score: NodeScore) -> None:
        super().__init__(lambda: (room,), below.closed, below.topology, score, ())
        self._below = below
        self._room = room
        self._touched = frozenset(node for node in touched if node in below.topology.paths)
        self._differences: dict[tuple[Resources, str], tuple[dict[NodeId, int], Counts]] = {}
        self._more_units: dict[tuple[str, str], int] | None = None

    def _difference(self, bundle: Resources, model: str) -> tuple[dict[NodeId, int], Counts]:
        """Of the nodes that differ, how many each takes (those that take any), and by how much the counts differ."""
        key = (bundle, model if uses_devices(bundle) else "")
        known = self._differences.get(key)
        if known is not None:
            return known
        before = self._below.fit(*key).pieces
        topology, closed, room = self.topology, self.closed, self._room
        pieces: dict[NodeId, int] = {}
        counts: Counts = {}
        for node in self._touched:
            shut = node in closed or (key[1] and topology.models.get(node) != key[1])
            count = 0 if shut else room.pieces(node, bundle)
            if count:
                pieces[node] = count
            more = count - before.get(node, 0)
            if more:
                for level, name in topology.paths[node]:
                    at = counts.setdefault(level, {})
                    at[name] = at.get(name, 0) + more
        self._differences[key] = (pieces, counts)
        return pieces, counts

    def units(self, domain: Domain) -> int:
        """Free GPU units on the domain's nodes, closed ones included."""
        if self._more_units is None:
            found: dict[tuple[str, str], int] = {}
            below = self._below.rooms()[0]
            for node in self._touched:
                more = self._room.gpu_units(node) - below.gpu_units(node)
                if more:
                    for place in self.topology.paths[node]:
                        found[place] = found.get(place, 0) + more
            self._more_units = found
        return self._below.units(domain) + self._more_units.get((domain.level, domain.name), 0)

    def count(self, bundle: Resources, model: str, domain: Domain) -> int:
        """How many such bundles all nodes of the domain take together."""
        more = self._difference(bundle, model)[1].get(domain.level, {}).get(domain.name, 0)
        return self._below.count(bundle, model, domain) + more

    def able(self, domains: Sequence[Domain], bundles: Bundles, model: str) -> list[Domain]:
        """Those of the domains (all of one level) that take as many pieces of each kind as are asked for."""
        found = list(domains)
        for bundle, count in bundles if found else ():
            level = domains[0].level
            more = self._difference(bundle, model)[1].get(level, {})
            counts = self._below.fit(bundle, model).counts.get(level, {})
            found = [d for d in found if counts.get(d.name, 0) + more.get(d.name, 0) >= count]
        return found

    def best(self, bundle: Resources, models: tuple[str, ...], score: NodeScore | None = None) -> NodeId | None:
        """The best of all nodes for one seat, its GPUs on one of these models (none: any)."""
        by, room = score or self.score, self._room
        nodes = {node for model in models or ("",) for node in self._candidates(bundle, model, 1)}
        return min(nodes, key=lambda node: (by(bundle, node, room.slot(node)), node), default=None)

    def _candidates(self, bundle: Resources, model: str, most: int) -> list[NodeId]:
        """All nodes that differ and take the bundle, and the best of the others."""
        pieces, touched = self._difference(bundle, model)[0], self._touched
        fit = self._below.fit(bundle, model)
        hidden = sum(node in fit.pieces for node in touched)
        others = [node for node in fit.first(most + hidden) if node not in touched]
        return [*sorted(pieces), *others[:most]]
