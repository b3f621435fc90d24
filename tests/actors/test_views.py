"""What the controller shows of its last turn."""

from __future__ import annotations

from dataclasses import replace

from rayorch.actors.views import node_rows, queue_rows
from rayorch.core.snapshot import Snapshot, Versions
from rayorch.core.types import Allocation, NodeHealth, State, Workload, WorkloadId
from tests.build import gpus, node, queue, seats, workload

DRAINING = replace(node("n1"), health=NodeHealth.DRAINING, drain_deadline_s=500.0)


def snapshot(*allocations: Allocation) -> Snapshot:
    running = Workload(workload("w", 2, queue="a/b"), State.RUNNING, 1.0, attempt=1)
    waits = [Workload(workload(id, queue="a"), State.PENDING, at_s) for id, at_s in (("x", 40.0), ("y", 30.0))]
    queues = (queue("a", 4), queue("a/b"), queue("other"))
    return Snapshot(Versions(), 100.0, queues, (running, *waits), (DRAINING, node("n2")), allocations)


def test_a_draining_node_is_drained_when_nothing_of_ours_is_left_on_it() -> None:
    held = Allocation(WorkloadId("w"), 1, seats("n1", 2), 0.0, 30.0)
    assert [(row.used, row.drained) for row in node_rows(snapshot(held))] == [(gpus(2), False), (gpus(0), False)]
    assert [row.drained for row in node_rows(snapshot())] == [True, False]


def test_a_queue_counts_those_below_it() -> None:
    held = Allocation(WorkloadId("w"), 1, seats("n1", 2), 0.0, 30.0)
    rows = {row.spec.id: row for row in queue_rows(snapshot(held))}
    counts = {id: (row.used, row.running, row.pending, row.oldest_pending_s) for id, row in rows.items()}
    assert counts == {
        "a": (gpus(2), 1, 2, 70.0),
        "a/b": (gpus(2), 1, 0, None),
        "other": (gpus(0), 0, 0, None),
    }
