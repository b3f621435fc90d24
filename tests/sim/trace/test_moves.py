"""Runs in which what runs changes its node so that less is stranded: each move is counted, with what it brings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.core.eviction import DefragmentKnobs
from rayorch.core.placement import PlacementKnobs, TaskClass
from rayorch.core.policy import Profile
from rayorch.core.types import UNIT
from rayorch.policies.default import DEFAULT
from rayorch.policies.moves import greedy_gradient
from rayorch.policies.place import fragmentation
from rayorch.sim.trace.outcome import JobRecord
from rayorch.sim.trace.run import run
from tests.sim.trace.worlds import job, nodes, trace

PAIRS = PlacementKnobs((TaskClass(0, UNIT, 2, frozenset(), 1),))
STILL: Profile = replace(DEFAULT, score=fragmentation.score, device=fragmentation.device, placement=PAIRS)
MOVING: Profile = replace(
    STILL, moves=greedy_gradient.moves, defragment=DefragmentKnobs(every_s=10.0, cooldown_s=60.0, most_lost_s=1e9)
)


def _played(profile: Profile) -> dict[str, JobRecord]:
    """Two of one GPU each are left on two nodes of two GPUs when those beside them end; then a pair comes."""
    left = job("a", 0, 9_000), job("b", 20, 9_000)
    ends, pair = job("x", 10, 500), job("pair", 4_000, 1_000, gpus=2)
    found = run(trace(*left, ends, pair), nodes(2, 2), profile)
    return {record.id: record for record in found.records}


def test_a_move_is_counted_with_what_it_brings_and_a_pair_finds_room() -> None:
    still, moved = _played(STILL), _played(MOVING)
    assert sum(record.moves for record in still.values()) == 0
    assert still["pair"].started_s == 9_000
    assert sum(record.moves for record in moved.values()) == 1
    assert sum(record.freed_gpus for record in moved.values()) == pytest.approx(2.0)
    assert moved["pair"].started_s == 4_000
