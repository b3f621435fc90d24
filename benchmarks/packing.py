"""Two jobs on one GPU: blindly, by measured pairs, or never; by how fast 26 kinds of training were measured to go so.

    ratio_whole    average completion time with parts of GPUs by measured pairs, by turns and apart, over that of whole
                   GPUs by turns
    ratio_blind    the same over half a GPU for everybody, by turns and packed tightly

Each ratio is the worst of all loads. Jobs come by chance, of kinds drawn evenly; how long they take is drawn
log-normally (median 15 min); one of five asks for 2 or 4 whole GPUs. Nobody is told how long anything takes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.gandiva import quantile
from benchmarks.gandiva import turns as turns_of
from benchmarks.harness import arguments, report, say
from benchmarks.las import mean
from benchmarks.played.traces import data_folder, nodes
from rayorch.core.policy import BackfillKnobs, PackingKnobs, Profile
from rayorch.core.types import Resources
from rayorch.policies.default import DEFAULT
from rayorch.policies.place import apart
from rayorch.sim.generators import at_load
from rayorch.sim.models import Colocation, RestartCost, RestartModel, RuntimeModel, SimModels, Told
from rayorch.sim.models.colocation import WHOLE, packed, shares
from rayorch.sim.readers.gavel import read_throughputs
from rayorch.sim.trace.model import Ask, Trace, TraceJob
from rayorch.sim.trace.run import run

GPU_MODEL = "v100"
GAINS = 1.3
SLOWEST = 0.5
"""By measured pairs: both together do at least so much of what one alone does, and each is at least so fast."""
PER_NODE = 4
MEDIAN_S = 900.0
SPREAD = 1.2
LOADS = (1.0, 0.5, 1.5)
FJF: Profile = replace(DEFAULT, name="first fit", backfill=BackfillKnobs(hold=False))
TURNS: Profile = turns_of(600.0)
OURS = "turns, apart"
APART: Profile = replace(TURNS, name=OURS, score=apart.score, device=apart.device)
FIRST_APART: Profile = replace(FJF, name="first fit, apart", score=apart.score, device=apart.device)
UNPACK = PackingKnobs(unpack=True)
PROFILES = (
    TURNS,
    APART,
    replace(APART, name=f"{OURS}, unpacked", packing=UNPACK),
    DEFAULT,
    FJF,
    FIRST_APART,
    replace(FIRST_APART, name="first fit, apart, unpacked", packing=UNPACK),
)
"""Apart: two jobs on one GPU only where none is free. Unpacked: and taken apart when they hinder each other."""


@dataclass(frozen=True, slots=True)
class Result:
    """Of one run: average completion time, average wait and 95 % quantile of it, until when it took [s]."""

    jct_s: float
    wait_s: float
    wait_p95_s: float
    makespan_s: float


def measured() -> Colocation:
    """The published table."""
    table = read_throughputs(data_folder() / "gavel" / "simulation_throughputs.json.gz")
    return Colocation.measured(table.alone[GPU_MODEL], table.packed[GPU_MODEL])


def made(kinds: tuple[str, ...], count: int, seed: int) -> Trace:
    """So many jobs; at load 1 or any other only after `at_load`."""
    rng = np.random.default_rng(seed)
    asks = {gpus: Ask(1, Resources.of({"GPU": gpus})) for gpus in (1, 2, 4)}
    at_s = np.cumsum(rng.exponential(60.0, count))
    took_s = rng.lognormal(np.log(MEDIAN_S), SPREAD, count)
    gpus = rng.choice((1, 2, 4), count, p=(0.8, 0.1, 0.1))
    names = rng.choice(len(kinds), count)
    jobs = (
        TraceJob(f"j{n:05}", float(at_s[n]), float(took_s[n]), asks[int(gpus[n])], name=kinds[names[n]])
        for n in range(count)
    )
    return Trace(f"kinds-{seed}", tuple(jobs))


def play(profile: Profile, trace: Trace, parts: Mapping[str, float], how: str, node_count: int, load: float) -> Result:
    """One profile on the trace at a load, with these parts of GPUs."""
    models = SimModels(
        runtime=RuntimeModel(told=Told.NOTHING),
        restart=RestartModel(default=RestartCost(30.0)),
        colocation=measured(),
    )
    offered = packed(at_load(trace, node_count * PER_NODE, load), parts)
    exact = tuple(replace(node, exact=True) for node in nodes(node_count, PER_NODE))
    records = run(offered, exact, profile, models=models).records
    waits = sorted(record.wait_s for record in records if record.wait_s is not None)
    ends = [record.ended_s - record.submit_s for record in records if record.ended_s is not None]
    found = Result(mean(ends), mean(waits), quantile(waits, 0.95), max(r.ended_s or 0.0 for r in records))
    say(
        f"| {load:g} | {profile.name} | {how} | {found.jct_s:,.0f} | {found.wait_s:,.0f} | {found.wait_p95_s:,.0f} | "
        f"{found.makespan_s:,.0f} | {sum(r.preemptions for r in records) / len(records):.2f} |"
    )
    return found


def main() -> int:
    """Run it; see the module's docstring."""
    args = arguments(
        "packing",
        {"jobs": 200, "loads": 2},
        {"jobs": 600, "nodes": 4, "loads": 3, "seed": 0},
    )
    colocation = measured()
    parts = shares(colocation, GAINS, SLOWEST)
    whole, blind = dict.fromkeys(parts, WHOLE), dict.fromkeys(parts, 0.5)
    for part in sorted(set(parts.values())):
        say(f"{part:g} of a GPU: {', '.join(kind for kind in parts if parts[kind] == part)}")
    trace = made(colocation.kinds, args.jobs, args.seed)
    say("| load | profile | GPUs | JCT [s] | wait [s] | its 95 % | until [s] | stops a job |")
    say("|---|---|---|---|---|---|---|---|")
    figures = {"ratio_whole": 0.0, "ratio_blind": 0.0}
    for load in LOADS[: args.loads]:
        results: dict[str, dict[str, Result]] = {}
        for profile in PROFILES:
            by_how = {
                how: play(profile, trace, asked, how, args.nodes, load)
                for how, asked in (("whole", whole), ("halves", blind), ("by pairs", parts))
            }
            results[profile.name] = by_how
        ours, base = results[OURS]["by pairs"].jct_s, results[TURNS.name]
        figures["ratio_whole"] = max(figures["ratio_whole"], ours / base["whole"].jct_s)
        figures["ratio_blind"] = max(figures["ratio_blind"], ours / base["halves"].jct_s)
    return report("packing", figures, args.check)


if __name__ == "__main__":
    sys.exit(main())
