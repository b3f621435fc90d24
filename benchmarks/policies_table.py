"""What each policy wins and loses: the same jobs under each profile, against the default, on slices of Philly.

    default_best   the default's average completion time over the best other profile's that is certainly better and not
                   worse for large gangs, the worst of all loads (above 1: another one wins)

A table for each load is printed to stderr: the geometric mean over the slices of each figure over the default's, with
its 95 % interval (Student's t on logarithms, slices as samples). Below 1 is better. `jct`: average completion time;
`slow`: average bounded slowdown (of at least a minute's work); `gang`: average wait of jobs of 8 GPUs and more;
`stops`: stopped runs per hundred jobs (not a ratio). The world is that of `benchmarks.las`. Jobs of more than
8 hours or 16 GPUs are left out, so that a short slice is not the story of its one longest job.
`--first N`: only the first N profiles: with 9, the default and those that differ from it in one setting.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.harness import arguments, report, say
from benchmarks.las import FIFO, FJF, GPUS_PER_NODE, LAS, MODELS, mean, whole_trace
from benchmarks.played.traces import nodes, shares, slice_of
from rayorch.core.eviction import EvictionKnobs
from rayorch.core.ordering import OrderKnobs
from rayorch.core.policy import BackfillKnobs, Profile
from rayorch.policies.default import DEFAULT
from rayorch.policies.order import finish_time, gittins, las, remaining, smallest
from rayorch.policies.place import spread
from rayorch.policies.presets import kai, kueue, slurm, volcano, yunikorn
from rayorch.policies.queue_order import drf, plain, share
from rayorch.sim.generators import at_load, gpus_of
from rayorch.sim.report import compare
from rayorch.sim.trace.model import Trace
from rayorch.sim.trace.run import run

LONGEST_S, LARGEST_GPUS = 8 * 3600.0, 16
BASE = "default"
LOADS = (1.0, 1.3, 0.8, 0.5)
STARTS = (12_000, 26_000, 36_000, 52_000, 62_000, 68_000, 72_000, 74_000)
"""Where the slices begin: eight parts of the trace that have nothing in common."""

PROFILES: Mapping[str, Profile] = {
    BASE: DEFAULT,
    "fifo, strict": FIFO,
    "first fit (no held nodes)": FJF,
    "no backfill": replace(DEFAULT, backfill=BackfillKnobs(heads=0)),
    "queues by drf": replace(DEFAULT, queue_order=drf.key),
    "queues by share": replace(DEFAULT, queue_order=share.key),
    "no queues": replace(DEFAULT, queue_order=plain.key),
    "spread": replace(DEFAULT, score=spread.score),
    "no consolidation": replace(DEFAULT, eviction=EvictionKnobs(consolidate=False)),
    "las": replace(DEFAULT, order=las.key),
    "rho guardrail over las": replace(DEFAULT, order=finish_time.las_key),
    "gittins": replace(DEFAULT, order=gittins.key),
    "remaining": replace(DEFAULT, order=remaining.key),
    "smallest": replace(DEFAULT, order=smallest.key),
    "kai": kai.PRESET,
    "kueue": kueue.PRESET,
    "slurm": slurm.PRESET,
    "volcano": volcano.PRESET,
    "yunikorn": yunikorn.PRESET,
}

BY_ORDER: Mapping[str, Profile] = {
    "las, by order": LAS,
    "las, by order, exempt 10 min": replace(LAS, eviction=EvictionKnobs(by_order=True, exempt_s=600.0)),
    "las with promotion, by order": replace(LAS, order=las.promoting_key, ordering=OrderKnobs(las_promote=2.0)),
}
"""With `--by-order 1`: each stops thousands of runs, and takes ten times as long as the others."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run: see the module's docstring."""

    jct_s: float
    slowdown: float
    gang_wait_s: float
    stops: float


def play(profile: Profile, trace: Trace, load: float, node_count: int) -> Figures:
    """One profile on one slice at one load."""
    gpus = node_count * GPUS_PER_NODE
    offered = at_load(trace, gpus, load)
    made = run(offered, nodes(node_count, GPUS_PER_NODE), profile, queues=shares(trace, gpus), models=MODELS)
    took = {job.id: job.duration_s for job in offered.jobs}
    jct: list[float] = []
    slow: list[float] = []
    waits: list[float] = []
    for record in made.records:
        assert record.ended_s is not None and record.started_s is not None, f"{record.id} has not ended"
        jct.append(record.ended_s - record.submit_s)
        slow.append(max(1.0, jct[-1] / max(60.0, took[record.id])))
        if record.gpus >= GPUS_PER_NODE:
            waits.append(record.started_s - record.submit_s)
    stops = 100.0 * sum(record.preemptions for record in made.records) / len(jct)
    return Figures(mean(jct), mean(slow), mean(waits), stops)


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """(geometric mean, lower, upper end of the 95 % interval)."""
    found = compare.interval([math.log(ratio) for ratio in ratios])
    assert found is not None, "there is a slice at least"
    low, high = (0.0, math.inf) if found.half is None else (math.exp(found.low), math.exp(found.high))
    return math.exp(found.mean), low, high


def _ratios(ours: Sequence[Figures], base: Sequence[Figures], name: str) -> tuple[float, float, float]:
    """Of a figure over the default's; a second is added to waits, so that none divides by nothing."""
    extra = 1.0 if name == "gang_wait_s" else 0.0
    return interval([(getattr(a, name) + extra) / (getattr(b, name) + extra) for a, b in zip(ours, base, strict=True)])


def table(load: float, found: Mapping[str, Sequence[Figures]]) -> float:
    """Print the table of one load; answers the default's average over the best that does large gangs no harm."""
    say(f"\n| load {load:g} | jct | slow | gang | stops |\n|---|---|---|---|---|")
    best = 1.0
    for name, figures in found.items():
        jct, slow, gang = (_ratios(figures, found[BASE], part) for part in ("jct_s", "slowdown", "gang_wait_s"))
        cells = " | ".join(f"{middle:.3f} ({low:.2f}-{high:.2f})" for middle, low, high in (jct, slow, gang))
        say(f"| {name} | {cells} | {mean([f.stops for f in figures]):.1f} |")
        if jct[2] < 1 and gang[0] <= 1.0:
            best = max(best, 1 / jct[0])
    return best


def main() -> int:
    """Run it; see the module's docstring."""
    args = arguments(
        "policies_table",
        {"seeds": 2, "jobs": 150},
        {"seeds": 5, "jobs": 300, "nodes": 4, "loads": 4, "by_order": 0, "first": 0},
    )
    whole = whole_trace()
    jobs = tuple(job for job in whole.jobs if job.duration_s <= LONGEST_S and gpus_of(job) <= LARGEST_GPUS)
    whole = replace(whole, jobs=jobs)
    slices = [slice_of(whole, first, args.jobs) for first in STARTS[: args.seeds]]
    worst = 1.0
    profiles = {**PROFILES, **BY_ORDER} if args.by_order else dict(PROFILES)
    for name in list(profiles)[args.first or len(profiles) :]:
        del profiles[name]
    for load in LOADS[: args.loads]:
        found: dict[str, list[Figures]] = {}
        for name, profile in profiles.items():
            found[name] = [play(profile, trace, load, args.nodes) for trace in slices]
        worst = max(worst, table(load, found))
    return report("policies_table", {"default_best": worst}, args.check)


if __name__ == "__main__":
    sys.exit(main())
