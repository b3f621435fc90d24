"""What comes out of a run: what became of each job, the cluster over time, and the figures of the run itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayorch.core.types import NodeId, State
from rayorch.sim.trace.model import Service

Floats = NDArray[np.float64]


class JobRun(NamedTuple):
    """One stretch of a job on the same seats. `nodes`: each once, in order; `gpus`: held in all."""

    from_s: float
    to_s: float
    nodes: tuple[NodeId, ...]
    gpus: float


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What became of one job.

    `gpus`: what it asked for in all. `started_s`: its first start; `ended_s`: when it ended for good; None: never, in
    the time that was simulated. `runs`: every stretch that it held seats, in order; one that goes on at the end of the
    simulated time ends there. `preemptions`: how often the planner stopped it and it had to wait again. `lost_gpu_s`:
    GPU-seconds of work that had to be done again, and of starting over. `state`: SUCCEEDED when its work was done.
    `resizes`: how often its seats changed while it ran; `elastic`: whether they may. `moves`: how often it was stopped
    to get other seats; `freed_gpus`: by how many GPUs less was to be stranded by these moves together.
    """

    id: str
    queue: str
    user: str
    name: str
    gpus: float
    submit_s: float
    started_s: float | None
    ended_s: float | None
    runs: tuple[JobRun, ...] = ()
    preemptions: int = 0
    lost_gpu_s: float = 0.0
    state: State = State.PENDING
    resizes: int = 0
    elastic: bool = False
    moves: int = 0
    freed_gpus: float = 0.0

    @property
    def jct_s(self) -> float | None:
        """From submission to the end, of one whose work was done."""
        if self.state is not State.SUCCEEDED or self.ended_s is None:
            return None
        return self.ended_s - self.submit_s

    @property
    def wait_s(self) -> float | None:
        """From submission to the first start, of one that started."""
        return None if self.started_s is None else self.started_s - self.submit_s


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """The cluster over time: from `times_s[i]` up to `times_s[i + 1]` the values at `i` held.

    `allocated_gpus`: held by jobs. `capacity_gpus`: of the nodes that were up. `waiting_jobs`, `waiting_gpus`: of jobs
    that had come and held nothing, with what they asked for. `fragmentation`: GPUs that are free where one
    member of a job drawn from the trace could not use them; None: not measured.
    """

    times_s: Floats
    allocated_gpus: Floats
    capacity_gpus: Floats
    waiting_jobs: Floats
    waiting_gpus: Floats
    fragmentation: Floats | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come. `now_s`: simulated time; `last_submit_s`: when the trace's last job comes."""

    now_s: float
    last_submit_s: float
    ended: int
    jobs: int
    events: int
    cpu_s: float


class NodeStay(NamedTuple):
    """A node of a group that comes and goes, and from when to when it was there."""

    group: str
    node: NodeId
    from_s: float
    to_s: float


class ReplicaRun(NamedTuple):
    """One stretch in which an application had so many replicas."""

    from_s: float
    to_s: float
    replicas: int


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """What became of an application. `stops`: how often all of it was stopped; `refused`: why, at the door."""

    service: Service
    runs: tuple[ReplicaRun, ...] = ()
    stops: int = 0
    refused: str = ""


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """So many jobs that the door refused for one reason; `id`, `line` (in the trace's file, 0: none) and `reason` are
    the first one's."""

    count: int
    reason: str
    id: str
    line: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """One run of a trace under a profile.

    `records`: in the trace's order. `events`: submissions, starts and ends (of attempts). `turns`: calls of `plan()`.
    `cpu_s`: of the loop. `log_sha256`: of everything that happened, in order: the same trace, nodes, profile, models
    and seed give the same. `fixed_nodes`: how many were there all the time; `stays`: of nodes of groups, by when they
    went. `cut_short`: moments in which decisions undid each other without an end, so that it went on a minute later.
    `turned_away`: why the door refused jobs.
    """

    trace: str
    profile: str
    seed: int
    records: tuple[JobRecord, ...]
    series: Series
    events: int
    turns: int
    cpu_s: float
    log_sha256: str
    fixed_nodes: int = 0
    stays: tuple[NodeStay, ...] = ()
    services: tuple[ServiceRecord, ...] = ()
    cut_short: int = 0
    turned_away: tuple[TurnedAway, ...] = ()
