"""A scale decision in a large room, and what comes of it: no cluster, simulated time, the planner itself.

50 node groups in ten racks (three GPU models and CPU nodes; some of their replicas are several nodes), 2,000 nodes
nine tenths of which are busy, 500 waiting gangs of mixed sizes, models and topology. First one decision is timed: stage
8 alone, on a draft that stages 1 to 7 have just made. Then provisioning is played: nodes come after one to three
minutes, gangs run and end, idle nodes go, until every gang has run and every node is gone.

    decision_ms        stage 8 on the first snapshot, the median of the repeats; CPU time, which is the time on the
                       clock where a core is free: it computes in one thread and waits for nothing
    plan_ms            the whole plan beside it
    patches_per_change replica patches (one for each accepted GroupChange, growth, shrink or cancellation) / nodes that
                       came or went
    excess_nodes       nodes asked for beyond need: at each growth the same gangs are seated in the same order by plain
                       counting on explicit nodes, which adds what each lacks; what the plan asks for beyond that was
                       too much
    unjudged_gangs     gangs that plain counting could not complete; what was asked for them is not judged
    unused_nodes       nodes that came and were never used, because work ended and gangs ran there before they came
"""

from __future__ import annotations

import statistics
import time

from benchmarks.harness import arguments, report, say
from benchmarks.played.need import beyond_need
from benchmarks.played.room import PROFILE, Room
from rayorch.core.decisions import Scale, Start
from rayorch.core.planner import plan, seated
from rayorch.core.planning.scale import scale
from rayorch.core.snapshot import Snapshot
from rayorch.core.types import State

MOST_TURNS = 2_000


def decision_ms(snapshot: Snapshot, repeats: int) -> tuple[float, float]:
    """Stage 8 alone and the whole plan in CPU time, the medians of the repeats."""
    alone, whole = [], []
    for _ in range(repeats):
        draft = seated(snapshot, PROFILE)
        began = time.thread_time()
        scale(draft)
        alone.append((time.thread_time() - began) * 1000)
        began = time.thread_time()
        plan(snapshot, PROFILE)
        whole.append((time.thread_time() - began) * 1000)
    return statistics.median(alone), statistics.median(whole)


def play(room: Room) -> int:
    """Plan and carry out until everything has run and gone; answers the turns. RuntimeError when it does not end."""
    for turn in range(MOST_TURNS):
        snapshot = room.snapshot()
        made = plan(snapshot, PROFILE)
        excess, unjudged = beyond_need(room, snapshot, made)
        room.excess += excess
        room.unjudged += unjudged
        for decision in made.decisions:
            match decision:
                case Start():
                    room.start(decision)
                case Scale():
                    for change in decision.changes:
                        room.apply(change)
        if room.at_rest:
            return turn
        if turn % 20 == 0:
            waiting = sum(w.state is State.PENDING for w in room.workloads.values())
            say(f"{room.now_s:.0f} s: {waiting} wait, {len(room.ends)} run on {len(room.nodes)} nodes")
        room.pass_time()
    raise RuntimeError(f"{len(room.workloads)} gangs and {len(room.nodes)} nodes are left after {MOST_TURNS} turns")


def measure(groups: int, nodes: int, gangs: int, repeats: int) -> dict[str, float]:
    """The figures of one room."""
    room = Room.of(groups, nodes, gangs)
    alone_ms, whole_ms = decision_ms(room.snapshot(), repeats)
    say(f"a decision takes {alone_ms:.1f} ms, the whole plan {whole_ms:.1f} ms")
    turns = play(room)
    say(f"{turns} turns, {room.patches} patches for {room.changed} nodes that came or went")
    return {
        "decision_ms": alone_ms,
        "patches_per_change": room.patches / max(1, room.changed),
        "excess_nodes": float(room.excess),
        "plan_ms": whole_ms,
        "unused_nodes": float(room.unused),
        "unjudged_gangs": float(room.unjudged),
        "asked_replicas": float(room.asked_replicas),
        "patches": float(room.patches),
        "node_changes": float(room.changed),
    }


def main() -> int:
    """Run and report."""
    given = arguments(
        "scale",
        {"groups": 12, "nodes": 120, "gangs": 40, "repeats": 3},
        {"groups": 50, "nodes": 2000, "gangs": 500, "repeats": 9},
    )
    return report("scale", measure(given.groups, given.nodes, given.gangs, given.repeats), given.check)


if __name__ == "__main__":
    raise SystemExit(main())
