"""What holds for every run under every profile: the same log for the same seed, what is held is what ran, and the same
decisions as by a planner that remembers nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from rayorch.core.policy import Profile
from rayorch.core.types import QueueId, QueueSpec, Resources, State
from rayorch.policies.default import DEFAULT
from rayorch.policies.order import fifo, las, multifactor, remaining
from rayorch.policies.presets import kai, kueue, slurm, volcano, yunikorn
from rayorch.sim.models import SimModels
from rayorch.sim.models.distributions import Fixed, Weibull
from rayorch.sim.models.failures import FailureModel, FaultKind, FaultLaw
from rayorch.sim.models.restart import RestartCost, RestartModel
from rayorch.sim.trace import run as runs
from rayorch.sim.trace.model import Trace
from rayorch.sim.trace.outcome import Outcome
from rayorch.sim.trace.run import run
from tests.sim.trace.replanned import planned_twice
from tests.sim.trace.worlds import FIFO, job, nodes, trace

PROFILES: tuple[Profile, ...] = (
    FIFO,
    DEFAULT,
    kai.PRESET,
    kueue.PRESET,
    slurm.PRESET,
    volcano.PRESET,
    yunikorn.PRESET,
    replace(DEFAULT, name="las", order=las.promoting_key, eviction=replace(DEFAULT.eviction, by_order=True)),
    replace(DEFAULT, name="srtf", order=remaining.key),
    replace(DEFAULT, name="fifo-backfill", order=fifo.key),
    replace(slurm.PRESET, name="slurm-preempting", order=multifactor.key, preemption=True),
)
QUEUES = (
    QueueSpec(QueueId("a"), Resources.of({"GPU": 12})),
    QueueSpec(QueueId("b"), Resources.of({"GPU": 12})),
)
ROUGH = SimModels(
    restart=RestartModel(default=RestartCost(restart_s=7.0, checkpoint_s=1.0, interval_s=60.0)),
    failures=FailureModel(
        (
            FaultLaw(FaultKind.NODE, Weibull.of_mean(3_000.0), Fixed(200.0)),
            FaultLaw(FaultKind.SLOW, Weibull.of_mean(4_000.0), Fixed(300.0), slowdown=2.0),
            FaultLaw(FaultKind.DEVICE, Weibull.of_mean(20_000.0), Fixed(400.0), per="gpu"),
        )
    ),
)


def crowd(seed: int, count: int = 25) -> Trace:
    """Jobs of one to twelve GPUs that come faster than three nodes of 8 can take them."""
    rng = random.Random(seed)
    made, now_s = [], 0.0
    for n in range(count):
        now_s += rng.choice((0.0, 5.0, 40.0))
        gpus, members = rng.choice(((1, 1), (1, 1), (2, 1), (0.5, 1), (8, 1), (4, 3), (1, 6)))
        ends_s = rng.choice((10.0, 60.0, 400.0))
        made.append(job(f"j{n:03}", now_s, ends_s, gpus, members, rng.choice("ab"), rng.choice((0, 0, 0, 3))))
    return trace(*made)


def integral(outcome: Outcome) -> float:
    """GPU-seconds held, by the series."""
    series = outcome.series
    return float((np.diff(series.times_s) * series.allocated_gpus[:-1]).sum())


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_the_same_seed_gives_the_same_log_and_what_is_held_is_what_ran(profile: Profile) -> None:
    made = crowd(2)

    one, other = (run(made, nodes(3), profile, queues=QUEUES, models=ROUGH, seed=7) for _ in range(2))

    assert one.log_sha256 == other.log_sha256
    assert one.records == other.records
    held = sum((ran.to_s - ran.from_s) * ran.gpus for record in one.records for ran in record.runs)
    assert integral(one) == pytest.approx(held)
    assert float(one.series.allocated_gpus.max()) <= 24
    assert all(record.state is State.SUCCEEDED for record in one.records)
    for record in one.records:
        useful = sum((r.to_s - r.from_s) * r.gpus for r in record.runs) - record.lost_gpu_s
        assert useful >= record.gpus * next(j.duration_s for j in made.jobs if j.id == record.id) * 0.999


@pytest.mark.parametrize("profile", (FIFO, DEFAULT, kai.PRESET, PROFILES[7]), ids=lambda profile: profile.name)
def test_a_planner_that_remembers_nothing_decides_the_same(profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = planned_twice(monkeypatch)
    run(crowd(2, 15), nodes(3), profile, queues=QUEUES, models=ROUGH, seed=3)

    assert len(turns) > 20


def test_another_seed_is_another_world() -> None:
    one, other = (run(crowd(5), nodes(3), FIFO, queues=QUEUES, models=ROUGH, seed=seed) for seed in (1, 2))

    assert one.log_sha256 != other.log_sha256


def test_a_run_that_is_cut_off_tells_how_far_it_came() -> None:
    outcome = run(crowd(3), nodes(3), FIFO, queues=QUEUES, until_s=200.0)

    assert all(ran.to_s <= 200.0 for record in outcome.records for ran in record.runs)
    assert {record.state for record in outcome.records} >= {State.SUCCEEDED, State.RUNNING, State.PENDING}
    assert len(outcome.records) == 25


def test_progress_is_told_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "TOLD_EVERY", 10)
    told: list[int] = []
    tell: Callable[..., None] = lambda progress: told.append(progress.ended)  # noqa: E731

    run(crowd(4), nodes(3), FIFO, queues=QUEUES, on_progress=tell)

    assert len(told) > 3
    assert told == sorted(told)
