"""Where there is room, kept up to date node by node, so that no search has to look at all nodes.

For one bundle (and accelerator model) a Fit knows how many of it each node takes, how many each domain takes together,
and which nodes come first by score. It is told which nodes have changed by a log that only grows, and looks at these
when it is asked next; so a question costs what has changed since the last one, not what there is.

With equal members a domain takes a gang exactly if its nodes together take that many pieces. With several kinds of
members the count of each kind is a bound, and a trial decides.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Sequence

from rayorch.core.placement import PlacementView
from rayorch.core.planning.best import Best, Rows, tidied
from rayorch.core.planning.follower import Follower
from rayorch.core.policy import SortKey
from rayorch.core.room import Room
from rayorch.core.sharing import uses_devices
from rayorch.core.slot import Slot
from rayorch.core.topology import Domain, Topology
from rayorch.core.types import NodeId, Resources

EVERYWHERE = ""
"""The level of the one domain that holds all nodes."""

ALL = Domain(EVERYWHERE, "", ())
"""That domain, to ask for its count."""

NodeScore = Callable[[Resources, NodeId, Slot], SortKey]
"""(bundle, node, what is free there) -> sort key; the smallest goes first."""

Bundles = tuple[tuple[Resources, int], ...]

MODEL = "/model"
"""Stands for a level in the counts by GPU model; no label of a node has such a name."""

KEPT_FITS, KEPT_TURNS = 16, 32
"""For how many turns a bundle that nobody asks for is kept, where there are more than so many."""
KEPT_BESTS, KEPT_CHANGES = 1024, 100_000
"""How many kinds of single seats are kept, and how many changes of nodes that one of them may have not seen."""


class View:
    """Rooms in all of which a seat must fit, without the closed nodes; the first room is the one that is scored."""

    __slots__ = (
        "_bests",
        "_fits",
        "_rows",
        "_units",
        "closed",
        "log",
        "memo",
        "past",
        "rooms",
        "score",
        "topology",
        "turn",
    )

    def __init__(
        self,
        rooms: Callable[[], tuple[Room, ...]],
        closed: Collection[NodeId],
        topology: Topology,
        score: NodeScore,
        log: Sequence[NodeId],
        memo: PlacementView | None = None,
    ) -> None:
        """`rooms`: asked each time, since `soon` may part from `now`. `log`: nodes that changed in one of them.

        `memo`: where scores are the same for equal nodes, what they are kept under; None: they are not.
        """
        self.rooms = rooms
        self.closed = closed
        self.topology = topology
        self.score = score
        self.log = log
        self.memo = memo
        self.turn = 0
        self._fits: dict[tuple[Resources, str], Fit] = {}
        self._bests: dict[tuple[Resources, tuple[str, ...]], Best] = {}
        self._rows: Rows | None = None
        self.past: list[NodeId] = []
        self._units: Units | None = None

    def changed(self, nodes: Iterable[NodeId]) -> None:
        """These may be other than they were in the last turn. What has not been asked for lately is forgotten."""
        self.turn += 1
        if len(self._fits) > KEPT_FITS:
            self._fits = {key: fit for key, fit in self._fits.items() if self.turn - fit.used <= KEPT_TURNS}
        for fit in self._fits.values():
            fit.due.update(nodes)
        self.past.extend(nodes)
        if self._rows is not None:
            self._rows.due.update(nodes)
        if len(self._bests) > KEPT_BESTS or len(self.past) > KEPT_CHANGES:
            self._forget_bests()
        if self._units is not None:
            self._units.due.update(nodes)

    def begin(
        self,
        rooms: Callable[[], tuple[Room, ...]],
        closed: Collection[NodeId],
        score: NodeScore,
        log: Sequence[NodeId],
        memo: PlacementView | None = None,
    ) -> None:
        """Another turn, with rooms and a log of its own; nodes that `changed` named are looked at again."""
        if (memo is None) is not (self.memo is None):
            self._rows = None
        self.rooms, self.closed, self.score, self.log, self.memo = rooms, closed, score, log, memo
        if self._rows is not None:
            self._rows.seen = 0
        for fit in self._fits.values():
            fit.seen = 0
        for best in self._bests.values():
            best.seen = 0
        if self._units is not None:
            self._units.seen = 0

    def fit(self, bundle: Resources, model: str) -> Fit:
        """Where the bundle fits now, its GPUs on that model (empty: any). Models matter only to what has GPUs."""
        key = (bundle, model if uses_devices(bundle) else "")
        fit = self._fits.get(key)
        if fit is None:
            fit = self._fits[key] = Fit(self, *key)
        else:
            fit.refresh()
        fit.used = self.turn
        return fit

    def _forget_bests(self) -> None:
        """Of the half that was not asked for longest, one at least; of what changed the rest is kept that the others
        have not seen."""
        if self.memo is not None:
            self.memo.marks.clear()
        kept = sorted(self._bests.items(), key=lambda item: item[1].used)[(len(self._bests) + 1) // 2 :]
        self._bests = dict(kept)
        seen = min((best.seen_past for best in self._bests.values()), default=len(self.past))
        del self.past[:seen]
        for best in self._bests.values():
            best.seen_past -= seen

    def rescore(self) -> None:
        """What scores are worked out of is other than it was."""
        self._bests.clear()
        for fit in self._fits.values():
            fit.rescore()

    def mark(self, bundle: Resources, model: str) -> object:
        """Under which scores of a bundle on nodes of a model are kept, for as long as `memo` is the same object."""
        memo = self.memo
        if memo is None:
            return (bundle, model)
        return memo.marks.setdefault((bundle, model), object())

    def best(self, bundle: Resources, models: tuple[str, ...], score: NodeScore | None = None) -> NodeId | None:
        """The best of all nodes for one seat, its GPUs on one of these models (none: any); None: no node takes it.

        `score`: in place of the view's.
        """
        key = (bundle, models if models and uses_devices(bundle) else ())
        best = self._bests.get(key)
        if best is None:
            best = self._bests[key] = Best(self, *key)
        best.used = self.turn
        return best.node() if score is None or score is self.score else best.by(score)

    def rows(self) -> Rows:
        """The open nodes as they are now."""
        if self._rows is None:
            self._rows = Rows(self)
        else:
            self._rows.refresh()
        return self._rows

    def units(self, domain: Domain) -> int:
        """Free GPU units in the first room on the domain's nodes, closed ones included."""
        return self._all_units().of(domain.level, domain.name)

    def units_of_model(self, model: str) -> int:
        """The same on all nodes of a model."""
        return self._all_units().of(MODEL, model)

    def _all_units(self) -> Units:
        if self._units is None:
            self._units = Units(self)
        else:
            self._units.refresh()
        return self._units

    def count(self, bundle: Resources, model: str, domain: Domain) -> int:
        """How many such bundles all nodes of the domain take together."""
        return self.fit(bundle, model).counts.get(domain.level, {}).get(domain.name, 0)

    def able(self, domains: Sequence[Domain], bundles: Bundles, model: str) -> list[Domain]:
        """Those of the domains (all of one level) that take as many pieces of each kind as are asked for."""
        found = list(domains)
        for bundle, count in bundles:
            counts = self.fit(bundle, model).counts.get(domains[0].level, {}) if found else {}
            found = [domain for domain in found if counts.get(domain.name, 0) >= count]
        return found

    def first(self, bundles: Bundles, model: str) -> list[NodeId] | None:
        """Of all nodes those that a greedy placement by score would look at; None: there are too few for a kind.

        It uses at most one node for each member, always one that it uses already or the best that is left.
        """
        members = sum(count for _, count in bundles)
        found: dict[NodeId, None] = {}
        for bundle, count in bundles:
            if self.count(bundle, model, ALL) < count:
                return None
            found.update(dict.fromkeys(self._candidates(bundle, model, members)))
        return list(found)

    def _candidates(self, bundle: Resources, model: str, most: int) -> list[NodeId]:
        """Among which the best so many nodes for a bundle are."""
        return self.fit(bundle, model).first(most)


class Fit(Follower):
    """One bundle: `pieces` by node (those that take any), `counts` by level and domain, and the nodes by score."""

    __slots__ = ("_bundle", "_heap", "_model", "_scores", "counts", "pieces", "used")

    def __init__(self, view: View, bundle: Resources, model: str) -> None:
        super().__init__(view)
        self._bundle = bundle
        self._model = model
        self._heap: list[tuple[SortKey, NodeId]] | None = None  # made when somebody asks for the best
        self._scores: dict[NodeId, SortKey] = {}
        self.used = view.turn
        self.pieces: dict[NodeId, int] = {}
        self.counts: dict[str, dict[str, int]] = {}
        self._look_at(view.topology.nodes)

    def _look_at(self, nodes: Iterable[NodeId]) -> None:
        view, bundle, model, pieces = self._view, self._bundle, self._model, self.pieces
        closed, models = view.closed, view.topology.models
        rooms = view.rooms()
        slots, takers, others = rooms[0].slots, rooms[0].takers, rooms[1:]
        ranked = self._heap is not None  # else nobody has asked for the best yet
        for node in nodes:
            if node in closed or (model and models.get(node) != model):
                count = 0
            else:
                count = slots[node].pieces(bundle) if node in takers else 0
                for room in others if count else ():
                    if room.slots[node] is not slots[node] or room.takers is not takers:
                        count = min(count, room.pieces(node, bundle))
            before = pieces.get(node, 0)
            if count != before:
                self._count(node, count - before)
                if count:
                    pieces[node] = count
                else:
                    del pieces[node]
                    self._scores.pop(node, None)
            if ranked and count:
                self._rank(node)
        if self._heap is not None:
            tidied(self._heap, self._scores)

    def _count(self, node: NodeId, more: int) -> None:
        for level, name in self._view.topology.paths.get(node, ()):
            counts = self.counts.setdefault(level, {})
            counts[name] = counts.get(name, 0) + more

    # ------------------------------------------------------------ by score

    def rescore(self) -> None:
        """Scores are other than they were."""
        self._heap, self._scores = None, {}

    def _rank(self, node: NodeId) -> None:
        score = self._view.score(self._bundle, node, self._view.rooms()[0].slot(node))
        if self._scores.get(node) != score and self._heap is not None:
            self._scores[node] = score
            heapq.heappush(self._heap, (score, node))

    def first(self, most: int) -> list[NodeId]:
        """The best nodes by score, at most that many."""
        if self._heap is None:
            score, slot = self._view.score, self._view.rooms()[0].slot
            self._scores = {node: score(self._bundle, node, slot(node)) for node in self.pieces}
            self._heap = [(key, node) for node, key in self._scores.items()]
            heapq.heapify(self._heap)
        heap, scores = self._heap, self._scores
        found: dict[NodeId, SortKey] = {}
        while heap and len(found) < most:
            key, node = heap[0]
            if scores.get(node) != key or node in found:
                heapq.heappop(heap)  # it has another score now, or takes nothing more
            elif most == 1:
                return [node]
            else:
                found[node] = heapq.heappop(heap)[0]
        for node, key in found.items():
            heapq.heappush(heap, (key, node))
        return list(found)


class Units(Follower):
    """Free GPU units by node and by domain."""

    __slots__ = ("_counts", "_nodes")

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._nodes: dict[NodeId, int] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._look_at(view.topology.nodes)

    def _look_at(self, nodes: Iterable[NodeId]) -> None:
        room, paths, models = self._view.rooms()[0], self._view.topology.paths, self._view.topology.models
        for node in nodes:
            units = room.gpu_units(node)
            more = units - self._nodes.get(node, 0)
            if more:
                self._nodes[node] = units
                for key in (*paths.get(node, ()), (MODEL, models.get(node, ""))):
                    self._counts[key] = self._counts.get(key, 0) + more

    def of(self, level: str, name: str) -> int:
        """The sum over a domain's nodes; over those of a model, where the level is `MODEL`."""
        return self._counts.get((level, name), 0)
