"""The sample workload of Tiresias (Gu, NSDI'19) under each schedule of its simulator, against what that gives.

60 jobs on 2 nodes of 4 GPUs, scheme `count`: a job is so many members of one GPU that may lie anywhere, run times are
known, a stop loses nothing. Each schedule is one of our orders with evictions by order and without held nodes; two are
played with the artifact's own lists (`tiresias_lists`). `expected` is what the artifact printed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.played.tiresias_lists import Lists
from benchmarks.played.traces import nodes
from rayorch.core.eviction import EvictionKnobs
from rayorch.core.ordering import OrderKnobs
from rayorch.core.policy import BackfillKnobs, OrderPolicy, Profile
from rayorch.policies.default import DEFAULT
from rayorch.policies.order import fifo, las, remaining, smallest
from rayorch.sim.readers import tiresias
from rayorch.sim.trace.model import Trace
from rayorch.sim.trace.run import run

COARSE = (3250.0, 7200.0)
FINE = (500.0, 2000.0)


@dataclass(frozen=True, slots=True)
class Golden:
    """One schedule: our profile for it, and (average JCT [s], makespan [s], preemptions) of the artifact.

    `exact`: ours must be the same to the digit that was printed. `limits`: in place of the profile's order the lists of
    the artifact with these limits; `indices`: sorted by Gittins indices of its history.
    """

    profile: Profile
    expected: tuple[float, float, int]
    exact: bool = True
    limits: tuple[float, ...] = ()
    indices: bool = False

    def played(self, data: Path) -> Profile:
        """The profile for one run: lists remember what they saw."""
        if not self.limits:
            return self.profile
        return replace(self.profile, order=Lists(self.limits, history(data) if self.indices else ()))


def _profile(name: str, order: OrderPolicy, limits: tuple[float, ...] = (), strict: bool = False) -> Profile:
    return replace(
        DEFAULT,
        name=name,
        order=order,
        ordering=OrderKnobs(las_thresholds_gpu_s=limits, strict_fifo=strict),
        eviction=EvictionKnobs(by_order=True, consolidate=False),
        backfill=BackfillKnobs(hold=False),
    )


GOLDEN = (
    Golden(_profile("fifo", fifo.key, strict=True), (1556.48, 5747, 0)),
    Golden(_profile("fjf", fifo.key), (715.27, 4806, 0)),
    Golden(_profile("sjf", smallest.key), (725.70, 4806, 8)),
    Golden(_profile("shortest", remaining.key), (519.87, 4901, 7)),
    Golden(_profile("shortest-gpu", remaining.gpu_key), (563.38, 4962, 13)),
    Golden(_profile("dlas-gpu", las.key, COARSE), (715.27, 4806, 0)),
    Golden(_profile("dlas, fine", las.time_key, FINE), (544.52, 4880, 2)),
    Golden(_profile("dlas-gpu, fine, ours", las.key, FINE), (791.23, 4880, 14), exact=False),
    Golden(_profile("dlas-gpu, fine", las.key, FINE), (791.23, 4880, 14), limits=FINE),
    Golden(_profile("dlas-gpu-gittins", las.key, COARSE), (822.53, 4749, 91), limits=COARSE, indices=True),
)


def history(data: Path) -> tuple[float, ...]:
    """The service times that its Gittins indices are worked out of, rising."""
    lines = (data / "tiresias" / "yarn-gput1000.csv").read_text(encoding="utf-8").split()
    return tuple(sorted(float(line) for line in lines[1:]))


def jobs(data: Path) -> Trace:
    """The jobs, each of an owner of its own, so that nobody's run time is learned from another's."""
    trace = tiresias.read(data / "tiresias" / "60_job.csv")
    return replace(trace, jobs=tuple(replace(job, user=job.id, steps=None) for job in trace.jobs))


def play(data: Path, golden: Golden) -> tuple[float, float, int]:
    """(average JCT [s], makespan [s], preemptions) of ours."""
    records = run(jobs(data), nodes(2, 4), golden.played(data)).records
    ends = [record.ended_s for record in records if record.ended_s is not None]
    assert len(ends) == len(records), "all have ended"
    average_s = sum(end - record.submit_s for end, record in zip(ends, records, strict=True)) / len(ends)
    return round(average_s, 2), max(ends), sum(record.preemptions for record in records)


def misses(data: Path) -> list[str]:
    """The schedules that must come out as in the artifact and do not; empty when all do."""
    found = [(golden, play(data, golden)) for golden in GOLDEN if golden.exact]
    return [f"{g.profile.name}: {ours}, expected {g.expected}" for g, ours in found if ours != g.expected]
