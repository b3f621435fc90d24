"""A generator of jobs like those of a trace: how they arrive over the day, of which kinds they are, how long they run.

Arrivals: hourly counts, their mean by the hour of the day and the day of the week, spread as wide as those of the trace
(a gamma-mixed Poisson, whose variance may be far above its mean). Kinds: queue, user, name, priority and shape are
drawn together, as often as they came together. Run times: those of the finest class that has enough jobs: the queue
and size, the size, all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rayorch.core.errors import SpecError
from rayorch.core.resources import UNIT
from rayorch.sim.generators.scaling import at_load, gpus_of
from rayorch.sim.models.streams import stream
from rayorch.sim.trace.model import Ask, Trace, TraceJob

HOUR_S = 3600.0
HOURS = 24
DAYS = 7
LEAST_IN_CLASS = 30
"""So many jobs of a class say how long jobs of it run; fewer are asked of the coarser class."""
QUANTILES = 512
"""Of a class with more jobs than this, so many equal shares are kept."""
MOST_JOBS = 50_000_000

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class JobKind:
    """What is drawn together. `run_times`: the place of its class's quantiles in `Generator.run_times`."""

    queue: str
    user: str
    name: str
    priority: int
    ask: Ask
    run_times: int


@dataclass(frozen=True, slots=True)
class Generator:
    """See the module. `per_hour`: jobs an hour on average. `hours`, `days`: factors of it, mean 1, by the hour and the
    day since the trace's start. `dispersion`: variance over mean of hourly counts, at least 1. `weights`: of `kinds`.
    `run_times`: of each class those [s] that are drawn from, all equally likely.
    """

    name: str
    per_hour: float
    hours: tuple[float, ...]
    days: tuple[float, ...]
    dispersion: float
    kinds: tuple[JobKind, ...]
    weights: tuple[float, ...]
    run_times: tuple[tuple[float, ...], ...]

    def draw(
        self,
        seed: int,
        jobs: int | None = None,
        seconds: float | None = None,
        load: float | None = None,
        capacity_gpus: float | None = None,
    ) -> Trace:
        """So many jobs, or the jobs of so many seconds. The same seed gives the same trace.

        `load` of `capacity_gpus`: more or fewer jobs an hour, so that they offer it; the rest of the way, since run
        times are drawn, by `at_load`. SpecError unless exactly one of `jobs` and `seconds` is given.
        """
        if (jobs is None) == (seconds is None):
            raise SpecError("jobs", "say either how many jobs or how many seconds")
        if (load is None) != (capacity_gpus is None):
            raise SpecError("load", "is of a capacity: say both load and capacity_gpus")
        rate = self.per_hour
        if load is not None and capacity_gpus is not None:
            rate = load * capacity_gpus * HOUR_S / self.mean_gpu_seconds
        times_s = self._arrivals(stream(seed, "generator", "arrivals"), rate, jobs, seconds)
        trace = self._filled(seed, times_s)
        if load is not None and capacity_gpus is not None and len(times_s) > 1:
            scaled = at_load(trace, capacity_gpus, load)
            trace = replace(scaled, name=trace.name, source=f"{trace.source} load {load:g} of {capacity_gpus:g} GPUs")
        return trace

    @property
    def mean_gpu_seconds(self) -> float:
        """What one job takes on average."""
        means = [float(np.mean(values)) for values in self.run_times]
        share = math.fsum(self.weights)
        return (
            math.fsum(
                weight * kind.ask.gpu_units / UNIT * means[kind.run_times]
                for kind, weight in zip(self.kinds, self.weights, strict=True)
            )
            / share
        )

    def _arrivals(self, rng: np.random.Generator, rate: float, jobs: int | None, seconds: float | None) -> Floats:
        """Times of submission, ascending, from 0."""
        hours = math.inf if seconds is None else seconds / HOUR_S
        most = MOST_JOBS if jobs is None else jobs
        if not rate > 0 or not hours > 0 or most < 1 or (jobs is None and hours * rate > MOST_JOBS):
            raise SpecError("seconds", f"must give between one and {MOST_JOBS} jobs")
        parts: list[Floats] = []
        count, hour = 0, 0
        while count < most and hour < hours:
            mean = rate * self.hours[hour % HOURS] * self.days[hour // HOURS % DAYS]
            if self.dispersion > 1.0 and mean > 0:
                scale = self.dispersion - 1.0
                mean = float(rng.gamma(mean / scale, scale))
            found = int(rng.poisson(mean))
            within = np.sort(rng.random(found)) + hour
            parts.append(within[within < hours])
            count += len(parts[-1])
            hour += 1
        times_s = np.concatenate(parts)[: None if jobs is None else jobs] * HOUR_S
        if not len(times_s):
            raise SpecError("seconds", "is so short that no job came")
        return np.asarray(times_s - times_s[0], dtype=float)

    def _filled(self, seed: int, times_s: Floats) -> Trace:
        rng = stream(seed, "generator", "jobs")
        weights = np.cumsum(np.asarray(self.weights, dtype=float))
        chosen = np.searchsorted(weights, rng.random(len(times_s)) * weights[-1], side="right")
        chosen = np.minimum(chosen, len(self.kinds) - 1)
        at = rng.random(len(times_s))
        classes = np.asarray([kind.run_times for kind in self.kinds])[chosen]
        durations_s = np.empty(len(times_s))
        for index, values in enumerate(self.run_times):
            mask = classes == index
            durations_s[mask] = np.asarray(values)[(at[mask] * len(values)).astype(int)]
        made = []
        columns = (times_s.tolist(), durations_s.tolist(), chosen.tolist())
        for number, (time_s, duration_s, kind) in enumerate(zip(*columns, strict=True), 1):
            of = self.kinds[kind]
            made.append(
                TraceJob(
                    f"g{number}",
                    time_s,
                    duration_s,
                    of.ask,
                    of.queue,
                    of.user,
                    of.priority,
                    of.name,
                    line=number,
                )
            )
        return Trace(f"{self.name} generated", tuple(made), source=f"generator fitted to {self.name}, seed {seed}")


def fit(trace: Trace) -> Generator:
    """The generator of jobs like those. SpecError for fewer than two jobs, for jobs all at once or without an end."""
    jobs = trace.jobs
    if len(jobs) < 2 or jobs[-1].submit_s <= jobs[0].submit_s:
        raise SpecError("trace", "a generator is fitted to at least two jobs that don't come at once")
    if any(math.isinf(job.duration_s) for job in jobs):
        raise SpecError("trace", "has jobs that never end")
    start_s = jobs[0].submit_s
    times_s = np.asarray([job.submit_s - start_s for job in jobs])
    per_hour, hours, days, dispersion = _arrival_law(times_s)
    run_times, class_of = _run_times(jobs)
    counts = Counter((j.queue, j.user, j.name, j.priority, j.ask, class_of[_class(j)]) for j in jobs)
    return Generator(
        trace.name,
        per_hour,
        hours,
        days,
        dispersion,
        tuple(JobKind(*key) for key in counts),  # in the order in which they came first
        tuple(float(count) for count in counts.values()),
        run_times,
    )


def _arrival_law(times_s: Floats) -> tuple[float, tuple[float, ...], tuple[float, ...], float]:
    """(jobs an hour, factors by hour, factors by day, dispersion of hourly counts)."""
    span_h = max(float(times_s[-1]) / HOUR_S, 1e-9)
    per_hour = len(times_s) / span_h
    counts = np.bincount((times_s // HOUR_S).astype(int)).astype(float)
    if len(counts) > 1:
        counts = counts[:-1]  # the last hour is not whole
    index = np.arange(len(counts))
    hours = _factors(counts, index % HOURS, HOURS) if len(counts) >= HOURS else np.ones(HOURS)
    by_day = counts / hours[index % HOURS].clip(1e-9) if len(counts) >= HOURS else counts
    whole_days = len(counts) >= DAYS * HOURS
    days = _factors(by_day, index // HOURS % DAYS, DAYS) if whole_days else np.ones(DAYS)
    expected = per_hour * hours[index % HOURS] * days[index // HOURS % DAYS]
    known = expected > 0
    dispersion = 1.0
    if known.sum() > 1:
        dispersion = float(((counts[known] - expected[known]) ** 2).sum() / expected[known].sum())
    return per_hour, tuple(hours.tolist()), tuple(days.tolist()), max(1.0, dispersion)


def _factors(counts: Floats, places: NDArray[np.int_], number: int) -> Floats:
    """The mean count at each place, over the mean of these."""
    means = np.bincount(places, counts, number) / np.bincount(places, minlength=number).clip(1)
    overall = float(means.mean())
    return np.asarray(means / overall, dtype=float) if overall > 0 else np.ones(number)


_Class = tuple[str, float]
"""(queue, GPUs)."""


def _class(job: TraceJob) -> _Class:
    return (job.queue, gpus_of(job))


def _run_times(jobs: Sequence[TraceJob]) -> tuple[tuple[tuple[float, ...], ...], dict[_Class, int]]:
    """(quantiles of each class, which of them a class of jobs uses)."""
    fine: dict[_Class, list[float]] = {}
    sized: dict[float, list[float]] = {}
    for job in jobs:
        fine.setdefault(_class(job), []).append(job.duration_s)
        sized.setdefault(gpus_of(job), []).append(job.duration_s)
    found: list[tuple[float, ...]] = [_quantiles([job.duration_s for job in jobs])]
    by_size: dict[float, int] = {}
    class_of: dict[_Class, int] = {}
    for key, values in fine.items():
        gpus = key[1]
        if len(values) >= LEAST_IN_CLASS:
            class_of[key] = len(found)
            found.append(_quantiles(values))
        elif len(sized[gpus]) >= LEAST_IN_CLASS:
            if gpus not in by_size:
                by_size[gpus] = len(found)
                found.append(_quantiles(sized[gpus]))
            class_of[key] = by_size[gpus]
        else:
            class_of[key] = 0
    return tuple(found), class_of


def _quantiles(values: Sequence[float]) -> tuple[float, ...]:
    """What a run time is drawn from, each as likely: all values of a small class; of a larger one the means of equal
    shares, so that a few very long jobs keep their part of the work."""
    ordered = np.sort(np.asarray(values, dtype=float))
    if len(ordered) <= QUANTILES:
        return tuple(ordered.tolist())
    sums = np.concatenate(([0.0], np.cumsum(ordered)))
    cuts = np.linspace(0.0, len(ordered), QUANTILES + 1)
    parts = np.diff(np.interp(cuts, np.arange(len(sums)), sums)) * (QUANTILES / len(ordered))
    return tuple(parts.tolist())
