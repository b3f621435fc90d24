"""One decision at 10,000 nodes of 8 GPUs, beside Slurm's on the same machine in the same run.

    ratio_1       our time over Slurm's for one node with its 8 GPUs
    ratio_128     for a gang of 128 such nodes
    ratio_1024    for a gang of 1,024

Slurm's time is that of the main scheduler's cycle that started the job; ours is that of `plan()`, which remembers the
turns before. On both sides nothing else waits, and what was started before still runs. The sizes come one after the
other, each with a decision that is not counted first; who goes first alternates; a ratio is that of the medians.
Ratios are of CPU time: Slurm's of its scheduler's thread, ours of the planning thread, since on a machine that others
use the time on the clock says how busy they were. Beside them are printed

    wall_ratio_N  the same on the clock, Slurm's as it measures it itself (`sdiag`)
    turn_ratio_N  CPU time of our whole turn: what has changed is read from the owners, planned, committed by the owners
                  with their checks, and taken into memory for the next turn

Needs Debian's `slurmctld` and `slurm-client`; no munge, no root and no daemon on any node. Where they are not
installed there is nothing to compare with: it says so, prints nulls and exits with 0.
"""

from __future__ import annotations

import gc
import json
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.harness import arguments, report, say
from benchmarks.played.slurm import Cycle, Slurm, missing, slurm
from rayorch.core.planner import plan
from rayorch.core.planning.memory import Memory
from rayorch.core.types import Kind, QueueId, QueueSpec, Resources, Role, State, WorkloadId, WorkloadSpec
from rayorch.experiment.nodes import from_words
from rayorch.policies.default import DEFAULT
from rayorch.sim.trace.cluster import TraceCluster

SIZES = (1, 128, 1024)
GPUS = 8
NAME = "latency_vs_slurm"
QUEUE = QueueId("all")


@dataclass(frozen=True, slots=True)
class Turn:
    """Our side of one decision: the plan on the clock and in CPU time, and the CPU time of all that belongs to it."""

    wall_s: float
    cpu_s: float
    turn_cpu_s: float


class Ours:
    """The owners, the planner and what it remembers, on as many nodes."""

    def __init__(self, nodes: int) -> None:
        self._cluster = TraceCluster(from_words(f"{nodes}x{GPUS}").nodes, (QueueSpec(QUEUE),), DEFAULT)
        self._memory = Memory()
        self._count = 0

    def decide(self, members: int) -> Turn:
        """Submit a gang of whole nodes; what the turn takes that gives it its nodes."""
        cluster = self._cluster
        cluster.now_s += 1.0
        self._count += 1
        id = WorkloadId(f"w{self._count}")
        role = Role("worker", Resources.of({"GPU": GPUS, "CPU": 1}), members, members)
        cluster.submit(WorkloadSpec(id, id, Kind.JOB, QUEUE, (role,)))
        gc.collect()
        turn_s = time.thread_time()
        snapshot = cluster.snapshot()
        began_s, cpu_s = time.perf_counter(), time.thread_time()
        made = plan(snapshot, cluster.planned, self._memory)
        wall_s, cpu_s = time.perf_counter() - began_s, time.thread_time() - cpu_s
        cluster.commit(made)
        assert cluster.state_of(id) is State.RUNNING, f"a gang of {members} nodes did not start"
        cluster.ready(id, 1)
        cluster.commit(plan(cluster.snapshot(), cluster.planned, self._memory))  # as after every change
        return Turn(wall_s, cpu_s, time.thread_time() - turn_s)


def compare(theirs: Slurm, ours: Ours, rounds: int) -> dict[str, float]:
    """The ratios over rounds of one job of each size on either side."""
    taken: dict[int, list[tuple[Turn, Cycle]]] = {size: [] for size in SIZES}
    for size in SIZES:
        ours.decide(size), theirs.decide(size, GPUS)  # not counted: ours looks at every node when a size is new to it
        for number in range(rounds):
            if number % 2:
                cycle = theirs.decide(size, GPUS)
                taken[size].append((ours.decide(size), cycle))
            else:
                turn = ours.decide(size)
                taken[size].append((turn, theirs.decide(size, GPUS)))
    figures: dict[str, float] = {}
    for size, pairs in taken.items():
        turns, cycles = [turn for turn, _ in pairs], [cycle for _, cycle in pairs]
        ours_ms, wall_ms = median(t.cpu_s for t in turns) * 1000, median(t.wall_s for t in turns) * 1000
        turn_ms = median(t.turn_cpu_s for t in turns) * 1000
        slurm_ms, slurm_wall_ms = median(c.cpu_s for c in cycles) * 1000, median(c.wall_s for c in cycles) * 1000
        say(
            f"{size:>5} nodes: ours {ours_ms:.1f} ms of CPU ({wall_ms:.1f} on the clock, whole turn {turn_ms:.1f}),"
            f" Slurm {slurm_ms:.1f} ({slurm_wall_ms:.1f} on the clock)"
        )
        figures |= {f"ratio_{size}": ours_ms / slurm_ms, f"wall_ratio_{size}": wall_ms / slurm_wall_ms}
        figures |= {f"turn_ratio_{size}": turn_ms / slurm_ms, f"ours_ms_{size}": ours_ms, f"slurm_ms_{size}": slurm_ms}
    return figures


def main() -> int:
    """Run and report."""
    given = arguments(NAME, {"rounds": 1, "nodes": 2_500}, {"rounds": 5, "nodes": 10_000})
    if absent := missing():
        say(f"not measured: {', '.join(absent)} not found; on Debian: apt-get install slurmctld slurm-client")
        print(json.dumps({f"ratio_{size}": None for size in SIZES}), flush=True)
        return 0
    needed = (given.rounds + 1) * sum(SIZES)
    if needed > given.nodes:
        say(f"{given.rounds} rounds need {needed} nodes")
        return 2
    folder = Path(tempfile.mkdtemp(prefix="rayorch-slurm-"))
    try:
        with slurm(folder, given.nodes, GPUS) as theirs:
            say(f"{theirs.version()}, {given.nodes} nodes of {GPUS} GPUs, {given.rounds} rounds")
            figures = compare(theirs, Ours(given.nodes), given.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return report(NAME, figures, given.check)


if __name__ == "__main__":
    raise SystemExit(main())
