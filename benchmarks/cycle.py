"""One turn of the planner over a crowded cluster: how long it takes, how many gangs it starts, what it needs.

    p99_ms_1k_nodes       10,000 gangs wait on 1,000 nodes of 8 GPUs, 1 % of all gangs change between two turns
    s_10k_nodes           100,000 gangs wait on 10,000 nodes, the worst turn
    gangs_per_s           admissions a second of planning at 1,000 nodes where a tenth of what runs ends in each turn
    singles_per_s         the same with work of one GPU each
    preempt_ms_10k_nodes  the worst of several searches for victims, each for another urgent gang, at 10,000 nodes
    peak_mib              the most memory that the process had, at the largest size

    preempt_gap_ok        the share of seeded small cases in which victims cost at most 1.1 of an exhaustive search's
    first_s_10k_nodes     the first turn there, which has to look at everything

CPU time of the planning thread, which is the time on the clock where a core is free: it computes in one thread and
waits for nothing. Garbage is looked for as seldom as in the live controller (`actors/collecting.py`). The first turn,
which has to look at everything, is printed beside the rest. What is played is in
`benchmarks/played/crowd.py`; `--profile 1` prints where the time of the steady turns goes. `--table 1` prints in place
of all that how a turn grows with nodes, with what waits and with queues, row by row as it stands in docs/speed.md.
"""

from __future__ import annotations

import cProfile
import gc
import pstats
import resource
import sys
import time
from dataclasses import dataclass, field

from benchmarks.exhaustive import preempt_gap_ok
from benchmarks.harness import arguments, percentile, report, say
from benchmarks.played.crowd import MIX, SINGLES, Crowd, Mix
from rayorch.actors.collecting import collect_seldom
from rayorch.core.decisions import Plan, Stop
from rayorch.core.planner import plan
from rayorch.core.planning.claims import gang_of, start_claim
from rayorch.core.planning.draft import Draft
from rayorch.core.planning.evict import evict
from rayorch.core.planning.heal import protect
from rayorch.core.planning.memory import Memory
from rayorch.core.types import StopCause
from rayorch.policies.default import DEFAULT

CHANGED = 0.01
LARGE_TREE = (5, 5, 5)
"""Organisations, teams in each and projects in each of these, at the large size; at the small one it is three each."""


GROWTH = (
    (250, 2_500, (3, 3, 3)),
    (1_000, 10_000, (3, 3, 3)),
    (4_000, 40_000, (3, 3, 3)),
    (10_000, 100_000, LARGE_TREE),
    (1_000, 1_000, (3, 3, 3)),
    (1_000, 40_000, (3, 3, 3)),
    (1_000, 10_000, (1, 1, 27)),
    (1_000, 10_000, (5, 5, 5)),
    (1_000, 10_000, (10, 10, 10)),
)
"""(nodes, waiting, tree of queues) of the rows of the table."""


@dataclass
class Played:
    """What a number of turns took [s of CPU] and did; the first one apart."""

    first_s: float
    took_s: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)
    used: list[float] = field(default_factory=list)


class Planner:
    """The planner with what it remembers from turn to turn."""

    def __init__(self) -> None:
        self._memory = Memory()

    def turn(self, crowd: Crowd) -> tuple[Plan, float]:
        """The plan of the crowd's moment and the CPU time that it took [s]."""
        snapshot = crowd.snapshot()
        gc.collect()
        began = time.thread_time()
        made = plan(snapshot, DEFAULT, self._memory)
        return made, time.thread_time() - began


def play(crowd: Crowd, turns: int, ends: int, profiler: cProfile.Profile | None = None) -> Played:
    """Turn after turn: `ends` gangs end, and new ones come, so that as many wait as before."""
    planner = Planner()
    waiting = crowd.waiting
    made, first_s = planner.turn(crowd)
    played = Played(first_s)
    crowd.carry_out(made)
    for _ in range(turns):
        crowd.end(ends)
        crowd.submit(waiting - crowd.waiting)
        if profiler is not None:
            profiler.enable()
        made, took_s = planner.turn(crowd)
        if profiler is not None:
            profiler.disable()
        played.took_s.append(took_s)
        played.used.append(crowd.used)
        played.stops.append(sum(isinstance(d, Stop) for d in made.decisions))
        played.starts.append(crowd.carry_out(made))
    return played


def say_played(name: str, played: Played) -> None:
    """One line on what was played."""
    took = sorted(played.took_s)
    say(
        f"{name}: first turn {played.first_s:.3f} s, then median {took[len(took) // 2] * 1000:.1f} ms, worst"
        f" {took[-1] * 1000:.1f} ms; {min(played.starts)} to {max(played.starts)} starts and at most"
        f" {max(played.stops)} stops a turn, {min(played.used):.1%} used at least"
    )


def table(turns: int) -> None:
    """One row for each size: the first turn, the median of the others, and how many start in one of these."""
    for nodes, pending, leaves in GROWTH:
        crowd = Crowd.of(nodes, pending, leaves)
        played = play(crowd, turns, int(len(crowd.workloads) * CHANGED / 3))
        took, starts = percentile(played.took_s, 0.5) * 1000, percentile(played.starts, 0.5)
        queues = f"{len(crowd.queues)} ({' x '.join(map(str, leaves))})"
        row = (f"{nodes:,}", f"{pending:,}", queues, f"{played.first_s * 1000:,.0f}", f"{took:,.0f}", f"{starts:.0f}")
        print(f"| {' | '.join(row)} |", flush=True)


def rate(mix: Mix, nodes: int, turns: int) -> float:
    """Starts a second of planning, where a tenth of what runs ends in each turn and as much waits as before."""
    crowd = Crowd.of(nodes, 10 * nodes, mix=mix)
    played = play(crowd, turns, len(crowd.held) // 10)
    say_played(f"a tenth ends in each turn, {'gangs' if mix is MIX else 'single GPUs'}", played)
    return sum(played.starts) / sum(played.took_s)


def preemptions(crowd: Crowd, searches: int) -> list[float]:
    """How long each search for victims of another urgent gang takes [s of CPU], none of which is carried out."""
    memory, took = Memory(), []
    for number in range(searches):
        members, gpus, level = MIX[3 + number % (len(MIX) - 3)][1:]
        workload = crowd.urgent(members, gpus, level)
        draft = Draft.of(crowd.snapshot(), DEFAULT, memory)
        protect(draft)
        claim = start_claim(workload, gang_of(workload.spec))
        draft.idle_search(), draft.soon_search()
        gc.collect()
        began = time.thread_time()
        found = evict(draft, claim, StopCause.PREEMPTED)
        took.append(time.thread_time() - began)
        say(f"{members} x {gpus:g} GPU {level}: {'found' if found else 'nobody'} after {took[-1] * 1000:.0f} ms")
        draft.release()
        crowd.withdraw(workload)
    return took


def main() -> int:
    """Run and report."""
    quick = {"turns": 5, "large_turns": 2, "nodes": 200, "pending": 2_000, "large": 1_000, "rounds": 3, "cases": 20}
    usual = {"turns": 100, "large_turns": 8, "nodes": 1000, "pending": 10_000, "large": 10_000, "rounds": 12}
    given = arguments("cycle", {**quick, "profile": 0}, {**usual, "cases": 200, "profile": 0, "table": 0})
    collect_seldom()
    if given.table:
        table(given.turns)
        return 0
    profiler = cProfile.Profile() if given.profile else None
    crowd = Crowd.of(given.nodes, given.pending)
    total = len(crowd.workloads)
    small = play(crowd, given.turns, int(total * CHANGED / 3), profiler)
    say_played(f"{given.pending} wait on {given.nodes} nodes", small)
    if profiler is not None:
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(45)
        return 0
    figures = {"p99_ms_1k_nodes": percentile(small.took_s, 0.99) * 1000}
    figures["gangs_per_s"] = rate(MIX, given.nodes, given.rounds)
    figures["singles_per_s"] = rate(SINGLES, given.nodes, given.rounds)
    crowd = Crowd.of(given.large, 10 * given.large, LARGE_TREE)
    total = len(crowd.workloads)
    large = play(crowd, given.large_turns, int(total * CHANGED / 3))
    say_played(f"{10 * given.large} wait on {given.large} nodes", large)
    figures["s_10k_nodes"] = max(large.took_s)
    figures["preempt_ms_10k_nodes"] = max(preemptions(crowd, len(MIX) - 3)) * 1000
    figures["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    figures["first_s_10k_nodes"] = large.first_s
    figures["preempt_gap_ok"] = preempt_gap_ok(given.cases)
    return report("cycle", figures, given.check)


if __name__ == "__main__":
    raise SystemExit(main())
