"""Least attained service on Philly: average completion times against first come first served and against first fit.

    ratio_fifo     2D-LAS with thresholds learned from history over FIFO (a blocked head blocks its queue), average JCT
    ratio_fjf      the same over Tiresias' fjf: first come, first served, and whoever fits goes ahead ("fit job first")
    big_gang_wait  how long gangs of 64 GPUs and more wait with backfill, over how long with a plain reservation

Each is the worst of all loads and slices. The thresholds are what a cluster would have learned from all jobs before
the slice. The 15 virtual clusters are queues whose shares are their parts of the
GPU-time; what one leaves idle others borrow, and give back. Nobody is told how long anything takes. Load is offered
GPU-seconds over capacity until the last job comes, reached by compressing arrivals. A start after a stop costs 60 s.
`--large 1`: one slice more, the last 2,000 jobs, with quotas by what each virtual cluster used in the whole trace.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.harness import arguments, report, say
from benchmarks.played.traces import data_folder, nodes, shares, slice_of
from rayorch.core.history import LongPast, Sample
from rayorch.core.log_histogram import quantiles
from rayorch.core.ordering import OrderKnobs
from rayorch.core.policy import BackfillKnobs, Profile
from rayorch.policies.default import DEFAULT
from rayorch.policies.order import fifo, las
from rayorch.sim.generators import at_load, gpus_of
from rayorch.sim.models import RestartCost, RestartModel, RuntimeModel, SimModels, Told
from rayorch.sim.readers import philly
from rayorch.sim.trace.model import Trace
from rayorch.sim.trace.outcome import JobRecord
from rayorch.sim.trace.run import run

GPUS_PER_NODE = 8
BIG_GPUS = 64
MODELS = SimModels(
    runtime=RuntimeModel(told=Told.NOTHING), restart=RestartModel(default=RestartCost(60.0, interval_s=1800.0))
)
LARGE = (80_247, 2_000)
SLICES = ((80_500, 800), (81_300, 947), (79_700, 800), (78_900, 800), (78_100, 800))
"""(first job, number) of the trace in order of time. Only the last days have gangs of 64 and more: nine in all."""

LAS: Profile = replace(DEFAULT, name="las", order=las.key, eviction=replace(DEFAULT.eviction, by_order=True))
FIFO: Profile = replace(DEFAULT, name="fifo", order=fifo.key, ordering=OrderKnobs(strict_fifo=True))
FJF: Profile = replace(DEFAULT, name="fjf", order=fifo.key, backfill=BackfillKnobs(hold=False))
RESERVED: Profile = replace(DEFAULT, name="reservation", backfill=BackfillKnobs(heads=0))
BACKFILLED: Profile = replace(DEFAULT, name="backfill")


@dataclass(frozen=True, slots=True)
class Result:
    """Of one run: average completion time and average wait of large gangs [s] (0: there were none), stops, CPU [s]."""

    jct_s: float
    big_wait_s: float
    preemptions: int
    cpu_s: float


def whole_trace() -> Trace:
    """All of Philly; a gang lies on as few nodes as there can be."""
    return philly.read(data_folder() / "philly" / "philly.csv.gz", GPUS_PER_NODE)


def learned(whole: Trace, first: int) -> Profile:
    """LAS with the thresholds that a live cluster would have learned from the jobs before the slice."""
    past = LongPast(0)
    for job in sorted(whole.jobs[:first], key=lambda job: job.submit_s + job.duration_s):
        sample = Sample(job.duration_s, job.duration_s * gpus_of(job))
        past = past.with_samples((sample,), job.submit_s + job.duration_s)
    limits = quantiles([past.gpu_s], las.LEARNED_QUANTILES)
    say(f"thresholds learned before job {first}: {', '.join(f'{limit:.0f}' for limit in limits)} GPU-seconds")
    return replace(LAS, ordering=OrderKnobs(las_thresholds_gpu_s=limits))


def play(profile: Profile, whole: Trace, first: int, count: int, load: float, node_count: int) -> Result:
    """One profile on one slice at one load."""
    trace = slice_of(whole, first, count)
    queues = shares(trace if (first, count) != LARGE else whole, node_count * GPUS_PER_NODE)
    offered = at_load(trace, node_count * GPUS_PER_NODE, load)
    made = run(offered, nodes(node_count, GPUS_PER_NODE), profile, queues=queues, models=MODELS)
    found = Result(
        mean([_jct_s(record) for record in made.records]),
        mean([_wait_s(record) for record in made.records if record.gpus >= BIG_GPUS]),
        sum(record.preemptions for record in made.records),
        made.cpu_s,
    )
    say(
        f"{profile.name:>12} load {load:g} slice {first}+{count}: JCT {found.jct_s:.0f} s, gangs of {BIG_GPUS} wait "
        f"{found.big_wait_s:.0f} s, {found.preemptions} stops, {made.turns} turns, {found.cpu_s:.0f} s of CPU"
    )
    return found


def _jct_s(record: JobRecord) -> float:
    assert record.ended_s is not None, f"{record.id} has not ended"
    return record.ended_s - record.submit_s


def _wait_s(record: JobRecord) -> float:
    assert record.started_s is not None, f"{record.id} has not started"
    return record.started_s - record.submit_s


def mean(values: Sequence[float]) -> float:
    """0 of none."""
    return sum(values) / len(values) if values else 0.0


def main() -> int:
    """Run it; see the module's docstring."""
    quick = {"slices": 1, "nodes": 16, "loads": 1}
    args = arguments("las", quick, {"slices": 2, "nodes": 16, "loads": 3, "large": 0})
    loads = (1.0, 0.8, 1.3)[: args.loads]
    figures = {"ratio_fifo": 0.0, "ratio_fjf": 0.0, "big_gang_wait": 0.0}
    whole = whole_trace()
    for first, count in (*SLICES[: args.slices], *((LARGE,) if args.large else ())):
        with_limits = learned(whole, first)
        for load in loads:
            there = (whole, first, count, load, args.nodes)
            ours = play(with_limits, *there)
            figures["ratio_fifo"] = max(figures["ratio_fifo"], ours.jct_s / play(FIFO, *there).jct_s)
            figures["ratio_fjf"] = max(figures["ratio_fjf"], ours.jct_s / play(FJF, *there).jct_s)
            reserved, backfilled = play(RESERVED, *there), play(BACKFILLED, *there)
            if reserved.big_wait_s > 0:
                figures["big_gang_wait"] = max(figures["big_gang_wait"], backfilled.big_wait_s / reserved.big_wait_s)
    return report("las", figures, args.check)


if __name__ == "__main__":
    sys.exit(main())
