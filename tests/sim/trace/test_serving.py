"""Applications that serve in runs: replicas after their demand, and what training pays for them, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.core.types import QueueId, QueueSpec, Resources, State
from rayorch.policies.default import DEFAULT
from rayorch.sim.models import FailureModel, FaultKind, FaultLaw, RestartCost, RestartModel, SimModels
from rayorch.sim.models.distributions import Fixed
from rayorch.sim.trace.model import Service, Trace
from rayorch.sim.trace.outcome import ReplicaRun
from rayorch.sim.trace.run import run
from tests.sim.trace.worlds import job, nodes, trace

GPU_EACH = Resources.of({"GPU": 1})
BURST = Service("chat", ((0.0, 2.0), (20.0, 6.0), (60.0, 1.5)), GPU_EACH, most=8)
DELAY_S = DEFAULT.scale_down_delay_s


def beside(made: Trace, *services: Service) -> Trace:
    """The trace with applications that serve."""
    return replace(made, services=services)


def test_replicas_follow_the_demand_and_training_makes_room() -> None:
    outcome = run(beside(trace(job("a", 0, 100, gpus=4)), BURST), nodes(1), DEFAULT)

    back_s = 60 + DELAY_S + 1e-3  # replicas are given back when the demand has been low for that long
    (a,), (chat,) = outcome.records, outcome.services
    assert [(r.from_s, r.to_s, r.gpus) for r in a.runs] == [(0, 20, 4), (back_s, back_s + 80, 4)]
    assert chat.runs == (ReplicaRun(0, 20, 2), ReplicaRun(20, back_s, 6), ReplicaRun(back_s, back_s + 80, 2))
    assert (a.preemptions, a.state, chat.stops, chat.refused) == (1, State.SUCCEEDED, 0, "")
    at = dict(zip(outcome.series.times_s.tolist(), outcome.series.allocated_gpus.tolist(), strict=True))
    assert (at[0.0], at[20.0], at[back_s]) == (6.0, 6.0, 6.0)


def test_what_training_loses_is_counted() -> None:
    models = SimModels(restart=RestartModel(default=RestartCost(restart_s=5.0, interval_s=8.0, on_request=False)))
    outcome = run(beside(trace(job("a", 0, 100, gpus=4)), BURST), nodes(1), DEFAULT, models=models)
    assert outcome.records[0].lost_gpu_s == (4 + 5) * 4  # of 20 s 16 were saved, and the next start takes 5 s


def test_it_takes_no_more_than_its_most_and_never_fewer_than_its_least() -> None:
    service = Service("chat", ((0.0, 50.0), (100.0, 0.0)), GPU_EACH, most=3, least=2, target=4.0)
    outcome = run(beside(trace(job("a", 0, 300)), service), nodes(1), DEFAULT)
    assert [r.replicas for r in outcome.services[0].runs] == [3, 2]


def test_without_priority_it_waits_for_room_like_anyone() -> None:
    service = replace(BURST, priority=0, demand=((10.0, 4.0),))
    outcome = run(beside(trace(job("a", 0, 100, gpus=8), job("b", 150, 10)), service), nodes(1), DEFAULT)
    assert outcome.records[0].preemptions == 0
    assert outcome.services[0].runs[0] == ReplicaRun(100, 160, 4)


def test_replicas_on_a_lost_node_are_replaced_and_the_others_go_on() -> None:
    law = FaultLaw(FaultKind.NODE, Fixed(100.0), Fixed(1_000.0), labels=(("name", "n0"),))
    where = tuple(replace(node, labels=(("name", node.id),)) for node in nodes(2, gpus=2))
    service = Service("chat", ((0.0, 3.0),), GPU_EACH, most=4)
    models = SimModels(failures=FailureModel((law,)))
    outcome = run(beside(trace(job("a", 300, 10)), service), where, DEFAULT, models=models)
    chat, (a,) = outcome.services[0], outcome.records
    assert [(r.from_s, r.replicas) for r in chat.runs] == [(0, 3), (100, 2), (1_100, 3)]  # n1 holds two
    assert a.started_s == 1_100
    assert outcome.services[0].stops == 0


def test_a_replica_on_a_lost_gpu_dies_and_is_replaced() -> None:
    law = FaultLaw(FaultKind.DEVICE, Fixed(100.0), Fixed(500.0), per="gpu", labels=(("name", "n0"),))
    where = tuple(replace(node, labels=(("name", node.id),)) for node in nodes(2, gpus=1))
    models = SimModels(failures=FailureModel((law,)))
    service = Service("chat", ((0.0, 2.0),), GPU_EACH, most=2)
    outcome = run(beside(trace(job("a", 650, 10)), service), where, DEFAULT, models=models, until_s=690.0)
    assert [(r.from_s, r.replicas) for r in outcome.services[0].runs] == [(0, 2), (100, 1), (600, 2)]
    assert (outcome.series.allocated_gpus <= outcome.series.capacity_gpus).all()


def test_an_application_that_no_queue_takes_is_refused_and_said() -> None:
    service = replace(BURST, each=Resources.of({"GPU": 9}))
    outcome = run(beside(trace(job("a", 0, 10)), service), nodes(1), DEFAULT)
    assert "GPU" in outcome.services[0].refused and outcome.services[0].runs == ()
    assert outcome.records[0].state is State.SUCCEEDED


def test_a_trace_of_applications_only_ends_with_their_demand() -> None:
    outcome = run(beside(trace(), BURST), nodes(1), DEFAULT)
    assert outcome.services[0].runs[0] == ReplicaRun(0, 20, 2)


def test_the_same_seed_gives_the_same_log_and_without_applications_nothing_changes() -> None:
    made = trace(*(job(f"j{n}", 9.0 * n, 70.0, gpus=1 + n % 4) for n in range(25)))
    queues = (QueueSpec(QueueId("all")), QueueSpec(QueueId("serve")))
    steps = tuple((30.0 * n, float(n * 7 % 5)) for n in range(12))
    service = Service("chat", steps, GPU_EACH, most=8)
    first, again = (run(beside(made, service), nodes(1), DEFAULT, queues=queues) for _ in "ab")
    assert first.log_sha256 == again.log_sha256
    assert all(record.state is State.SUCCEEDED for record in first.records)
    assert (first.series.allocated_gpus <= first.series.capacity_gpus).all()
    assert run(beside(made), nodes(1), DEFAULT).log_sha256 == run(made, nodes(1), DEFAULT).log_sha256


@pytest.mark.parametrize("seed", range(2))
def test_faults_and_applications_together_end(seed: int) -> None:
    law = FaultLaw(FaultKind.NODE, Fixed(400.0), Fixed(100.0))
    made = trace(*(job(f"j{n}", 50.0 * n, 200.0, gpus=2) for n in range(10)))
    service = Service("chat", tuple((100.0 * n, 1.0 + n % 3) for n in range(20)), GPU_EACH, most=4)
    models = SimModels(failures=FailureModel((law,)))
    outcome = run(beside(made, service), nodes(2), DEFAULT, models=models, seed=seed)
    assert all(record.state is State.SUCCEEDED for record in outcome.records)


def test_a_job_that_needs_what_an_application_holds_keeps_no_other_waiting() -> None:
    """All GPUs, beside an application: it never starts, and says why; everybody else is done as without it."""
    jobs = [job("all", 5, 100, gpus=8, members=2), *(job(f"j{n}", 10.0 * n, 50, gpus=2) for n in range(12))]
    alone = run(beside(trace(*jobs[1:]), replace(BURST, demand=((0.0, 2.0),))), nodes(2), DEFAULT, until_s=2000.0)
    outcome = run(beside(trace(*jobs), replace(BURST, demand=((0.0, 2.0),))), nodes(2), DEFAULT, until_s=2000.0)
    ends = {record.id: record.ended_s for record in outcome.records}
    assert ends == {"all": None} | {record.id: record.ended_s for record in alone.records}
