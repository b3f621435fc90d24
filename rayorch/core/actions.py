"""What the reconciliation may ask of the owners and runners: one frozen value for each kind of call."""

from __future__ import annotations

from dataclasses import dataclass

from rayorch.core.decisions import Resize
from rayorch.core.events import AttemptEnded
from rayorch.core.grants import Grant
from rayorch.core.reports import SeatInUse
from rayorch.core.types import Member, NodeId, WorkloadId


@dataclass(frozen=True, slots=True)
class CreateGroups:
    """Allocator: make the groups of these seats, each pinned to its nodes."""

    workload: WorkloadId
    attempt: int
    surpluses: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RemoveGroups:
    """Allocator: release these seats, remove their groups, and drop them from the books when the groups are gone."""

    workload: WorkloadId
    attempt: int
    surpluses: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DropReservation:
    """Allocator: the reservation was never committed and has no group; forget it."""

    workload: WorkloadId
    attempt: int


@dataclass(frozen=True, slots=True)
class MarkReleasing:
    """Allocator: these seats were taken from the attempt and are on their way back (`Allocations.release`)."""

    workload: WorkloadId
    attempt: int
    surpluses: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rebind:
    """Allocator: these are the groups that Serve really uses, or devices that were seen (`Allocations.rebind`)."""

    workload: WorkloadId
    attempt: int
    in_use: tuple[SeatInUse, ...]


@dataclass(frozen=True, slots=True)
class Reseat:
    """Queue owner: commit the seats that the attempt really has (`QueueTree.commit_resize`).

    After a surplus seat whose group could not be made or whose node was lost, and after Serve left another seat
    than the one that was taken.
    """

    resize: Resize
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class StartRunner:
    """Controller: start the attempt's runner by its name, with this grant."""

    workload: WorkloadId
    attempt: int
    grant: Grant


@dataclass(frozen=True, slots=True)
class UpdateRunner:
    """Controller: give the runner this grant; the runner numbers it."""

    workload: WorkloadId
    attempt: int
    grant: Grant


@dataclass(frozen=True, slots=True)
class KillRunner:
    """Controller: end the runner with its processes, and forget it once it is gone."""

    workload: WorkloadId
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class MarkReady:
    """Queue owner: the attempt's work has begun (`QueueTree.ready`)."""

    workload: WorkloadId
    attempt: int


@dataclass(frozen=True, slots=True)
class EndAttempt:
    """Queue owner: the attempt is over and holds nothing (`QueueTree.end_attempt`)."""

    event: AttemptEnded


@dataclass(frozen=True, slots=True)
class BlockNodes:
    """Inventory: a group could not be made on these nodes (`Inventory.block`)."""

    nodes: tuple[NodeId, ...]
    until_s: float
    reason: str


Action = (
    CreateGroups
    | RemoveGroups
    | DropReservation
    | MarkReleasing
    | Rebind
    | Reseat
    | StartRunner
    | UpdateRunner
    | KillRunner
    | MarkReady
    | EndAttempt
    | BlockNodes
)
