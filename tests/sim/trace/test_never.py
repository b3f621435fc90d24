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
