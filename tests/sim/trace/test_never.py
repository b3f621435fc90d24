"""Work that can never start: said, and no reason to go on for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.config import load_preset
from rayorch.core.errors import SpecError
from rayorch.core.policy import Profile
from rayorch.core.types import QueueId, QueueMode, QueueSpec, State, TopologyRequest
from rayorch.policies.default import DEFAULT
from rayorch.policies.order import auction, finish_time
from rayorch.sim.models import Misstatement, RuntimeModel, SimModels
from rayorch.sim.models.distributions import Fixed, Weibull
from rayorch.sim.models.failures import GPU, FailureModel, FaultKind, FaultLaw
from rayorch.sim.trace import run as runs
from rayorch.sim.trace.run import run
from tests.sim.trace.worlds import FIFO, job, nodes, trace

RACKS = tuple(replace(node, topology=(("rack", f"r{n}"),)) for n, node in enumerate(nodes(2)))
WIDE = job("wide", 0, 10, gpus=8, members=2)
IN_A_RACK = replace(WIDE, ask=replace(WIDE.ask, topology=TopologyRequest(required="rack")))
PROFILES = [
    FIFO,
    DEFAULT,
    replace(DEFAULT, name="finish-time", order=finish_time.key),
    replace(DEFAULT, name="auction", order=auction.key),
    load_preset("slurm", "x"),
]


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_a_gang_that_no_rack_could_hold_is_refused(profile: Profile) -> None:
    outcome = run(trace(IN_A_RACK, job("a", 5, 10, gpus=8, queue="other")), RACKS, profile)
    assert [record.state for record in outcome.records] == [State.FAILED, State.SUCCEEDED]


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_work_of_a_held_queue_never_starts_and_the_run_ends(profile: Profile) -> None:
    queue = QueueSpec(QueueId("all"), mode=QueueMode.HOLD)
    outcome = run(trace(job("a", 0, 10), job("b", 5, 10, queue="other")), RACKS, profile, queues=(queue,))
    assert [record.state for record in outcome.records] == [State.PENDING, State.SUCCEEDED]
    assert outcome.turns < 30


def test_the_door_refuses_what_no_node_can_take() -> None:
    outcome = run(trace(job("a", 0, 10, gpus=9), job("b", 1, 10)), nodes(2), DEFAULT)
    assert [record.state for record in outcome.records] == [State.FAILED, State.SUCCEEDED]


def test_a_trace_without_jobs_and_a_cluster_without_nodes() -> None:
    outcome = run(trace(), nodes(1), DEFAULT)
    assert (outcome.records, outcome.events) == ((), 0)
    with pytest.raises(SpecError, match="names none"):
        run(trace(job("a", 0, 1)), (), DEFAULT)


OFTEN = FaultLaw(FaultKind.NODE, Weibull.of_mean(1000.0), Fixed(1500.0))


def _failing(law: FaultLaw) -> SimModels:
    return SimModels(failures=FailureModel((law,)))


def test_what_fails_after_the_last_job_is_not_waited_for() -> None:
    """With so many nodes one is always away."""
    outcome = run(trace(job("a", 5000, 10)), nodes(16), DEFAULT, models=_failing(OFTEN))
    assert [record.state for record in outcome.records] == [State.SUCCEEDED]
    assert outcome.turns < 200


def test_a_job_waits_for_a_gpu_that_comes_back() -> None:
    """Nothing runs and nobody comes, but the GPU is repaired at 150 s."""
    law = FaultLaw(FaultKind.DEVICE, Fixed(50.0), Fixed(100.0), GPU)
    outcome = run(trace(job("a", 60, 10)), nodes(1, gpus=1), DEFAULT, models=_failing(law))
    assert [(record.state, record.ended_s) for record in outcome.records] == [(State.SUCCEEDED, 160.0)]


def test_repairs_are_not_waited_for_for_ever_where_they_help_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "REPAIRS_IN_VAIN", 50)
    queue = QueueSpec(QueueId("all"), mode=QueueMode.HOLD)
    outcome = run(trace(job("a", 5000, 10)), nodes(16), FIFO, queues=(queue,), models=_failing(OFTEN))
    assert [record.state for record in outcome.records] == [State.PENDING]
    assert 50 < outcome.turns < 400


def test_a_run_time_that_is_misstated_beyond_measure_is_no_reason_to_refuse_the_job() -> None:
    models = SimModels(RuntimeModel(misstated=Misstatement(1e6)))
    outcome = run(trace(job("a", 0, 10_000)), nodes(1), DEFAULT, models=models)
    assert [record.state for record in outcome.records] == [State.SUCCEEDED]
