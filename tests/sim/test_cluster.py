"""The whole loop on simulated nodes: the same step as on Ray, with all invariants checked after every step."""

from __future__ import annotations

from rayorch.core.types import State, WorkloadId
from rayorch.sim.work import SimWork
from tests.build import node, queue, workload
from tests.sim.checked import CheckedCluster


def test_a_gang_runs_to_its_end_and_leaves_nothing() -> None:
    sim = CheckedCluster((node("n1"),), (queue("q"),))
    sim.submit(workload("w", members=2), SimWork(steps=20))
    sim.run(60)
    done = sim.tree.workloads[WorkloadId("w")]
    assert (done.state, done.attempt, done.step) == (State.SUCCEEDED, 1, 20)
    sim.check_quiet()
