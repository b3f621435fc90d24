"""Turns in slices of time on Philly, beside first come first served, first fit and least attained service.

    wait_ratio     average wait for the first start by turns, over the default's
    ratio_default  average completion time by turns over the default's
    stops_a_job    stops of one job by turns

Each is the worst of all loads and slices of the trace (`benchmarks.las` says how these are played: virtual clusters as
queues, nobody is told how long anything takes, 60 s for every start after a stop).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.harness import arguments, report, say
from benchmarks.las import FIFO, FJF, GPUS_PER_NODE, MODELS, SLICES, learned, mean, whole_trace
from benchmarks.played.traces import nodes, shares, slice_of
from rayorch.core.eviction import EvictionKnobs
from rayorch.core.ordering import OrderKnobs
from rayorch.core.policy import Profile
from rayorch.policies.default import DEFAULT
from rayorch.policies.order import gandiva
from rayorch.sim.generators import at_load
from rayorch.sim.trace.model import Trace
from rayorch.sim.trace.run import run

LOADS = (1.0, 0.8, 1.3)


def turns(slice_s: float) -> Profile:
    """Turns of so long."""
    return replace(
        DEFAULT,
        name=f"turns of {slice_s / 60:.0f} min",
        order=gandiva.key,
        ordering=OrderKnobs(slice_s=slice_s),
        eviction=EvictionKnobs(by_order=True),
    )


OURS = turns(1800.0)
DEFAULTS = replace(DEFAULT, name="default")
OTHERS = (FIFO, FJF, turns(600.0), turns(3600.0))


@dataclass(frozen=True, slots=True)
class Result:
    """Of one run: completion times and waits for the first start [s], stops of one job, lost part of the GPU-time."""

    jct_s: float
    wait_s: float
    wait_p95_s: float
    stops: float
    lost: float


def play(profile: Profile, whole: Trace, first: int, count: int, load: float, node_count: int) -> Result:
    """One profile on one slice at one load."""
    trace = slice_of(whole, first, count)
    queues = shares(trace, node_count * GPUS_PER_NODE)
    offered = at_load(trace, node_count * GPUS_PER_NODE, load)
    made = run(offered, nodes(node_count, GPUS_PER_NODE), profile, queues=queues, models=MODELS)
    records = made.records
    waits = sorted(record.wait_s for record in records if record.wait_s is not None)
    held = sum((r.to_s - r.from_s) * r.gpus for record in records for r in record.runs)
    found = Result(
        mean([record.ended_s - record.submit_s for record in records if record.ended_s is not None]),
        mean(waits),
        quantile(waits, 0.95),
        sum(record.preemptions for record in records) / len(records),
        sum(record.lost_gpu_s for record in records) / held,
    )
    say(
        f"| {first}+{count} | {load:g} | {profile.name} | {found.jct_s:,.0f} | {found.wait_s:,.0f} | "
        f"{found.wait_p95_s:,.0f} | {found.stops:.2f} | {100 * found.lost:.2f} % |"
    )
    return found


def quantile(rising: Sequence[float], part: float) -> float:
    """The value that so large a part lies at or below."""
    return rising[min(len(rising) - 1, int(part * len(rising)))]


def main() -> int:
    """Run it; see the module's docstring."""
    args = arguments(
        "gandiva", {"slices": 1, "loads": 1, "others": 0}, {"slices": 2, "nodes": 16, "loads": 3, "others": 1}
    )
    figures = {"wait_ratio": 0.0, "ratio_default": 0.0, "stops_a_job": 0.0}
    whole = whole_trace()
    say("| jobs | load | profile | JCT [s] | first wait [s] | its 95 % | stops a job | lost |")
    say("|---|---|---|---|---|---|---|---|")
    for first, count in SLICES[: args.slices]:
        las = learned(whole, first)
        for load in LOADS[: args.loads]:
            there = (whole, first, count, load, args.nodes)
            base, ours = play(DEFAULTS, *there), play(OURS, *there)
            for profile in (*OTHERS, las) if args.others else ():
                play(profile, *there)
            figures["wait_ratio"] = max(figures["wait_ratio"], (ours.wait_s + 1) / (base.wait_s + 1))
            figures["ratio_default"] = max(figures["ratio_default"], ours.jct_s / base.jct_s)
            figures["stops_a_job"] = max(figures["stops_a_job"], ours.stops)
    return report("gandiva", figures, args.check)


if __name__ == "__main__":
    sys.exit(main())
