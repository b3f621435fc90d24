"""What a running attempt tells its runner: facts with a time, from inside Train, Serve or a job.

A report carries no workload and no attempt: the runner that receives it knows both, adds them and passes the
fact on as an event. `at_s` is the reporter's clock, in seconds since the epoch. Reports may arrive twice and
late, never out of order from one reporter.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepReported:
    """Training reached `step`. Not every step is reported: a newer one may replace an older one on its way."""

    step: int
    at_s: float


@dataclass(frozen=True, slots=True)
class CheckpointCommitted:
    """A checkpoint of `step` is complete in storage at `uri`, and a new attempt would resume from it."""

    step: int
    uri: str
    at_s: float


@dataclass(frozen=True, slots=True)
class GrantApplied:
    """Seats outside grant `version` are no longer used by the attempt and may be taken away."""

    version: int
    at_s: float


@dataclass(frozen=True, slots=True)
class WorkersStarted:
    """`count` workers (or replicas) are up and run the user's code."""

    count: int
    at_s: float


@dataclass(frozen=True, slots=True)
class SeatInUse:
    """A place that is really used: for Serve a group that it made on a node, else a bundle of a group.

    `devices`: the node's GPUs that are used there, empty when they are not known. `exact`: the group names them.
    """

    role: str
    node_id: str
    group_id: str
    group_name: str = ""
    bundle_index: int = 0
    devices: tuple[int, ...] = ()
    exact: bool = False


@dataclass(frozen=True, slots=True)
class SeatsInUse:
    """Where the attempt is.

    From Serve, which chooses the seat that it leaves: all places that it uses now. From others: some of its places,
    with the devices that Ray has bound there.
    """

    seats: tuple[SeatInUse, ...]
    at_s: float


@dataclass(frozen=True, slots=True)
class DemandReported:
    """Requests of a serving attempt: being answered, and waiting for a replica of `role`.

    `target_per_replica` is how many one replica should have at once.
    """

    ongoing: int
    queued: int
    at_s: float
    role: str = ""
    target_per_replica: float = 1.0


AttemptReport = StepReported | CheckpointCommitted | GrantApplied | WorkersStarted | SeatsInUse | DemandReported
"""Every variant that `runner.report` accepts."""
