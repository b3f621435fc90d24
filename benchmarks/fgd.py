"""Placement on the openb lists: ours beside FGD and best fit, in the protocol of FGD's paper, through the engine.

    spec33_gain_100          points by which ours allocates more GPUs than FGD on gpuspec33 when 100 % have arrived
    worst_gap_130            ours less FGD on the list where that is least, at 130 %
    default_alloc_100        allocated GPUs [%] on the default list, at 100 %
    default_alloc_moves      the same with moves of at most 2 % of the pods (`benchmarks/played/openb_moves.py`)
    unallocated_vs_bestfit   what ours leaves unallocated there, as a part of what best fit leaves
    placements_per_cpu_s     pods a second of planning, in turns of up to 64 pods
    p99_ms                   a pod of a kind that came before, alone in its turn: the turn's planning, 99th percentile
    p50_ms_10k, cold_ms_10k  the same at 10,000 nodes of 8 GPUs: median, and the 99th percentile of pods of a new kind

The data is looked for in $RAYORCH_DATA, else in ../shared/data (docs/data.md says where it is published). What is
played is in `benchmarks/played/openb.py`; `--processes` plays several runs at once, and `--keep FILE` writes each run
that is done to a file and does not play again what is in it.

`--moves 1` plays only the default list with moves, ours and FGD's placement with either moves policy, run by run.
`--departures 40` plays instead, on so many GPUs, the first `--first` pods of each list that has them by their own times
of coming and going (`benchmarks/played/openb_times.py`), and prints a table of who waited and what was free meanwhile.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType

from benchmarks.harness import arguments, percentile, report, say
from benchmarks.played.kept import Kept, Run
from benchmarks.played.openb import LISTS, Fill, Scene, filled, large, played, profile_of, read_pods
from benchmarks.played.openb_moves import Moved, moved
from benchmarks.played.openb_times import Waits, timed
from rayorch.core.policy import Profile
from rayorch.policies.moves import greedy_gradient, sampled_search
from rayorch.policies.place import fgd, fragmentation, weighted_best_fit

FIRST_SEED = 42
POLICIES: Mapping[str, ModuleType] = {"fgd": fgd, "ours": fragmentation, "best fit": weighted_best_fit}
MOVES: Mapping[str, ModuleType] = {"greedy": greedy_gradient, "sampled": sampled_search}


def play(run: Run) -> tuple[Run, dict[int, float]]:
    """One run."""
    name, policy, seed = run
    return run, played(name, POLICIES[policy], seed)


def allocations(seeds: int, processes: int, kept: Kept) -> dict[tuple[str, str, int], float]:
    """(list, policy, load) -> the mean over the seeds. All lists are played with a seed before the next one is."""
    numbers = range(FIRST_SEED, FIRST_SEED + seeds)
    first = ("default", "gpuspec33")
    names = (*first, *(name for name in LISTS if name not in first))
    runs = [(name, policy, seed) for seed in numbers for name in names for policy in POLICIES]
    runs = [run for run in runs if run[1] != "best fit" or run[0] == "default"]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for run, loads in pool.map(play, [run for run in runs if run not in kept.done]):
            kept.put(run, loads)
            say(f"{run[0]:>12}, seed {run[2]}: {run[1]} " + ", ".join(f"{loads[x]:.2f} at {x} %" for x in loads))
    found: dict[tuple[str, str, int], list[float]] = {}
    for name, policy, seed in runs:
        for load, share in kept.done[name, policy, seed].items():
            found.setdefault((name, policy, load), []).append(share)
    means = {key: sum(shares) / len(shares) for key, shares in found.items()}
    for name, policy in dict.fromkeys(run[:2] for run in runs):
        say(f"{name:>12}: {policy} {means[name, policy, 100]:.2f} at 100 %, {means[name, policy, 130]:.2f} at 130 %")
    return means


def play_moves(run: Run) -> tuple[Run, Moved]:
    """One run of the default list with moves: (moves policy, placement policy, seed)."""
    moves, policy, seed = run
    return run, moved("default", POLICIES[policy], MOVES[moves], seed)


def with_moves(runs: list[Run], processes: int) -> dict[str, float]:
    """The figure of ours with greedy moves, where it is among the runs; all are printed."""
    shares: list[float] = []
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for (moves, policy, seed), found in pool.map(play_moves, runs):
            loads = ", ".join(f"{share:.2f} at {load} %" for load, share in found.shares.items())
            say(f"default, seed {seed}: {policy} with {moves} moves: {loads}; {found.moves} moves, {found.pods} pods")
            say(f"    no number of moves could reach more than {found.ceiling[100]:.2f} at 100 % (`openb_ceiling.py`)")
            if (moves, policy) == ("greedy", "ours"):
                shares.append(found.shares[100])
    return {"default_alloc_moves": sum(shares) / len(shares)} if shares else {}


TIMED = tuple(name for name in LISTS if not name.startswith("multigpu"))
"""Those lists that say when each pod came and went."""
VARIANTS = (*((label, False) for label in POLICIES), ("ours", True))


def play_timed(run: tuple[str, str, bool, int, int, int]) -> Waits:
    """One run of a list by its own times."""
    name, policy, learned, seed, gpus, first = run
    return timed(name, POLICIES[policy], seed, gpus, first, learned)


def departures(gpus: int, first: int, seeds: int, processes: int) -> int:
    """A table of the lists by their own times; "learned": classes as a live queue owner learns them."""
    numbers = range(FIRST_SEED, FIRST_SEED + seeds)
    runs = [(name, *variant, seed, gpus, first) for name in TIMED for seed in numbers for variant in VARIANTS]
    say("| list | seed | policy | waited | mean wait [s] | waiting [GPU-h] | free meanwhile [%] |")
    say("|---|---|---|---|---|---|---|")
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for (name, policy, learned, seed, *_), found in zip(runs, pool.map(play_timed, runs), strict=True):
            label = f"{policy}, learned" if learned else policy
            row = (found.waited, f"{found.mean_wait_s:,.0f}", f"{found.waiting_gpu_h:,.0f}", f"{found.unallocated:.2f}")
            say(f"| {name} | {seed} | {label} | {' | '.join(map(str, row))} |")
    return 0


def speed(pods: int) -> dict[str, float]:
    """How fast single pods and turns of many are planned, on the default list with ours."""
    scene = Scene.of(read_pods("default"), FIRST_SEED)
    profile = profile_of(fragmentation, scene, FIRST_SEED)
    fill, used = filled(Scene(scene.nodes, scene.pods[:pods], scene.classes, scene.capacity), profile)
    whole_s, planning_s = sum(fill.turns_s) / len(used), sum(fill.plans_s) / len(used)
    say(f"a pod in turns of 64: {whole_s * 1e6:.0f} µs with submission and commit, {planning_s * 1e6:.0f} of planning")
    warm, _ = alone(scene, profile, pods)
    return {
        "placements_per_cpu_s": len(used) / sum(fill.plans_s),
        "p99_ms": percentile(warm, 0.99) * 1000,
    }


def alone(scene: Scene, profile: Profile, pods: int) -> tuple[list[float], list[float]]:
    """(planning of pods of a kind that came before, of pods of a new kind) [s], each pod in a turn of its own.

    Without the first turn, in which the planner sees the nodes for the first time (`cycle`: first_s_10k_nodes).
    """
    fill = Fill(scene, profile)
    seen, warm, cold = set(), list[float](), list[float]()
    for number, pod in enumerate(scene.pods[:pods]):
        fill.arrive(number, (pod,))
        kind = (pod.bundle, pod.models)
        (warm if kind in seen else cold).append(fill.plans_s[-1])
        seen.add(kind)
    say(f"first turn: {cold[0] * 1000:.0f} ms")
    return warm, cold[1:]


def speed_10k(pods: int) -> dict[str, float]:
    """The same at 10,000 nodes."""
    scene = large(read_pods("default"), FIRST_SEED, 10_000)
    warm, cold = alone(scene, profile_of(fragmentation, scene, FIRST_SEED), pods)
    say(f"10,000 nodes: {len(warm)} pods of known kinds, 99th percentile {percentile(warm, 0.99) * 1000:.1f} ms")
    return {"p50_ms_10k": percentile(warm, 0.5) * 1000, "cold_ms_10k": percentile(cold, 0.99) * 1000}


def main() -> int:
    """Play all of it."""
    more = {"seeds": 10, "pods": 12_000, "processes": 2, "departures": 0, "moves": 0, "first": 2_000}
    words = argparse.ArgumentParser(add_help=False)
    words.add_argument("--keep", type=Path, help="where runs that are done are kept")
    if "--help" in sys.argv or "-h" in sys.argv:
        say(words.format_help())
    kept, others = words.parse_known_args()
    given = arguments("fgd", {"seeds": 3, "pods": 4_000}, more, others)
    if given.departures:
        return departures(given.departures, given.first, given.seeds, given.processes)
    seeds = range(FIRST_SEED, FIRST_SEED + given.seeds)
    if given.moves:
        runs = [(moves, policy, seed) for seed in seeds for policy in ("ours", "fgd") for moves in MOVES]
        return report("fgd", with_moves(runs, given.processes), given.check)
    figures = {**speed(given.pods), **speed_10k(min(given.pods, 4_000))}
    found = allocations(given.seeds, given.processes, Kept(kept.keep))
    gaps = {name: found[name, "ours", 130] - found[name, "fgd", 130] for name in LISTS}
    left = {policy: 100 - found["default", policy, 100] for policy in POLICIES}
    figures["spec33_gain_100"] = found["gpuspec33", "ours", 100] - found["gpuspec33", "fgd", 100]
    figures["worst_gap_130"] = min(gaps.values())
    figures["default_alloc_100"] = found["default", "ours", 100]
    figures.update(with_moves([("greedy", "ours", seed) for seed in seeds], given.processes))
    figures["unallocated_vs_bestfit"] = left["ours"] / left["best fit"]
    return report("fgd", figures, given.check)


if __name__ == "__main__":
    sys.exit(main())
