"""Small traces and clusters by hand, for tests of runs."""

from __future__ import annotations

from benchmarks.played.philly import FIFO as FIFO
from rayorch.core.types import NodeId, NodeSpec, Resources
from rayorch.sim.trace.model import Ask, Trace, TraceJob


def nodes(count: int, gpus: float = 8) -> tuple[NodeSpec, ...]:
    """Nodes n0, n1, … of so many GPUs."""
    return tuple(NodeSpec(NodeId(f"n{i}"), f"n{i}", Resources.of({"GPU": gpus, "CPU": 8 * gpus})) for i in range(count))


def job(
    id: str,
    submit_s: float,
    duration_s: float,
    gpus: float = 1,
    members: int = 1,
    queue: str = "all",
    priority: int = 0,
) -> TraceJob:
    """A job of members with so many GPUs each."""
    ask = Ask(members, Resources.of({"GPU": gpus}))
    return TraceJob(id, submit_s, duration_s, ask, queue=queue, priority=priority)


def trace(*jobs: TraceJob) -> Trace:
    """These jobs, in order of time."""
    return Trace("made", tuple(sorted(jobs, key=lambda j: j.submit_s)))
