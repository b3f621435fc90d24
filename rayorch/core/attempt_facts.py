"""What is known of one attempt beside its seats: why it stops, what it has saved, what is asked of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from rayorch.core.ids import WorkloadId


class StopCause(StrEnum):
    """Why an attempt is being ended by us."""

    PREEMPTED = "preempted"
    RECLAIMED = "reclaimed"
    CANCELLED = "cancelled"
    NODE_LOST = "node_lost"
    DRAINED = "drained"
    START_FAILED = "start_failed"
    LEASE_LAPSED = "lease_lapsed"
    MOVED = "moved"  # to other seats, so that somebody else fits, less is stranded or it has a GPU of its own
    UNPACKED = "unpacked"  # from a GPU on which two hindered each other; it asks for a whole one from then on
    STALE = "stale"  # it was below its minimum for too long
    TIME_LIMIT = "time_limit"  # it has run as long as it may


@dataclass(frozen=True, slots=True)
class StopOrder:
    """An attempt's end, journalled before anyone is told. After `deadline_s` it is forced.

    `seats`: the node of each member, by role and index, that the next attempt is to have; none: wherever it fits.
    `freed_gpus`: so many fewer GPUs are stranded when it has them, of a move that is made for that.
    """

    cause: StopCause
    reason: str
    ordered_s: float
    deadline_s: float
    beneficiary: WorkloadId | None = None
    seats: tuple[tuple[str, int, str], ...] = field(default=(), repr=False)
    freed_gpus: float = field(default=0.0, repr=False)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The last one committed: training resumes from here."""

    step: int
    uri: str
    committed_s: float
    attempt: int


@dataclass(frozen=True, slots=True)
class Demand:
    """What a Serve application reported: requests being answered and waiting."""

    ongoing: int
    queued: int
    reported_s: float
    target_per_replica: float = 1.0
