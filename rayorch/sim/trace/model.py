"""What a trace is: jobs with when they came, what they asked for and how long they ran."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rayorch.core.types import NodeSpec, QueueSpec, Resources, TopologyRequest

if TYPE_CHECKING:
    from rayorch.sim.models.speed import SpeedModel


@dataclass(frozen=True, slots=True)
class Ask:
    """What a job asks for; one object for all jobs that ask for the same (readers intern them).

    `members`: how many gang members, all alike. `each`: what one of them takes. `models`: GPU models that will do, in
    order of preference; empty: any. `least`, `most`: with how many members it runs at all; 0: with `members` only,
    which is what its run time is for.
    """

    members: int
    each: Resources
    models: tuple[str, ...] = ()
    topology: TopologyRequest = TopologyRequest()
    least: int = 0
    most: int = 0

    @property
    def gpu_units(self) -> int:
        """Of all members together."""
        return self.members * self.each.gpu_units

    @property
    def fewest(self) -> int:
        """Members that it starts with at least."""
        return self.least or self.members

    @property
    def largest(self) -> int:
        """Members that it can use at most."""
        return self.most or self.members

    @property
    def elastic(self) -> bool:
        """Whether it runs with other numbers of members, too."""
        return self.largest > self.fewest


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a trace.

    `submit_s`: seconds since the trace's start, at least 0. `duration_s`: what it runs for, undisturbed, with what it
    asked for, on the reference model. `queue`: its queue (virtual cluster). `name`: application or job class, by which
    history is learned. `status`: how it ended in the trace: "", "succeeded", "failed" or "cancelled". `started_s`,
    `ended_s`: when it started and ended there, where that is known. `steps`: declared steps, where the job says so.
    `batch`: samples in a step of all members together, where it says so. `line`: where in the file it stood.
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
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that was refused, and why. `line`: where in the file it stands, from 1."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Service:
    """An application that serves beside the jobs.

    `demand`: (time, requests at once): from then on it has so many; times rise, the first is its submission. `each`:
    what a replica takes; `least`, `most`: replicas; `target`: requests that one of them answers at once. `start_s`: how
    long a new replica takes until it answers any.
    """

    id: str
    demand: tuple[tuple[float, float], ...]
    each: Resources
    most: int
    least: int = 1
    target: float = 1.0
    start_s: float = 0.0
    queue: str = "serve"
    priority: int = 100
    preemptible: bool = True
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs by (submit_s, order in the file).

    `nodes`: where the trace names the machines. `queues`: where it implies quotas. `refused`: the rows that could not
    be used. `source`: the path, or the generator with its seed. `speed`: how fast its jobs go where they lie, where the
    trace brings that. `services`: what serves beside them.
    """

    name: str
    jobs: tuple[TraceJob, ...]
    nodes: tuple[NodeSpec, ...] = ()
    queues: tuple[QueueSpec, ...] = ()
    refused: tuple[BadRow, ...] = ()
    source: str = ""
    speed: SpeedModel | None = field(default=None, repr=False)
    services: tuple[Service, ...] = ()
