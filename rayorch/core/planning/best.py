"""The best node for one seat, which is all that most work asks for; nodes are not counted for it.

For every kind of seat each node that has changed is looked at once. What is the same for all kinds, that a node is open
and what is free on it, is read once for each change (`Rows`); where scores are kept by what is free, a node like one
that was looked at before costs a look into a table.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from heapq import heappush
from typing import TYPE_CHECKING, Final

from rayorch.core.planning.follower import Follower
from rayorch.core.policy import SortKey
from rayorch.core.room import Room
from rayorch.core.slot import Slot
from rayorch.core.types import NodeId, Resources

if TYPE_CHECKING:
    from rayorch.core.planning.index import NodeScore, View

KEPT_SCORES = 4096
"""How many scores are kept with what is free on equal nodes."""
UNKNOWN: Final = (-1,)
"""Stands for a score, or for what scores are kept under, that was not asked for yet; compared by identity."""


def tidied(heap: list[tuple[SortKey, NodeId]], scores: Mapping[NodeId, SortKey]) -> None:
    """Drop entries that hold no more once they are the most: those with a bad score never come to the top."""
    if len(heap) > 2 * len(scores) + 64:
        heap[:] = [(score, node) for node, score in scores.items()]
        heapq.heapify(heap)


class Row:
    """Open nodes that are alike. `model`: of their GPUs. `slot`: what is free on one of them, and so on each.

    `known`: scores that are known of that; None: they are not kept, and then the row is of one node.
    """

    __slots__ = ("key", "known", "model", "nodes", "slot")

    def __init__(self, key: object, model: str, slot: Slot, known: dict[object, SortKey | None] | None) -> None:
        self.key = key
        self.model = model
        self.slot = slot
        self.known = known
        self.nodes: dict[NodeId, None] = {}


class Rows(Follower):
    """The open nodes of a view that take new members: `of` each its row, and `all` rows."""

    __slots__ = ("all", "of")

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self.of: dict[NodeId, Row] = {}
        self.all: dict[object, Row] = {}
        self._look_at(view.topology.nodes)

    def _look_at(self, nodes: Iterable[NodeId]) -> None:
        view, of, rows = self._view, self.of, self.all
        closed, models, kept, room = view.closed, view.topology.models, view.memo is not None, view.rooms()[0]
        slots, takers = room.slots, room.takers
        for node in nodes:
            before = of.pop(node, None)
            if before is not None:
                del before.nodes[node]
                if not before.nodes:
                    del rows[before.key]
            if node in takers and node not in closed:
                slot, model = slots[node], models.get(node, "")
                state = slot.state if kept else None
                key = (model, state) if kept else node
                row = rows.get(key)
                if row is None:
                    row = rows[key] = Row(key, model, slot, state.known if state is not None else None)
                row.nodes[node] = None
                of[node] = row


class Best:
    """The nodes that take one kind of seat, by score."""

    __slots__ = ("_bundle", "_heap", "_marks", "_models", "_scores", "_view", "seen", "seen_past", "used")

    def __init__(self, view: View, bundle: Resources, models: tuple[str, ...]) -> None:
        self._view = view
        self._bundle = bundle
        self._models = models
        self._marks: dict[str, object] = {}  # under which scores are kept, by model, of those that are wanted
        self._heap: list[tuple[SortKey, NodeId]] = []
        self._scores: dict[NodeId, SortKey] = {}
        self.seen, self.seen_past = len(view.log), len(view.past)
        self.used = view.turn
        self._begin(view.rows())

    def by(self, score: NodeScore) -> NodeId | None:
        """The best by another score; O(nodes)."""
        self._refresh()
        slot = self._view.rooms()[0].slot
        return min(((score(self._bundle, node, slot(node)), node) for node in self._scores), default=((), None))[1]

    def node(self) -> NodeId | None:
        """The best node now, None when no node takes the bundle."""
        self._refresh()
        heap, scores = self._heap, self._scores
        while heap:
            key, node = heap[0]
            if scores.get(node) is key:
                return node
            heapq.heappop(heap)  # it has another score now, or takes nothing more
        return None

    def _refresh(self) -> None:
        log, past = self._view.log, self._view.past
        if self.seen < len(log) or self.seen_past < len(past):
            due = {*past[self.seen_past :], *log[self.seen :]}
            self.seen, self.seen_past = len(log), len(past)
            self._look_at(due, self._view.rows().of)

    def _begin(self, rows: Rows) -> None:
        """Look at all nodes, at those that are alike together."""
        scores, heap, others = self._scores, self._heap, self._view.rooms()[1:]
        for row in rows.all.values():
            score = self._score(row)
            if score is not None:
                nodes = [n for n in row.nodes if self._fits_in(others, n)] if others else list(row.nodes)
                scores.update(dict.fromkeys(nodes, score))
                heap += [(score, node) for node in nodes]
        heapq.heapify(heap)

    def _look_at(self, nodes: Iterable[NodeId], rows: Mapping[NodeId, Row]) -> None:
        scores, heap, marks, others = self._scores, self._heap, self._marks, self._view.rooms()[1:]
        for node in nodes:
            row, score = rows.get(node), None
            if row is not None:
                if row.known is None or (score := row.known.get(marks.get(row.model), UNKNOWN)) is UNKNOWN:
                    score = self._score(row)
                if others and score is not None and not self._fits_in(others, node):
                    score = None
            before = scores.get(node)
            if score is None:
                if before is not None:
                    del scores[node]
            elif score is not before and score != before:
                scores[node] = score
                heappush(heap, (score, node))
        tidied(heap, scores)

    def _score(self, row: Row) -> SortKey | None:
        """The score of these nodes, None where they have no room or are of another model."""
        mark, known, bundle = self._marks.get(row.model), row.known, self._bundle
        if mark is None:
            if self._models and row.model not in self._models:
                return None
            mark = self._marks[row.model] = self._view.mark(bundle, row.model)
        score = known.get(mark, UNKNOWN) if known is not None else UNKNOWN
        if score is UNKNOWN:
            score = self._view.score(bundle, next(iter(row.nodes)), row.slot) if row.slot.fits(bundle) else None
            if known is not None:
                if len(known) >= KEPT_SCORES:
                    known.clear()
                known[mark] = score
        return score

    def _fits_in(self, rooms: Iterable[Room], node: NodeId) -> bool:
        """Whether the node, which has room for the bundle in the first room, has it in these as well."""
        slot = self._view.rooms()[0].slots[node]
        return all(
            node in room.takers and ((far := room.slots[node]) is slot or far.fits(self._bundle)) for room in rooms
        )
