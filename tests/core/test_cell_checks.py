"""What the queue owner checks of cells at a commit, by its own account of whose cells lie where."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayorch.core.cell_checks import CellIndex, owner_of_cells
from rayorch.core.decisions import Start
from rayorch.core.errors import StalePlanError
from rayorch.core.events import AttemptEnded
from rayorch.core.lifecycle import Move
from rayorch.core.queues import QueueTree
from rayorch.core.snapshot import Versions
from rayorch.core.types import CellNodes, CellShare, JointGang, NodeId, QueueSpec, State, WorkloadId
from tests import build
from tests.scenes import queue

V = Versions(1, 1, 1)
R0: CellNodes = ("r0", (NodeId("n0"), NodeId("n1")))
R1: CellNodes = ("r1", (NodeId("n2"), NodeId("n3")))


def owns(path: str, *cells: CellShare) -> QueueSpec:
    return replace(queue(path), cells=cells)


def tree(*specs: QueueSpec) -> QueueTree:
    built = QueueTree()
    for spec in specs:
        build.apply(built, built.set_queue(spec, 1.0))
    return built


def submit(built: QueueTree, id: str, where: str, **more: object) -> None:
    build.apply(built, built.submit(replace(build.workload(id, queue=where), **more), 2.0))  # type: ignore[arg-type]


def start(id: str, on: str, level: str = "rack", *domains: CellNodes, partners: tuple[str, ...] = ()) -> Start:
    others = tuple(WorkloadId(other) for other in partners)
    return Start(WorkloadId(id), 1, build.seats(on, 1), "fits", partners=others, cell=level, cell_domains=domains)


def ended(id: str, at_s: float) -> AttemptEnded:
    return AttemptEnded(WorkloadId(id), 1, Move.SUCCEEDED, None, 0, "", at_s, at_s)


def test_racks_are_counted_as_nodes_are() -> None:
    built = tree(owns("a", CellShare("rack", 1)))
    for id in "vwx":
        submit(built, id, "a")
    build.apply(built, built.commit_start(start("v", "n0", "rack", R0), V, 3.0))
    with pytest.raises(StalePlanError, match="would bind 2 domains of level rack"):
        built.commit_start(start("w", "n2", "rack", R1), V, 3.0)
    build.apply(built, built.commit_start(start("w", "n1", "rack", R0), V, 3.0))
    with pytest.raises(StalePlanError, match="n2 is in none"):
        built.commit_start(start("x", "n2", "rack", R0), V, 3.0)


def test_a_node_of_anothers_cell_is_refused_also_where_nothing_runs_on_it() -> None:
    built = tree(owns("a", CellShare("rack", 1)), owns("c", CellShare("node", 2)), owns("d", CellShare("rack", 1)))
    for id, where in (("v", "a"), ("w", "c"), ("x", "d")):
        submit(built, id, where)
    build.apply(built, built.commit_start(start("v", "n0", "rack", R0), V, 3.0))
    with pytest.raises(StalePlanError, match="n1, which lies in a cell of queue a"):
        built.commit_start(start("w", "n1", "node"), V, 3.0)
    with pytest.raises(StalePlanError, match="lies in a cell of queue a"):
        built.commit_start(start("x", "n1", "rack", R0), V, 3.0)
    build.apply(built, built.commit_start(start("w", "n2", "node"), V, 3.0))
    with pytest.raises(StalePlanError, match="n2, which lies in a cell of queue c"):
        built.commit_start(start("x", "n3", "rack", R1), V, 3.0)


def test_a_queue_that_owns_both_keeps_one_kind_out_of_the_other() -> None:
    built = tree(owns("a", CellShare("rack", 1), CellShare("node", 1)))
    for id in "vw":
        submit(built, id, "a")
    build.apply(built, built.commit_start(start("v", "n0", "rack", R0), V, 3.0))
    with pytest.raises(StalePlanError, match="lies in a cell"):
        built.commit_start(start("w", "n1", "node"), V, 3.0)


def test_partners_of_one_commit_are_counted_together() -> None:
    built = tree(owns("a", CellShare("node", 1)))
    for id in "vw":
        submit(built, id, "a", joint=JointGang("g", 2))
    with pytest.raises(StalePlanError, match="would bind 2 nodes"):
        built.commit_start(start("v", "n0", "node", partners=("w",)), V, 3.0, (start("w", "n1", "node"),))
    events = built.commit_start(start("v", "n0", "node", partners=("w",)), V, 3.0, (start("w", "n0", "node"),))
    assert len(events) == 2


def test_a_cell_is_free_when_its_work_has_ended_and_known_after_a_restart() -> None:
    built = tree(owns("a", CellShare("rack", 1)))
    for id in "vw":
        submit(built, id, "a")
    build.apply(built, built.commit_start(start("v", "n0", "rack", R0), V, 3.0))
    again = QueueTree.restore(built.dump())
    assert again.workloads[WorkloadId("v")].cell_domains == (R0,)
    for one in (built, again):
        with pytest.raises(StalePlanError, match="would bind 2 domains"):
            one.commit_start(start("w", "n2", "rack", R1), V, 3.0)
        build.apply(one, one.end_attempt(ended("v", 4.0)))
        assert one.commit_start(start("w", "n2", "rack", R1), V, 5.0)


QUEUES = (owns("a", CellShare("rack", 2), CellShare("node", 1)), queue("a/x"), owns("c", CellShare("node", 2)))
SPECS = {spec.id: spec for spec in QUEUES}
RACKS = (R0, R1, ("r2", (NodeId("n4"), NodeId("n5"))))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 5), st.booleans()), max_size=30))
def test_what_the_index_allows_a_walk_over_all_workloads_allows(steps: list[tuple[int, int, bool]]) -> None:
    """Starts and ends at random: each commit is refused exactly where an account made anew from all work says so."""
    built = tree(*QUEUES)
    where = ("a", "a", "a/x", "a/x", "c", "c", "a", "c")
    for i, queue_id in enumerate(where):
        submit(built, f"w{i}", queue_id)
    for n, (i, at, ends) in enumerate(steps):
        work = built.workloads[WorkloadId(f"w{i}")]
        if work.state is State.RUNNING and ends:
            build.apply(built, built.end_attempt(ended(work.id, 10.0 + n)))
        if work.state is not State.PENDING:
            continue
        rack = ends and where[i] != "c"
        wanted = start(work.id, f"n{at}", "rack" if rack else "node", *((RACKS[at // 2],) if rack else ()))
        try:
            events = built.commit_start(wanted, V, 10.0 + n)
        except StalePlanError:
            events = ()
        assert bool(events) == _allowed(built, wanted, where[i])
        build.apply(built, events)
    anew = CellIndex()
    for work in built.workloads.values():
        anew.put(None, work)
    assert (anew.bound, anew.on) == (built._cells.bound, built._cells.on)


def _allowed(built: QueueTree, wanted: Start, queue_id: str) -> bool:
    """By hand: what runs in cells of its owner's, counted, and nobody else's nodes."""

    def cells_of(start_or_work: object, node: str) -> tuple[CellNodes, ...]:
        named: tuple[CellNodes, ...] = start_or_work.cell_domains  # type: ignore[attr-defined]
        return named or ((node, (NodeId(node),)),)

    owner = owner_of_cells(queue(queue_id).id, SPECS)
    assert owner is not None
    ours, theirs = set(cells_of(wanted, wanted.members[0].node)), set[NodeId]()
    bound = set[CellNodes]()
    for work in built.workloads.values():
        if work.state is not State.RUNNING or not work.cell:
            continue
        lies = cells_of(work, work.placement[0].node)
        if owner_of_cells(work.spec.queue, SPECS) == owner and work.cell == wanted.cell:
            bound.update(lies)
        else:
            theirs.update(node for _, nodes in lies for node in nodes)
    count = sum(cell.count for cell in owner.cells if cell.level == wanted.cell)
    return (ours <= bound or len(ours | bound) <= count) and theirs.isdisjoint(
        node for _, nodes in ours for node in nodes
    )
