"""What the controller shows of itself: dated copies for people and programs, never a source of decisions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rayorch.core.bypass import Bypass
from rayorch.core.capacity import Capacity
from rayorch.core.cells import CellsView
from rayorch.core.decisions import Wait
from rayorch.core.requests import Reply
from rayorch.core.reservations import ReservationView
from rayorch.core.snapshot import Versions
from rayorch.core.types import Allocation, NodeHealth, NodeSpec, QueueSpec, Resources, Workload, WorkloadId
from rayorch.core.whatif import Change, Outlook

NOTHING = Resources()


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """How much of a queue's budget is used, since `since_s`. `burn`: 1 spends it evenly over its period.

    `spent_at_s`: when nothing is left at what is in use now, None: not in this period. `again_s`: when the next period
    begins.
    """

    used_gpu_hours: float
    since_s: float
    burn: float | None = None
    spent_at_s: float | None = None
    again_s: float | None = None


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One queue with what it holds, its children's holdings included.

    `borrowed`: used beyond deserved. `lent`: deserved, unused by this queue, and in use elsewhere.
    `oldest_pending_s`: how long its oldest waiting workload has waited [s], None when none waits. `lately_gpu_s`: what
    was used, decayed by the profile's half-life. `cells`: how its cells are, by the last plan.
    """

    spec: QueueSpec
    used: Resources = NOTHING
    borrowed: Resources = NOTHING
    lent: Resources = NOTHING
    pending: int = 0
    running: int = 0
    oldest_pending_s: float | None = None
    budget: BudgetRow | None = None
    lately_gpu_s: float = 0.0
    cells: tuple[CellsView, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceHolder:
    """Who uses a share of one device; `units` of 1/10000."""

    device: int
    workload: WorkloadId
    attempt: int
    role: str
    units: int


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node, what our gangs use of it and who holds which device. Foreign use is in `node.foreign`."""

    node: NodeSpec
    used: Resources = NOTHING
    holders: tuple[DeviceHolder, ...] = ()

    @property
    def drained(self) -> bool:
        """It is draining, and nothing of ours is left on it: it may be taken out of service."""
        return self.node.health is NodeHealth.DRAINING and not self.used


@dataclass(frozen=True, slots=True)
class WorkloadRow:
    """One workload that has not ended: its place among those that wait, all its reasons, and what it holds.

    `position` counts from 1; None when it does not wait. `estimate_s`: expected start [s since the epoch].
    """

    workload: Workload
    position: int | None = None
    waits: tuple[Wait, ...] = ()
    estimate_s: float | None = None
    held: Allocation | None = None


@dataclass(frozen=True, slots=True)
class ExplainView:
    """Why a workload is where it is, as evaluated at `evaluated_s` in turn `cycle` of the controller's loop.

    `changes`: what would let it start, where that was asked for; None where it was not. `order`: what its place in its
    queue comes from, empty for one that does not wait.
    """

    workload: Workload
    position: int | None
    waits: tuple[Wait, ...]
    estimate_s: float | None
    held: Allocation | None
    cycle: int
    evaluated_s: float
    queue: QueueRow | None = None
    changes: tuple[Change, ...] | None = None
    order: str = ""


@dataclass(frozen=True, slots=True)
class PlanView:
    """What submitting a workload would do. `forecast` is None when the door would refuse it, as `reply` says."""

    reply: Reply
    forecast: Outlook | None
    cycle: int
    evaluated_s: float


class LaunchState(StrEnum):
    """How far Ray's autoscaler has come with nodes that it wants."""

    REQUESTED = "requested"  # asked of the provider
    PENDING = "pending"  # a machine that is not a Ray node yet
    FAILED = "failed"  # the provider did not give it


@dataclass(frozen=True, slots=True)
class Launch:
    """Nodes of one type that Ray's autoscaler has asked for. `since_s`: since when, or when it failed."""

    group: str
    count: int
    state: LaunchState
    reason: str = ""
    instance: str = ""
    since_s: float | None = None


@dataclass(frozen=True, slots=True)
class AutoscalerView:
    """The last report of Ray's autoscaler. `unmet`: demands that no node type of it could ever take, in words.

    `error`: why it could not be read the last time; what is shown is then as old as `observed_s`.
    """

    observed_s: float
    launches: tuple[Launch, ...] = ()
    unmet: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything that one page shows; `workloads` are those that have not ended.

    `last_cycle_s`: when the last turn of the loop ended [s since the epoch]; `cycle_took_s`: how long it took.
    `capacity`: where nodes come from. `autoscaler`: Ray's, None where it has never reported.
    `bypasses`: Ray jobs that run or wait here and did not come through us. `reservations`: room held in advance.
    """

    now_s: float
    instance: str
    cycle: int
    last_cycle_s: float
    cycle_took_s: float
    versions: Versions
    queues: tuple[QueueRow, ...] = ()
    nodes: tuple[NodeRow, ...] = ()
    workloads: tuple[WorkloadRow, ...] = ()
    synced: bool = True
    warnings: tuple[str, ...] = ()
    capacity: Capacity = Capacity()
    autoscaler: AutoscalerView | None = None
    bypasses: tuple[Bypass, ...] = ()
    reservations: tuple[ReservationView, ...] = ()


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A piece of an attempt's driver log; ask again from `next_offset` [bytes]. `ended`: nothing will follow it."""

    text: str
    next_offset: int
    ended: bool


def log_name(workload: WorkloadId, attempt: int) -> str:
    """Where an attempt's driver log lies, below the folder of logs on the head node."""
    return f"{workload}/{attempt}.log"
