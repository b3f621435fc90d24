"""Every fault at every step of a gang's start and of its stop.

A run without faults gives the list of calls between actors: its steps. Then each step is struck once by each fault.
All invariants are checked at every call; at the end nothing is lost, held twice or left behind.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rayorch.core.types import NodeId, State, WorkloadId
from rayorch.sim.checked import CheckedCluster
from rayorch.sim.faults import (
    Actor,
    CallSite,
    Fault,
    FaultsAt,
    Kill,
    LoseNode,
    LoseRunner,
    NoFaults,
)
from rayorch.sim.work import SimWork
from tests.build import node, queue, workload
from tests.sim.faults_at_calls import faults_at_calls

W, VIP = WorkloadId("w"), WorkloadId("vip")
FILLER = ("changes", "renew", "report")
"""Calls of every tick; only those beside one in which something happens count as steps."""

FAULTS: dict[str, Fault] = {
    **faults_at_calls(W),
    "allocator and queues killed after": Kill((Actor.ALLOCATOR, Actor.QUEUES), True),
    "node lost": LoseNode(NodeId("n1")),
    "runner lost": LoseRunner(W),
}


def start_of_a_gang(faults: FaultsAt | NoFaults) -> CheckedCluster:
    sim = CheckedCluster((node("n1", gpu=2), node("n2", gpu=2)), (queue("q"),), faults=faults)
    sim.submit(workload("w", members=2), SimWork(steps=12, checkpoint_every=4))
    return sim


def stop_of_a_gang(faults: FaultsAt | NoFaults) -> CheckedCluster:
    """A gang that fills the only node that can take the important one is preempted, and comes back."""
    sim = CheckedCluster((node("n1", gpu=2), node("n2", gpu=1)), (queue("q"),), faults=faults)
    sim.submit(workload("w", members=2), SimWork(steps=40, checkpoint_every=4))
    sim.run(6)
    sim.submit(workload("vip", members=2, priority=10), SimWork(steps=12, checkpoint_every=4))
    return sim


SCENARIOS: dict[str, Callable[[FaultsAt | NoFaults], CheckedCluster]] = {
    "start": start_of_a_gang,
    "stop": stop_of_a_gang,
}


def steps_of(scenario: str) -> list[CallSite]:
    """The calls at which something happens, and the calls just before and just after them."""
    sim = SCENARIOS[scenario](NoFaults())
    begin = len(sim.sites) if scenario == "stop" else 0
    sim.run_to_quiet()
    busy = {site.number for site in sim.sites[begin:] if site.label not in FILLER}
    over = [site.number for site in sim.sites[begin:] if site.label == "end_attempt"]
    busy = {number for number in busy if number <= over[0]}  # the next start's steps are those of the first
    near = busy | {number + 1 for number in busy} | {number - 1 for number in busy}
    return [site for site in sim.sites[begin:] if site.number in near]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_without_faults_everything_ends_well(scenario: str) -> None:
    sim = SCENARIOS[scenario](NoFaults())
    sim.run_to_quiet()
    assert {w.state for w in sim.tree.workloads.values()} == {State.SUCCEEDED}
    preempted = sim.tree.workloads[W].preemptions
    assert preempted == (1 if scenario == "stop" else 0)
    labels = {site.label for site in steps_of(scenario)}
    assert {"RemoveGroups", "remove_group", "end_attempt"} <= labels
    assert scenario == "stop" or {"reserve", "commit_start", "create_group", "start", "ready"} <= labels
    assert scenario == "start" or {"commit_stop", "update"} <= labels


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_fault_at_any_step_loses_nothing(scenario: str, fault: str) -> None:
    for step in steps_of(scenario):
        sim = SCENARIOS[scenario](FaultsAt([(step.number, FAULTS[fault])]))
        try:
            _finish(sim, fault)
        except AssertionError as error:
            raise AssertionError(f"{fault} at step {step.number}, {step.caller} → {step.label}: {error}") from error


def _finish(sim: CheckedCluster, fault: str) -> None:
    if fault == "node lost":
        sim.run(40)
        sim.world.return_node(NodeId("n1"))
    sim.run_to_quiet()
    states = {id: w.state for id, w in sim.tree.workloads.items()}
    cancelled = fault == "cancelled" and states[W] is State.CANCELLED
    assert cancelled or states[W] is State.SUCCEEDED, sim.story(f"states {states}")
    assert states.get(VIP, State.SUCCEEDED) is State.SUCCEEDED, sim.story(f"states {states}")
    if states[W] is State.SUCCEEDED:
        assert sim.tree.workloads[W].failures == 0, sim.story("a fault of ours counts as the work's own failure")
