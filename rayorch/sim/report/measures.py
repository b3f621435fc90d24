"""The figures of a run: what each means, in which unit, and which direction is the better one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

Figures = Mapping[str, float | None]
"""By key of a measure; None: there is no such figure of that run (nothing ended, nothing was preempted …)."""


class Unit(StrEnum):
    """How a figure is shown."""

    SECONDS = "s"
    SHARE = "share"  # 0 to 1, shown in per cent
    COUNT = "count"
    RATIO = "ratio"
    GPU_HOURS = "GPU-h"
    NODE_HOURS = "node-h"
    RATE = "1/s"


class Better(StrEnum):
    """Which direction is the better one."""

    LESS = "less"
    MORE = "more"
    NEITHER = ""


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure. `label`: a heading. `meaning`: its formula in words."""

    key: str
    label: str
    unit: Unit
    better: Better
    meaning: str


def _of_times(key: str, label: str, what: str) -> tuple[Measure, ...]:
    """The mean and three percentiles of a length of time."""
    ways = (("avg", "mean"), ("p50", "median"), ("p95", "95th percentile"), ("p99", "99th percentile"))
    return tuple(Measure(f"{key}_{w}_s", f"{label} {w}", Unit.SECONDS, Better.LESS, f"{n} of {what}") for w, n in ways)


MEASURES: tuple[Measure, ...] = (
    Measure("jobs", "jobs", Unit.COUNT, Better.NEITHER, "jobs that were played"),
    Measure("finished", "finished", Unit.COUNT, Better.MORE, "jobs whose work was done within the simulated time"),
    Measure("unfinished", "unfinished", Unit.COUNT, Better.LESS, "jobs that had started and not ended by then"),
    Measure("never_started", "never started", Unit.COUNT, Better.LESS, "jobs that had not started by then"),
    Measure("too_large", "too large", Unit.COUNT, Better.NEITHER, "jobs that the empty cluster can't hold; not played"),
    Measure("refused", "refused", Unit.COUNT, Better.LESS, "jobs that were refused at the door and never waited"),
    Measure(
        "failed",
        "failed",
        Unit.COUNT,
        Better.NEITHER,
        "jobs that ran and ended as failed or cancelled, as the trace says; in no JCT",
    ),
    *_of_times("jct", "JCT", "end − submission, of jobs that finished"),
    *_of_times("wait", "wait", "first start − submission, of jobs that started"),
    Measure("slowdown_avg", "slowdown", Unit.RATIO, Better.LESS, "mean of JCT / duration, durations of at least 1 s"),
    Measure(
        "bounded_slowdown_avg",
        "bounded slowdown",
        Unit.RATIO,
        Better.LESS,
        "mean of max(1, JCT / max(duration, 10 s)) (Feitelson 1997)",
    ),
    Measure("makespan_s", "makespan", Unit.SECONDS, Better.LESS, "last end − first submission"),
    Measure(
        "utilisation", "utilisation", Unit.SHARE, Better.MORE, "allocated GPU-seconds / capacity, over the makespan"
    ),
    Measure(
        "utilisation_arriving",
        "utilisation while jobs come",
        Unit.SHARE,
        Better.MORE,
        "the same from the first submission to the last, without the tail of the longest jobs",
    ),
    Measure(
        "idle_while_waiting",
        "idle while waiting",
        Unit.SHARE,
        Better.LESS,
        "min(free GPUs, GPUs asked for by what waits) / capacity, over the makespan",
    ),
    Measure(
        "fragmentation",
        "fragmentation",
        Unit.SHARE,
        Better.LESS,
        "free GPUs that one member of a job drawn from the trace can't use there / capacity, over the makespan",
    ),
    Measure("goodput", "goodput", Unit.SHARE, Better.MORE, "(allocated − lost GPU-seconds) / allocated"),
    Measure("lost_gpu_h", "lost", Unit.GPU_HOURS, Better.LESS, "work done again and starts over, in GPU-hours"),
    Measure("preemptions", "preemptions", Unit.COUNT, Better.LESS, "how often the planner stopped a job"),
    Measure("preempted_jobs", "preempted jobs", Unit.COUNT, Better.LESS, "jobs that were stopped at least once"),
    Measure("moves", "moves", Unit.COUNT, Better.LESS, "how often a job was stopped to get other seats"),
    Measure(
        "freed_per_move",
        "freed per move",
        Unit.RATIO,
        Better.MORE,
        "GPUs by which less was stranded by moves, as they were planned / moves",
    ),
    Measure(
        "attainment",
        "attainment",
        Unit.SHARE,
        Better.MORE,
        "requests that the replicas of applications could take at once / requests that there were, over the makespan",
    ),
    Measure("serving_gpu_h", "serving", Unit.GPU_HOURS, Better.NEITHER, "GPU-hours that applications held"),
    Measure("node_h", "node-hours", Unit.NODE_HOURS, Better.LESS, "hours of nodes that were there, over the makespan"),
    Measure("nodes_added", "nodes added", Unit.COUNT, Better.NEITHER, "nodes that were ordered and came"),
    Measure(
        "resizes", "resizes", Unit.COUNT, Better.LESS, "how often the seats of elastic jobs changed while they ran"
    ),
    Measure(
        "elastic_size",
        "elastic size",
        Unit.RATIO,
        Better.NEITHER,
        "GPUs that elastic jobs held / GPUs that they asked for, over the time in which they held any",
    ),
    Measure(
        "rho_worst",
        "worst rho",
        Unit.RATIO,
        Better.LESS,
        "largest finish-time fairness JCT / (duration × max(1, GPUs × N / capacity)), N the mean number of jobs that"
        " wait or run during its life (Mahajan 2020)",
    ),
    Measure("rho_p99", "rho p99", Unit.RATIO, Better.LESS, "99th percentile of the same"),
    Measure("unfair_share", "unfair", Unit.SHARE, Better.LESS, "jobs with a rho above 1 / finished jobs"),
    Measure(
        "jain_queues",
        "Jain, queues",
        Unit.RATIO,
        Better.MORE,
        "(Σx)² / (n Σx²) over queues, x what a queue held of what it was entitled to and asked for (Jain 1984)",
    ),
    Measure("jain_jobs", "Jain, jobs", Unit.RATIO, Better.MORE, "the same over finished jobs, x = rho"),
    Measure("events", "events", Unit.COUNT, Better.NEITHER, "submissions, starts and ends that were played"),
    Measure("turns", "turns", Unit.COUNT, Better.NEITHER, "calls of the planner"),
    Measure("cpu_s", "CPU", Unit.SECONDS, Better.LESS, "CPU time of the run"),
    Measure("events_per_cpu_s", "events/CPU-s", Unit.RATE, Better.MORE, "events / CPU time"),
)
"""Every figure of a run, in the order of the report."""

BY_KEY: Mapping[str, Measure] = {measure.key: measure for measure in MEASURES}

HEADLINES = (
    "jct_avg_s",
    "jct_p50_s",
    "jct_p99_s",
    "wait_avg_s",
    "wait_p99_s",
    "makespan_s",
    "utilisation",
    "goodput",
    "preemptions",
    "rho_worst",
    "jain_queues",
)
"""Those that the table for people shows where nothing else is asked for."""
