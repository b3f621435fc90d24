"""The index of what is free stays as small as what there is, however long it is kept."""

from __future__ import annotations

import pytest

from rayorch.core.placement import PlacementView
from rayorch.core.planning import index
from rayorch.core.planning.index import KEPT_BESTS, View
from rayorch.core.policy import SortKey
from rayorch.core.room import Room
from rayorch.core.slot import KEPT_COUNTS, Slot
from rayorch.core.topology import Topology
from rayorch.core.types import UNIT, NodeId, Resources
from tests.build import node

NODES = [node(f"n{i}") for i in range(4)]
CPU1 = Resources.of({"CPU": 1})


def _most_free_last(bundle: Resources, id: NodeId, slot: Slot) -> SortKey:
    return (slot.amounts["CPU"],)


def _view(room: Room, log: list[NodeId]) -> View:
    return View(lambda: (room,), (), Topology.of(NODES), _most_free_last, log)


def test_nodes_whose_scores_come_and_go_leave_nothing_behind() -> None:
    room, log = Room.of(NODES, (), 0.0), list[NodeId]()
    view, last = _view(room, log), NODES[3].id
    first = room.take(NODES[0].id, CPU1) and ()
    assert view.best(CPU1, ()) == view.fit(CPU1, "").first(1)[0] == NODES[0].id
    for turn in range(500):  # the best is another one all the time, so what is left of these sinks
        (room.give if turn % 2 else room.take)(last, CPU1, first or ())
        log.append(last)
        assert view.best(CPU1, ()) == view.fit(CPU1, "").first(1)[0] == NODES[0].id
    (best,), (fit,) = view._bests.values(), view._fits.values()
    assert fit._heap is not None and len(best._heap) < 100 and len(fit._heap) < 100


def test_changes_that_nobody_will_look_at_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "KEPT_CHANGES", 10)
    view = _view(Room.of(NODES, (), 0.0), [])
    view.best(CPU1, ())  # the only one of its kind, and never asked for again
    for _ in range(100):
        view.changed([NODES[0].id])
    assert len(view.past) <= 11


def test_of_many_bundles_not_all_are_remembered() -> None:
    slot = Slot.empty(NODES[0])
    for n in range(2 * KEPT_COUNTS):
        slot.pieces(Resources.of_units({"CPU": n + 1}))
    assert len(slot.state.pieces) <= KEPT_COUNTS
    assert slot.pieces(CPU1) == slot._count(CPU1)
    memo = PlacementView()
    view = View(lambda: (Room.of(NODES, (), 0.0),), (), Topology.of(NODES), _most_free_last, [], memo)
    for n in range(KEPT_BESTS + 1):
        view.best(Resources.of_units({"CPU": n + 1}), ())
    view.changed(())
    assert not memo.marks and view.best(CPU1, ()) == NODES[0].id


def test_nodes_that_are_alike_are_looked_at_together_and_the_best_is_that_of_all() -> None:
    nodes = [node(f"n{i:02d}") for i in range(30)]
    room, log, closed, asked = Room.of(nodes, (), 0.0), list[NodeId](), set[NodeId](), list[NodeId]()

    def score(bundle: Resources, id: NodeId, slot: Slot) -> SortKey:
        asked.append(id)
        return (slot.amounts["CPU"] % (3 * UNIT),)

    kinds = [Resources.of({"CPU": cpus}) for cpus in (1, 2, 3)]
    view = View(lambda: (room,), closed, Topology.of(nodes), score, log, PlacementView())
    assert view.best(kinds[0], ()) == nodes[0].id and asked == [nodes[0].id]
    for turn in range(200):
        bundle, other = kinds[turn % 3], nodes[turn * 7 % 30].id
        (closed.remove if other in closed else closed.add)(other)
        log.append(other)
        found = view.best(bundle, ())
        able = [n.id for n in nodes if n.id not in closed and room.fits(n.id, bundle)]
        assert found == min(((score(bundle, n, room.slot(n)), n) for n in able), default=((), None))[1]
        if found is not None:
            room.take(found, bundle)
            log.append(found)
    assert set(view.rows().of) == {n.id for n in nodes} - closed
    assert sum(len(row.nodes) for row in view.rows().all.values()) == len(view.rows().of)
