"""Facts with a time. The journal is a sequence of these; replaying them gives the owners' state again.

An event says what happened, never what should happen. Every event about an attempt names the attempt, so that
one of a replaced attempt can be told apart and refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from rayorch.core.cron import CronSpec
from rayorch.core.lifecycle import Move
from rayorch.core.pace import Beside
from rayorch.core.reports import AttemptReport
from rayorch.core.timing import ReservationSpec
from rayorch.core.types import (
    CellNodes,
    Member,
    NodeId,
    QueueId,
    QueueSpec,
    Resources,
    StopCause,
    StopOrder,
    WorkloadId,
    WorkloadSpec,
)


@dataclass(frozen=True, slots=True)
class QueueSet:
    """A queue was created or its settings replaced."""

    spec: QueueSpec
    at_s: float


@dataclass(frozen=True, slots=True)
class QueueDeleted:
    """A queue without workloads and children was removed."""

    queue: QueueId
    at_s: float


@dataclass(frozen=True, slots=True)
class CountablesSet:
    """What the cluster has as a whole and no node has: licences, watts."""

    amounts: Resources
    at_s: float


@dataclass(frozen=True, slots=True)
class ReservationSet:
    """Room is to be held in advance; in place of a reservation of that id, if there is one."""

    spec: ReservationSpec
    at_s: float


@dataclass(frozen=True, slots=True)
class ReservationDeleted:
    """A reservation is held no longer."""

    reservation: str
    at_s: float


@dataclass(frozen=True, slots=True)
class CronSet:
    """A workload is to be submitted by a schedule, or otherwise than before."""

    spec: CronSpec
    at_s: float


@dataclass(frozen=True, slots=True)
class CronDeleted:
    """A schedule is over; what it has submitted goes on."""

    cron: str
    at_s: float


@dataclass(frozen=True, slots=True)
class CronLooked:
    """The moments of a cron up to `until_s` are over with: `workload` was submitted for the last of them, or none was.

    `skipped`, `missed`, `refused`: how many were not submitted, because earlier work had not ended, because it was too
    late, because the door refused. `note` says why.
    """

    cron: str
    until_s: float
    workload: WorkloadId | None
    skipped: int
    missed: int
    refused: int
    note: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Submitted:
    """A workload was accepted; from here on it is never lost."""

    spec: WorkloadSpec
    at_s: float


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Its owner wants it ended; a running attempt is stopped first."""

    workload: WorkloadId
    reason: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Started:
    """The commit of a start: this attempt, on these seats, planned on these versions of the facts.

    `cell`: the level of its queue's cells in which the seats lie, empty: outside; `cell_domains`: which ones.
    """

    workload: WorkloadId
    attempt: int
    members: tuple[Member, ...]
    queues_version: int
    inventory_version: int
    allocations_version: int
    reason: str
    at_s: float
    cell: str = ""
    cell_domains: tuple[CellNodes, ...] = ()


@dataclass(frozen=True, slots=True)
class AttemptReady:
    """All members of the minimum are up and the work has begun."""

    workload: WorkloadId
    attempt: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Resized:
    """A running attempt is to have these seats: grown, or shrunk by `release_by_s` for `beneficiary`."""

    workload: WorkloadId
    attempt: int
    members: tuple[Member, ...]
    release_by_s: float | None
    beneficiary: WorkloadId | None
    reason: str
    at_s: float


@dataclass(frozen=True, slots=True)
class StopOrdered:
    """An attempt is to end; journalled before anyone is told."""

    workload: WorkloadId
    attempt: int
    order: StopOrder
    at_s: float


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """An attempt is over and holds nothing. `move` is REQUEUED, SUCCEEDED, FAILED or CANCELLED.

    `cause` is set when we ended it; None means that the work ended by itself. With REQUEUED, no new attempt
    starts before `not_before_s`.
    """

    workload: WorkloadId
    attempt: int
    move: Move
    cause: StopCause | None
    exit_code: int | None
    reason: str
    not_before_s: float
    at_s: float


@dataclass(frozen=True, slots=True)
class Accompanied:
    """These share a GPU with an attempt from now on; `ready`: all of them work. `model`: of the GPU."""

    workload: WorkloadId
    attempt: int
    beside: Beside
    ready: bool
    model: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Forgotten:
    """These workloads ended long ago and are remembered no longer; their ids are free again."""

    workloads: tuple[WorkloadId, ...]
    at_s: float


@dataclass(frozen=True, slots=True)
class Reported:
    """The attempt itself reported progress, a checkpoint, demand or the seats that it uses."""

    workload: WorkloadId
    attempt: int
    report: AttemptReport
    at_s: float


@dataclass(frozen=True, slots=True)
class NodeCordoned:
    """Nothing new may go to the node; with `drain_by_s`, what is there must have left by then."""

    node: NodeId
    reason: str
    drain_by_s: float | None
    at_s: float


@dataclass(frozen=True, slots=True)
class NodeUncordoned:
    """The node may take work again."""

    node: NodeId
    reason: str
    at_s: float


@dataclass(frozen=True, slots=True)
class HalfLifeSet:
    """From here on, what was used counts half after so long; 0: it does not decay."""

    half_life_s: float
    at_s: float


Event = (
    QueueSet
    | QueueDeleted
    | CountablesSet
    | ReservationSet
    | ReservationDeleted
    | CronSet
    | CronDeleted
    | CronLooked
    | Submitted
    | CancelRequested
    | Started
    | AttemptReady
    | Resized
    | StopOrdered
    | AttemptEnded
    | Accompanied
    | Forgotten
    | Reported
    | NodeCordoned
    | NodeUncordoned
    | HalfLifeSet
)


def workload_of(event: Event) -> WorkloadId | None:
    """The workload that an event is about; None for one about anything else, or about many."""
    match event:
        case Submitted(spec=spec):
            return spec.id
        case (
            QueueSet()
            | QueueDeleted()
            | CronSet()
            | CronDeleted()
            | CronLooked()
            | ReservationSet()
            | ReservationDeleted()
            | CountablesSet()
            | NodeCordoned()
            | NodeUncordoned()
            | HalfLifeSet()
            | Forgotten()
        ):
            return None
        case _:
            return event.workload
