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
from tests.sim.trace.replanned import planned_twice
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


def test_a_good_pair_stays_together() -> None:
    good = replace(MODELS, colocation=Colocation({("x", "y"): 0.8, ("y", "x"): 0.7}))
    records = run(trace(*KNOWN, *BOTH), _exact(1, 1), WATCHED, models=good).records
    assert [record.preemptions for record in records] == [0, 0, 0, 0]


def test_when_a_gpu_comes_free_one_of_a_pair_moves_there_with_its_part() -> None:
    whole = _of("z", "z", 900, 1500, gpus=1)
    good = replace(MODELS, colocation=Colocation({("x", "y"): 0.8, ("y", "x"): 0.7}))
    for profile, moves in ((APART, 0), (WATCHED, 1)):
        found = {r.id: r for r in run(trace(*KNOWN, whole, *BOTH), _exact(1, 2), profile, models=good).records}
        assert sum(found[id].preemptions for id in "ab") == moves
        assert all(run.gpus == 0.5 for id in "ab" for run in found[id].runs)
        last_s = max(found[id].ended_s or 0.0 for id in "ab")
        assert last_s < 4_600 if moves else last_s > 4_700


def test_what_two_kinds_did_beside_each_other_is_known_the_next_time() -> None:
    again = tuple(replace(one, id=f"{one.id}2", submit_s=20_000.0) for one in BOTH)
    found = _played(WATCHED, 1, *KNOWN, *BOTH, *again)
    stops = {id: record.runs[0].to_s - record.runs[0].from_s for id, record in found.items() if record.preemptions}
    assert len(stops) == 2 and stops.pop("a", stops.get("b", 0.0)) > 120.0 > stops.popitem()[1]


def test_a_planner_that_remembers_nothing_decides_the_same_and_the_same_run_has_the_same_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = [_of("xy"[n % 2], f"j{n:02}", 37.0 * n, 300.0 + 50 * (n % 7)) for n in range(16)]
    made = trace(*jobs, _of("z", "whole", 100.0, 500.0, gpus=1))
    logs = {run(made, _exact(2, 2), WATCHED, models=MODELS).log_sha256 for _ in range(2)}
    assert len(logs) == 1
    turns = planned_twice(monkeypatch)
    records = run(made, _exact(2, 2), WATCHED, models=MODELS).records
    assert len(turns) > 50 and sum(record.preemptions for record in records) > 2
