"""Runs in which jobs share GPUs and slow each other down."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.played import traces
from rayorch.core.policy import Profile
from rayorch.core.types import NodeSpec, Resources
from rayorch.policies.default import DEFAULT
from rayorch.policies.place import apart
from rayorch.sim.models import Colocation, RestartCost, RestartModel, SimModels
from rayorch.sim.trace.model import Ask, TraceJob
from rayorch.sim.trace.outcome import JobRecord
from rayorch.sim.trace.run import run
from tests.sim.trace.test_turns import TURNS
from tests.sim.trace.worlds import job, nodes, trace

MODELS = SimModels(colocation=Colocation({("x", "y"): 0.5, ("y", "x"): 0.8, ("x", "x"): 0.25}))
APART: Profile = replace(DEFAULT, score=apart.score, device=apart.device)


def _of(kind: str, id: str, submit_s: float, duration_s: float, gpus: float = 0.5) -> TraceJob:
    return replace(job(id, submit_s, duration_s, gpus=gpus), name=kind)


def _exact(count: int, gpus: int) -> tuple[NodeSpec, ...]:
    return tuple(replace(node, exact=True) for node in traces.nodes(count, gpus))


def _ends(profile: Profile, where: tuple[NodeSpec, ...], *jobs: TraceJob) -> list[float | None]:
    records: tuple[JobRecord, ...] = run(trace(*jobs), where, profile, models=MODELS).records
    return [record.ended_s for record in records]


def test_two_on_one_gpu_slow_each_other_while_both_are_there() -> None:
    x, y = _ends(DEFAULT, nodes(1, 1), _of("x", "a", 0, 100), _of("y", "b", 20, 100))

    # y does 0.8 a second beside x from 20 s on. x does 20 by then, and 0.5 a second beside y: 80 more would take 160 s;
    # y is done first, after 125 s, x has done 82.5 by then and goes on alone.
    assert y == pytest.approx(145.0)
    assert x == pytest.approx(145.0 + 17.5)


def test_who_has_a_gpu_alone_is_as_fast_as_ever() -> None:
    assert _ends(DEFAULT, nodes(1, 2), _of("x", "a", 0, 100, gpus=1), _of("y", "b", 0, 100, gpus=1)) == [100, 100]
    assert _ends(APART, _exact(1, 2), _of("x", "a", 0, 100), _of("y", "b", 0, 100)) == [100, 100]


def test_parts_share_a_gpu_only_when_none_is_free_where_they_are_kept_apart() -> None:
    jobs = (_of("x", "a", 0, 100), _of("x", "b", 0, 100), _of("y", "c", 0, 100))

    assert _ends(DEFAULT, _exact(1, 2), *jobs[:2]) == [400, 400], "best fit keeps the second GPU whole"
    first, second, third = _ends(APART, _exact(1, 2), *jobs)
    assert (second, third) == (100, 125) and first == pytest.approx(125 + 37.5)


def test_a_member_on_two_gpus_is_as_fast_as_on_the_slower() -> None:
    wide = replace(_of("x", "wide", 0, 100), ask=Ask(1, Resources.of({"GPU": 1, "gpu-devices": 2})))

    assert _ends(APART, _exact(1, 2), wide, _of("y", "a", 0, 200), _of("y", "b", 0, 200))[0] == 200


def test_without_a_model_nobody_slows_anybody() -> None:
    made = trace(_of("x", "a", 0, 100), _of("x", "b", 0, 100))

    assert [record.ended_s for record in run(made, nodes(1, 1), DEFAULT).records] == [100, 100]


def test_what_was_done_at_another_pace_is_kept_over_a_stop() -> None:
    jobs = (_of("x", "a", 0, 1000), _of("y", "b", 0, 480), job("c", 10, 600))
    models = replace(MODELS, restart=RestartModel(default=RestartCost(0.0)))

    a, b, c = run(trace(*jobs), nodes(1, 1), TURNS, models=models).records

    assert b.ended_s == 600, "480 at 0.8 a second"
    assert [(r.from_s, r.to_s) for r in c.runs] == [(600, 1200)]
    assert a.ended_s == pytest.approx(1200 + 700), "300 of it done beside b"
    assert a.lost_gpu_s == 0
