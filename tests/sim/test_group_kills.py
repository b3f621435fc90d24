"""Every fault at every step of a group's growth and of its shrink, as tests/sim/test_kills.py does for gangs.

A patch whose answer is lost has taken effect: it must not be done twice. A drain that was done while the patch never
came, or came late, must not cost a node that somebody needs. At the end the counts are what is needed: nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rayorch.core.capacity import GroupName, NodeGroup
from rayorch.core.types import NodeId, State, WorkloadId
from rayorch.policies.default import DEFAULT
from rayorch.sim.checked import CheckedCluster
from rayorch.sim.faults import (
    Actor,
    CallSite,
    Fault,
    FaultsAt,
    Kill,
    LoseNode,
    NoFaults,
)
from rayorch.sim.groups import GroupPlay, SimProvider
from rayorch.sim.work import SimWork
from tests.build import gpus, queue, workload
from tests.sim.faults_at_calls import faults_at_calls

A, W, V = GroupName("a"), WorkloadId("w"), WorkloadId("v")
PROFILE = replace(
    DEFAULT,
    name="quick groups",
    node_idle_s=6.0,
    provision_s=6.0,
    provision_deadline_factor=3.0,
    group_backoff_s=4.0,
    group_backoff_max_s=16.0,
)
CHANGES = ("change_group", "drain_node", "scale_group")

FAULTS: dict[str, Fault] = {
    **faults_at_calls(W),
    "inventory and controller killed after": Kill((Actor.INVENTORY, Actor.CONTROLLER), True),
    "node lost": LoseNode(NodeId("a-1")),
}


def cluster(faults: FaultsAt | NoFaults, replicas: int) -> CheckedCluster:
    group = NodeGroup(A, gpus(2, 8), replicas, max_replicas=4)
    provider = SimProvider({group: GroupPlay(provision_s=(4.0, 4.0))})
    return CheckedCluster((), (queue("q"),), faults=faults, profile=PROFILE, provider=provider)


def growth(faults: FaultsAt | NoFaults) -> CheckedCluster:
    """A gang that needs two nodes, none of which exists."""
    sim = cluster(faults, 0)
    sim.submit(workload("w", members=2, gpu=2), SimWork(steps=12, checkpoint_every=4))
    return sim


def shrink(faults: FaultsAt | NoFaults) -> CheckedCluster:
    """Three idle nodes, one of which a job takes while the others go; later a gang needs more than there are."""
    sim = cluster(faults, 3)
    sim.run(6)
    sim.submit(workload("w", gpu=2), SimWork(steps=14, checkpoint_every=4))
    sim.run(9)
    sim.submit(workload("v", members=3, gpu=2), SimWork(steps=12, checkpoint_every=4))
    return sim


SCENARIOS: dict[str, Callable[[FaultsAt | NoFaults], CheckedCluster]] = {"growth": growth, "shrink": shrink}


def steps_of(scenario: str) -> list[CallSite]:
    """The calls that change a group, those just before and after them, and the first readings of the groups."""
    sim = SCENARIOS[scenario](NoFaults())
    sim.run_to_rest()
    changing = {site.number for site in sim.sites if site.label in CHANGES}
    near = changing | {number + 1 for number in changing} | {number - 1 for number in changing}
    read = [site.number for site in sim.sites if site.label == "observe_groups" and site.number > min(changing)]
    return [site for site in sim.sites if site.number in near | set(read[:3])]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_without_faults_everything_ends_well(scenario: str) -> None:
    sim = SCENARIOS[scenario](NoFaults())
    sim.run_to_rest()
    assert {w.state for w in sim.tree.workloads.values()} == {State.SUCCEEDED}
    assert sim.scaling is not None
    labels = [site.label for site in steps_of(scenario)]
    assert set(CHANGES) <= set(labels)
    grown = [p for p in sim.scaling.provider.patches if p.to_replicas > p.from_replicas]
    assert len(grown) == 1, grown
    assert sim.scaling.provider.made(A) == (2 if scenario == "growth" else 6)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_fault_at_any_step_of_a_change_takes_and_orders_nothing_wrongly(scenario: str, fault: str) -> None:
    for step in steps_of(scenario):
        sim = None
        try:
            sim = SCENARIOS[scenario](FaultsAt([(step.number, FAULTS[fault])]))
            sim.run_to_rest()
            states = {id: w.state for id, w in sim.tree.workloads.items()}
            cancelled = fault == "cancelled" and states[W] is State.CANCELLED
            assert cancelled or states[W] is State.SUCCEEDED, sim.story(f"states {states}")
            assert states.get(V, State.SUCCEEDED) is State.SUCCEEDED, sim.story(f"states {states}")
            assert all(w.failures == 0 for w in sim.tree.workloads.values()), sim.story("counted as its own failure")
        except AssertionError as error:
            raise AssertionError(f"{fault} at step {step.number}, {step.caller} → {step.label}: {error}") from error
