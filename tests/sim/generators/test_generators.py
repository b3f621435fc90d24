"""Scaled traces keep their jobs; generated ones have the fitted marginals; a seed decides everything."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayorch.core.errors import SpecError
from rayorch.core.resources import Resources
from rayorch.sim.generators import (
    WEEK_S,
    at_load,
    bootstrap,
    first_jobs,
    fit,
    gpu_seconds,
    gpus_of,
    of_queues,
    offered_load,
    window,
)
from rayorch.sim.models.streams import stream
from rayorch.sim.trace.model import Ask, Trace, TraceJob

ASKS = tuple(Ask(members, Resources.of({"GPU": 1})) for members in (1, 2, 4, 8))


def made(seed: int, count: int = 6_000) -> Trace:
    """Busy in the middle of the day, small jobs mostly, large ones long, one queue twice as busy."""
    rng = stream(seed, "made")
    times_s, now_s = [], 0.0
    while len(times_s) < count:
        now_s += float(rng.exponential(60.0))
        if rng.random() < 0.55 + 0.45 * math.sin(2 * math.pi * now_s / 86_400):
            times_s.append(now_s)
    jobs = []
    for number, time_s in enumerate(times_s):
        size = int(rng.choice(4, p=[0.6, 0.2, 0.15, 0.05]))
        queue = "big" if rng.random() < 2 / 3 else "small"
        duration_s = float(rng.lognormal(5 + size, 1.0))
        jobs.append(TraceJob(f"j{number}", time_s, duration_s, ASKS[size], queue, f"u{number % 3}", line=number + 1))
    return Trace("made", tuple(jobs), source="made")


TRACE = made(1)
GENERATOR = fit(TRACE)


# ---------------------------------------------------------------- the same jobs otherwise


@given(st.floats(0.01, 20.0), st.floats(1.0, 1e5))
def test_a_trace_at_a_load_offers_it_with_the_same_jobs(load: float, capacity: float) -> None:
    some = first_jobs(TRACE, 50)
    scaled = at_load(some, capacity, load)
    assert offered_load(scaled, capacity) == pytest.approx(load)
    assert [(j.id, j.duration_s, j.ask) for j in scaled.jobs] == [(j.id, j.duration_s, j.ask) for j in some.jobs]
    assert scaled.jobs[0].submit_s == 0.0
    gaps = np.diff([j.submit_s for j in some.jobs])
    assert np.allclose(np.diff([j.submit_s for j in scaled.jobs]) / gaps, scaled.jobs[-1].submit_s / gaps.sum())


def test_what_has_no_load_is_refused() -> None:
    at_once = replace(TRACE, jobs=tuple(replace(job, submit_s=5.0) for job in TRACE.jobs[:3]))
    endless = replace(TRACE, jobs=(*TRACE.jobs[:3], replace(TRACE.jobs[3], duration_s=math.inf)))
    for trace, capacity, load in ((at_once, 8.0, 1.0), (endless, 8.0, 1.0), (TRACE, 0.0, 1.0), (TRACE, 8.0, -1.0)):
        with pytest.raises(SpecError):
            at_load(trace, capacity, load)
    assert math.isinf(offered_load(at_once, 8.0))
    for trace in (at_once, endless, first_jobs(TRACE, 1)):
        with pytest.raises(SpecError):
            fit(trace)


def test_windows_and_queues() -> None:
    day = window(TRACE, 86_400.0, 2 * 86_400.0)
    assert all(0 <= job.submit_s < 86_400 for job in day.jobs)
    assert len(day.jobs) == sum(86_400 <= job.submit_s < 172_800 for job in TRACE.jobs)
    assert {job.queue for job in of_queues(TRACE, {"small"}).jobs} == {"small"}
    for bad in (lambda: window(TRACE, 1e9, 2e9), lambda: of_queues(TRACE, {"none"})):
        with pytest.raises(SpecError):
            bad()


def test_a_bootstrap_is_made_of_whole_blocks() -> None:
    day_s = 86_400.0
    drawn = bootstrap(TRACE, 3, blocks=10, block_s=day_s)
    assert drawn == bootstrap(TRACE, 3, blocks=10, block_s=day_s) != bootstrap(TRACE, 4, blocks=10, block_s=day_s)
    assert len({job.id for job in drawn.jobs}) == len(drawn.jobs)
    assert [job.submit_s for job in drawn.jobs] == sorted(job.submit_s for job in drawn.jobs)
    first_s = TRACE.jobs[0].submit_s
    places = {job.id: (int((job.submit_s - first_s) // day_s), (job.submit_s - first_s) % day_s) for job in TRACE.jobs}
    blocks: dict[int, set[int]] = {}
    for job in drawn.jobs:
        id, _, place = job.id.rpartition(".")
        block, within_s = places[id]
        blocks.setdefault(int(place), set()).add(block)
        assert job.submit_s == pytest.approx(int(place) * day_s + within_s, abs=1e-4)
    assert all(len(found) == 1 for found in blocks.values()) and len(blocks) == 10
    assert len(bootstrap(TRACE, 1, block_s=WEEK_S).jobs) <= len(TRACE.jobs)
    assert gpu_seconds(bootstrap(first_jobs(TRACE, 5), 1).jobs) == pytest.approx(gpu_seconds(TRACE.jobs[:5]))


# ---------------------------------------------------------------- generated


def _mix(trace: Trace, key: str) -> dict[object, float]:
    counts = Counter(gpus_of(job) if key == "gpus" else getattr(job, key) for job in trace.jobs)
    return {value: count / len(trace.jobs) for value, count in counts.items()}


@pytest.mark.parametrize("key", ["gpus", "queue", "user"])
def test_the_mix_is_that_of_the_trace(key: str) -> None:
    wanted, found = _mix(TRACE, key), _mix(GENERATOR.draw(7, jobs=20_000), key)
    assert found.keys() == wanted.keys()
    assert all(found[value] == pytest.approx(share, abs=0.015) for value, share in wanted.items())


def test_run_times_are_those_of_their_class() -> None:
    drawn = GENERATOR.draw(7, jobs=30_000)
    for gpus in (1.0, 2.0, 4.0, 8.0):
        wanted, found = (np.asarray([j.duration_s for j in t.jobs if gpus_of(j) == gpus]) for t in (TRACE, drawn))
        for quantile in (0.1, 0.5, 0.9):
            assert np.quantile(found, quantile) == pytest.approx(np.quantile(wanted, quantile), rel=0.08)
    assert GENERATOR.mean_gpu_seconds == pytest.approx(gpu_seconds(TRACE.jobs) / len(TRACE.jobs), rel=0.01)


def test_arrivals_have_the_rate_and_the_pattern_of_the_day() -> None:
    drawn = GENERATOR.draw(7, seconds=60 * 86_400.0)

    def per_hour_of_day(trace: Trace) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        first_s = trace.jobs[0].submit_s
        hours = np.bincount([int((j.submit_s - first_s) / 3600) % 24 for j in trace.jobs], minlength=24)
        return hours / ((trace.jobs[-1].submit_s - first_s) / 86_400)

    wanted, found = per_hour_of_day(TRACE), per_hour_of_day(drawn)
    assert found.sum() == pytest.approx(wanted.sum(), rel=0.05)
    assert np.corrcoef(wanted, found)[0, 1] > 0.97
    assert max(job.submit_s for job in drawn.jobs) < 60 * 86_400.0


def test_bursts_are_kept() -> None:
    bursts = [replace(job, submit_s=13_320.0 * (n // 40) + n % 40) for n, job in enumerate(TRACE.jobs[:4_000])]
    bursty = fit(replace(TRACE, jobs=tuple(bursts)))
    assert bursty.dispersion > 10 > GENERATOR.dispersion

    counts = np.bincount([int(j.submit_s / 3600) for j in bursty.draw(3, jobs=8_000).jobs])
    trace_counts = np.bincount([int(j.submit_s / 3600) for j in bursts])
    wanted = trace_counts.var() / trace_counts.mean()
    assert counts.var() / counts.mean() == pytest.approx(wanted, rel=0.5)


def test_a_load_is_offered_exactly() -> None:
    drawn = GENERATOR.draw(2, jobs=5_000, load=0.8, capacity_gpus=256)
    assert offered_load(drawn, 256) == pytest.approx(0.8)
    assert len(drawn.jobs) == 5_000


def test_the_seed_decides() -> None:
    assert GENERATOR.draw(5, jobs=500) == fit(TRACE).draw(5, jobs=500)
    assert GENERATOR.draw(5, jobs=500).jobs != GENERATOR.draw(6, jobs=500).jobs
    longer = GENERATOR.draw(5, jobs=900)
    assert [j.submit_s for j in longer.jobs[:500]] == [j.submit_s for j in GENERATOR.draw(5, jobs=500).jobs]
    for bad in ({}, {"jobs": 1, "seconds": 1.0}, {"jobs": 5, "load": 1.0}, {"jobs": 0}, {"seconds": 0.0}):
        with pytest.raises(SpecError):
            GENERATOR.draw(1, **bad)  # type: ignore[arg-type]
