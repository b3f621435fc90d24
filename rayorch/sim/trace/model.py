"""What a trace is: jobs with when they came, what they asked for and how long they ran."""

from __future__ import annotations

from dataclasses import dataclass

from rayorch.core.types import NodeSpec, QueueSpec, Resources, TopologyRequest


@dataclass(frozen=True, slots=True)
class Ask:
    """What a job asks for; one object for all jobs that ask for the same (readers intern them).

    `members`: how many gang members, all alike. `each`: what one of them takes. `models`: GPU models that will do, in
    order of preference; empty: any.
    """

    members: int
    each: Resources
    models: tuple[str, ...] = ()
    topology: TopologyRequest = TopologyRequest()

    @property
    def gpu_units(self) -> int:
        """Of all members together."""
        return self.members * self.each.gpu_units


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a trace.

    `submit_s`: seconds since the trace's start, at least 0. `duration_s`: what it runs for, undisturbed, with what it
    asked for, on the reference model. `queue`: its queue (virtual cluster). `name`: application or job class, by which
    history is learned. `status`: how it ended in the trace: "", "succeeded", "failed" or "cancelled". `started_s`,
    `ended_s`: when it started and ended there, where that is known. `steps`: declared steps, where the job says so.
    `line`: where in the file it stood.
    """

    id: str
    submit_s: float
    duration_s: float
    ask: Ask
    queue: str = "all"
    user: str = ""
    priority: int = 0
    name: str = ""
    status: str = ""
    started_s: float | None = None
    ended_s: float | None = None
    steps: int | None = None
    line: int = 0


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that was refused, and why. `line`: where in the file it stands, from 1."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs by (submit_s, order in the file).

    `nodes`: where the trace names the machines. `queues`: where it implies quotas. `refused`: the rows that could not
    be used. `source`: the path, or the generator with its seed.
    """

    name: str
    jobs: tuple[TraceJob, ...]
    nodes: tuple[NodeSpec, ...] = ()
    queues: tuple[QueueSpec, ...] = ()
    refused: tuple[BadRow, ...] = ()
    source: str = ""
