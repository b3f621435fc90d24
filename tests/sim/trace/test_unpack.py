"""Runs in which two that hinder each other on one GPU are taken apart, by their own reports."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.core.eviction import PackingKnobs
from rayorch.core.policy import Profile
from rayorch.policies.default import DEFAULT
from rayorch.policies.place import apart
from rayorch.sim.models import Colocation, RestartCost, RestartModel, SimModels
from rayorch.sim.trace.model import TraceJob
from rayorch.sim.trace.outcome import JobRecord
from rayorch.sim.trace.run import run
from tests.sim.trace.test_beside import _exact
from tests.sim.trace.worlds import job, trace

BAD = Colocation({("x", "y"): 0.3, ("y", "x"): 0.3, ("x", "x"): 0.9, ("y", "y"): 0.9})
MODELS = SimModels(colocation=BAD, restart=RestartModel(default=RestartCost(10.0)))
KNOBS = PackingKnobs(unpack=True)
APART: Profile = replace(DEFAULT, score=apart.score, device=apart.device)
WATCHED: Profile = replace(APART, packing=KNOBS)


def _of(kind: str, id: str, submit_s: float, duration_s: float, gpus: float = 0.5) -> TraceJob:
    return replace(job(id, submit_s, duration_s, gpus=gpus), name=kind)


def _played(profile: Profile, gpus: int, *jobs: TraceJob) -> dict[str, JobRecord]:
    records = run(trace(*jobs), _exact(1, gpus), profile, models=MODELS).records
    return {record.id: record for record in records}


# Kinds x and y have run alone before, so that both are known; together they do 0.6 of what one does alone.
KNOWN = (_of("x", "x0", 0, 300), _of("y", "y0", 400, 300))
BOTH = (_of("x", "a", 1000, 3000), _of("y", "b", 1000, 3000))


def test_a_bad_pair_is_taken_apart_and_the_one_that_leaves_asks_for_a_whole_gpu() -> None:
    stay, apart_ = _played(APART, 1, *KNOWN, *BOTH), _played(WATCHED, 1, *KNOWN, *BOTH)

    assert stay["a"].ended_s == stay["b"].ended_s == 11_000
    first, last = sorted((apart_["a"], apart_["b"]), key=lambda record: record.ended_s or 0.0)
    assert first.preemptions == 0 and first.ended_s is not None and first.ended_s < 4_500
    assert last.preemptions == 1 and last.ended_s is not None and last.ended_s < 7_500
    assert [run.gpus for run in last.runs] == [0.5, 1.0]
    assert last.runs[1].from_s == pytest.approx(first.ended_s), "it waits for a whole GPU"
    assert apart_["x0"].preemptions == apart_["y0"].preemptions == 0
