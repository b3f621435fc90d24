"""Nodes that are ordered, come later, and go again: worked out by hand, and what must hold in any case."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.core.capacity import GroupName, NodeGroup
from rayorch.core.errors import SpecError
from rayorch.core.types import Device, NodeId, NodeSpec, Resources, State
from rayorch.policies.default import DEFAULT
from rayorch.sim.models import FailureModel, FaultKind, FaultLaw, Misstatement, ProvisioningModel, SimModels
from rayorch.sim.models.distributions import Fixed
from rayorch.sim.trace.outcome import NodeStay, Outcome
from rayorch.sim.trace.run import run
from rayorch.sim.trace.supply import Supply
from tests.sim.trace.worlds import job, nodes, trace

TOTAL = Resources.of({"GPU": 8, "CPU": 64})
NODE = NodeSpec(NodeId(""), "", TOTAL, devices=tuple(Device(n, "H100") for n in range(8)))
HUNDRED = SimModels(provisioning=ProvisioningModel(default=Fixed(100.0)))


def group(name: str = "g", at_first: int = 0, least: int = 0, most: int = 4, **others: object) -> Supply:
    """Nodes of 8 GPUs."""
    return Supply(NodeGroup(GroupName(name), TOTAL, at_first, least, most, model="H100", **others), NODE)  # type: ignore[arg-type]


def runs(outcome: Outcome) -> dict[str, list[tuple[float, float, tuple[NodeId, ...]]]]:
    """(from, to, nodes) of each job's stretches."""
    return {r.id: [(run.from_s, run.to_s, run.nodes) for run in r.runs] for r in outcome.records}


def test_a_node_comes_when_it_is_needed_and_goes_when_it_has_been_idle() -> None:
    made = trace(job("a", 0, 50, gpus=8), job("b", 20, 30, gpus=8), job("late", 1_000, 10, gpus=8))

    outcome = run(made, (), DEFAULT, models=HUNDRED, groups=[group()])

    # b asks for a second node as soon as the group has completed its first order, and takes the first one before that.
    assert runs(outcome) == {
        "a": [(100.0, 150.0, ("g-00000",))],
        "b": [(150.0, 180.0, ("g-00000",))],
        "late": [(1_100.0, 1_110.0, ("g-00000",))],
    }
    idle_s = DEFAULT.node_idle_s + 1e-3
    assert outcome.stays == (
        NodeStay("g", NodeId("g-00000"), 100.0, 180.0 + idle_s),
        NodeStay("g", NodeId("g-00000"), 1_100.0, 1_110.0),
    )
    at = dict(zip(outcome.series.times_s.tolist(), outcome.series.capacity_gpus.tolist(), strict=True))
    assert (at[0.0], at[100.0], at[150.0], at[180.0 + idle_s]) == (0.0, 8.0, 8.0, 0.0)


def test_a_gang_waits_for_all_of_its_nodes_beside_those_that_are_there() -> None:
    made = trace(job("a", 5, 50, gpus=8, members=3))

    outcome = run(made, nodes(1), DEFAULT, models=HUNDRED, groups=[group()])

    assert runs(outcome) == {"a": [(105.0, 155.0, ("g-00000", "g-00001", "n0"))]}
    assert outcome.fixed_nodes == 1 and len(outcome.stays) == 2


def test_the_minimum_is_there_at_first_and_stays() -> None:
    made = trace(job("a", 0, 50, gpus=8), job("b", 2_000, 10))
    outcome = run(made, (), DEFAULT, models=HUNDRED, groups=[group(at_first=2, least=1)])
    first, last = outcome.stays
    assert (first.from_s, last.from_s, last.to_s) == (0.0, 0.0, 2_010.0)
    assert first.to_s == DEFAULT.node_idle_s + 1e-3  # one has been idle from the beginning
    assert runs(outcome)["b"][0][0] == 2_000.0


def test_the_preferred_group_grows_first() -> None:
    made = trace(job("a", 0, 50, gpus=8, members=2))
    groups = [group("dear", preference=2), group("cheap", most=2, preference=1)]
    outcome = run(made, (), DEFAULT, models=HUNDRED, groups=groups)
    assert runs(outcome)["a"][0][2] == ("cheap-00000", "cheap-00001")


def test_what_is_never_filled_is_given_up_and_nothing_waits_for_ever() -> None:
    never = SimModels(provisioning=ProvisioningModel(default=Fixed(100.0), refused=1.0))
    outcome = run(trace(job("a", 0, 50, gpus=8)), (), DEFAULT, models=never, groups=[group()])
    assert outcome.records[0].state is State.PENDING and outcome.stays == ()
    assert outcome.turns < 200


def test_a_part_that_is_never_filled_is_asked_for_again() -> None:
    half = SimModels(provisioning=ProvisioningModel(default=Fixed(100.0), refused=0.5))
    made = trace(job("a", 0, 50, gpus=8, members=4))
    for seed in range(3):
        outcome = run(made, (), DEFAULT, models=half, groups=[group()], seed=seed)
        assert outcome.records[0].state is State.SUCCEEDED


def test_what_the_profile_is_told_decides_when_an_order_is_given_up() -> None:
    slow = ProvisioningModel(default=Fixed(1_000.0))
    made = trace(job("a", 0, 50, gpus=8))
    truth = run(made, (), DEFAULT, models=SimModels(provisioning=slow), groups=[group()])
    hopeful = replace(slow, misstated=Misstatement(0.1))
    told = run(made, (), DEFAULT, models=SimModels(provisioning=hopeful), groups=[group()])
    assert runs(truth)["a"][0][0] == 1_000.0
    assert runs(told)["a"][0][0] > 1_000.0  # given up after 200 s, rested, and asked for again


def test_a_failed_node_that_was_given_up_does_not_come_back_by_itself() -> None:
    law = FaultLaw(FaultKind.NODE, Fixed(150.0), Fixed(5_000.0))
    models = replace(HUNDRED, failures=FailureModel((law,)))
    made = trace(job("a", 0, 100, gpus=8))
    outcome = run(made, (), DEFAULT, models=models, groups=[group(most=3)])
    (record,) = outcome.records
    assert record.runs[0].to_s == 150.0 and record.state is State.SUCCEEDED
    assert len(record.runs) > 1


def test_the_same_seed_gives_the_same_log_and_what_runs_is_there() -> None:
    made = trace(*(job(f"j{n}", 120.0 * n, 300.0, gpus=4, members=1 + n % 5) for n in range(40)))
    groups = [group(most=3), group("h", most=2)]
    drawn = SimModels(provisioning=ProvisioningModel(refused=0.1))
    first, again = (run(made, nodes(1), DEFAULT, models=drawn, groups=groups, seed=3, fragmentation=True) for _ in "ab")
    other = run(made, nodes(1), DEFAULT, models=drawn, groups=groups, seed=4)
    assert first.log_sha256 == again.log_sha256 != other.log_sha256
    assert all(record.state is State.SUCCEEDED for record in first.records)
    for record in first.records:
        for stretch in record.runs:
            for node in stretch.nodes:
                there = [
                    s for s in first.stays if s.node == node and s.from_s <= stretch.from_s <= stretch.to_s <= s.to_s
                ]
                assert node == "n0" or there, (record.id, stretch)
    assert (first.series.allocated_gpus <= first.series.capacity_gpus).all()
    assert first.series.fragmentation is not None
    free = first.series.capacity_gpus - first.series.allocated_gpus
    assert (first.series.fragmentation <= free + 1e-9).all() and (first.series.fragmentation >= 0).all()


@pytest.mark.parametrize(
    ("groups", "field"),
    [
        ([group(), group()], r"groups\[0\].name"),
        ([group(hosts=2)], r"groups\[0\].hosts"),
        ([group(at_first=5)], r"groups\[0\]"),
        ([group(least=2)], r"groups\[0\]"),
        ([group(most=0)], r"groups\[0\]"),
        ([replace(group(), node=nodes(1)[0])], "x"),
    ],
)
def test_groups_that_can_not_be_are_refused(groups: list[Supply], field: str) -> None:
    if field == "x":
        groups = [replace(groups[0], node=replace(groups[0].node, total=Resources.of({"GPU": 4})))]
        field = r"groups\[0\].total"
    with pytest.raises(SpecError, match=field):
        run(trace(job("a", 0, 1)), (), DEFAULT, groups=groups)
