"""Small traces and clusters by hand, for tests of runs."""

from __future__ import annotations

from dataclasses import replace

from rayorch.core.ordering import OrderKnobs
from rayorch.core.policy import BackfillKnobs, Profile
from rayorch.core.types import NodeId, NodeSpec, Resources
from rayorch.policies.default import DEFAULT
from rayorch.policies.order import fifo
from rayorch.policies.queue_order import plain
from rayorch.sim.trace.model import Ask, Trace, TraceJob

FIFO: Profile = replace(
    DEFAULT,
    name="fifo",
    order=fifo.key,
    queue_order=plain.key,
    preemption=False,
    ordering=OrderKnobs(strict_fifo=True),
    backfill=BackfillKnobs(heads=0),
)
"""First come, first served; a head that can't start blocks all."""


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
