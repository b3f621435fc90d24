"""What a plan consists of: decisions with their reasons, and why each waiting workload waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rayorch.core.capacity import GroupName
from rayorch.core.cells import CellsView
from rayorch.core.pace import Beside
from rayorch.core.reservations import ReservationView
from rayorch.core.snapshot import Versions
from rayorch.core.types import CellNodes, Member, NodeId, Resources, StopOrder, TopologyRequest, WorkloadId


@dataclass(frozen=True, slots=True)
class Start:
    """Begin attempt `attempt` on these seats. `gain_gpu_s`/`cost_gpu_s`: expected, in GPU-seconds.

    `ends_s`: by when it should have ended, where its seats are held for others from then on.
    `partners`: the others of its joint gang, whose starts are committed with this one or not at all.
    `lent_by`: heads that hold some of the seats and take them back when they can start.
    `cell`: the level of the cells of its queue in which it lies, empty: outside of them. `cell_domains`: these cells
    with all their nodes, where a cell is more than a node.
    """

    workload: WorkloadId
    attempt: int
    members: tuple[Member, ...]
    reason: str
    gain_gpu_s: float = 0.0
    cost_gpu_s: float = 0.0
    ends_s: float | None = None
    partners: tuple[WorkloadId, ...] = ()
    lent_by: tuple[WorkloadId, ...] = ()
    cell: str = field(default="", repr=False)  # so that a plan without cells reads as ever
    cell_domains: tuple[CellNodes, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Stop:
    """End an attempt; its seats come free when it has acknowledged, or at the order's deadline."""

    workload: WorkloadId
    attempt: int
    order: StopOrder
    cost_gpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Resize:
    """Give a running attempt more surplus seats (`add`) or take some (`remove`, by surplus number).

    With `remove`, the seats are left by `release_by_s`, for `beneficiary` if it is not None.
    """

    workload: WorkloadId
    attempt: int
    add: tuple[Member, ...]
    remove: tuple[int, ...]
    reason: str
    release_by_s: float | None = None
    beneficiary: WorkloadId | None = None
    gain_gpu_s: float = 0.0
    cost_gpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Reserve:
    """Room held for a workload that can't start yet: nothing behind it may take it.

    `from_release`: the room is being freed by stops and shrinks that are under way. `at_s`: it should start then, and
    until then what ends before may use the room; None: not known. `kept`: these seats alone, which it had in its last
    attempt and that are still there; else, without `from_release`, their nodes.
    """

    workload: WorkloadId
    members: tuple[Member, ...]
    from_release: bool
    reason: str
    at_s: float | None = None
    kept: bool = False


@dataclass(frozen=True, slots=True)
class GangDemand:
    """One whole gang to make room for: its bundles, the topology it needs, and the labels that its nodes must have
    (accelerator type, topology domain), each with one value."""

    workload: WorkloadId
    bundles: tuple[Resources, ...]
    topology: TopologyRequest
    selector: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class GroupChange:
    """Change one node group's replica count from what the decision was made on.

    A growth (`to_replicas` is larger) is for `beneficiaries`, expected by `expected_s` and given up at `deadline_s`. A
    shrink names the `instances` that go, whole replicas that hold nothing, and the `nodes` that they are. `shares`: on
    how many of the new nodes each beneficiary counts; two may count on one node.
    """

    group: GroupName
    from_replicas: int
    to_replicas: int
    reason: str
    beneficiaries: tuple[WorkloadId, ...] = ()
    expected_s: float = 0.0
    deadline_s: float = 0.0
    instances: tuple[str, ...] = ()
    nodes: tuple[NodeId, ...] = ()
    shares: tuple[tuple[WorkloadId, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Scale:
    """The one demand for capacity: gangs that hold seats and gangs that no free node can take.

    `changes`: to the node groups, at most one for each, where we run them ourselves.
    """

    held: tuple[GangDemand, ...]
    wanted: tuple[GangDemand, ...]
    reason: str
    changes: tuple[GroupChange, ...] = ()


@dataclass(frozen=True, slots=True)
class Cordon:
    """Nothing new on a node."""

    node: NodeId
    reason: str


@dataclass(frozen=True, slots=True)
class Watch:
    """Note who shares a GPU with an attempt from now on, and whether all of them work: its pace is counted anew.

    `model`: of the GPU.
    """

    workload: WorkloadId
    attempt: int
    beside: Beside
    ready: bool
    model: str


Decision = Start | Stop | Resize | Reserve | Scale | Cordon | Watch


class WaitReason(StrEnum):
    """The closed list of reasons to wait. A new one needs its sentence in `explain.py`."""

    QUOTA = "Quota"  # the queue (or one above it) may hold no more
    USER_LIMIT = "UserLimit"  # its owner may hold, or run, no more in that queue
    COUNTABLES = "Countables"  # the cluster has no more of a licence, or whatever it counts as a whole
    QUEUE_CLOSED = "QueueClosed"  # the queue, or one above it, is held, drained or being deleted
    BUDGET = "Budget"  # the queue, or one above it, has spent its GPU-hours
    PRIORITY = "Priority"  # others go first and take the room
    BEHIND_HEAD = "BehindHead"  # its queue keeps strict order, and one ahead of it can't start yet
    RESOURCES = "Resources"  # not enough is free in all
    FRAGMENTED = "Fragmented"  # enough is free, but not in pieces of the needed size
    ACCELERATOR = "Accelerator"  # enough is free, but not on GPUs of one model that it may have
    TOPOLOGY = "Topology"  # enough is free, but not within one domain
    NODES_UNAVAILABLE = "NodesUnavailable"  # it would fit if cordoned, draining or blocked nodes came back
    FOREIGN_USE = "ForeignUse"  # it would fit if GPUs used outside grants came back
    RELEASING = "Releasing"  # its room is being freed by a stop or shrink
    RESERVED_FOR_HEAD = "ReservedForHead"  # what is free is held for a workload ahead
    APPLICATIONS = "Applications"  # applications that it may not take from hold what it needs, and they don't end
    PREEMPTION_DELAY = "PreemptionDelay"  # it evicts nobody yet, so that nodes can be added first
    BACK_OFF = "BackOff"  # it failed a moment ago and waits before the next attempt
    LEASE = "Lease"  # a former attempt that we lost contact with may still run
    BEGIN_TIME = "BeginTime"  # it was asked not to start before a certain time
    DEPENDENCY = "Dependency"  # what must have happened to other workloads has not
    ARRAY = "Array"  # it stands for entries, which start and wait on their own
    ARRAY_LIMIT = "ArrayLimit"  # as many entries of its array run as may at a time
    RESERVATION = "Reservation"  # the reservation that it names has not begun, or has no room left
    SET_ASIDE = "SetAside"  # what is free is set aside for reservations
    NEVER_FITS_NOW = "NeverFitsNow"  # no node that exists could ever take it; capacity has been asked for
    PROVISIONING = "Provisioning"  # nodes for it have been ordered and are on their way
    CELL_OWED = "CellOwed"  # it would fit, but where a queue is owed cells, and it could not be stopped for them
    CAPACITY_REFUSED = "CapacityRefused"  # the node groups that could take it have nothing to give for now
    CAPACITY_LIMIT = "CapacityLimit"  # the node groups that could take it are at their maximum
    CAPACITY_BUSY = "CapacityBusy"  # the node groups that could take it complete another change first
    CAPACITY_UNKNOWN = "CapacityUnknown"  # who provides nodes can't be read, so no node is asked for
    JOINT = "Joint"  # the rest of its joint gang is not there, or can't start yet
    SYNCING = "Syncing"  # the owners are comparing their books with the world after a restart
    DEVICE_BINDING_UNAVAILABLE = "DeviceBindingUnavailable"  # exact devices can't be promised on this cluster
    STALE = "Stale"  # decided, but the facts changed before the commit; planned again at once
    PLANNING = "Planning"  # accepted a moment ago and not yet looked at


@dataclass(frozen=True, slots=True)
class Wait:
    """One reason why a workload waits.

    `blocks`: it would keep the workload waiting on its own. `need`/`have`: the numbers behind it, in natural
    units of `unit` ("GPU", "nodes", "s"). `blockers`: who is in the way. `unblocks`: what would end it.
    """

    reason: WaitReason
    detail: str
    blocks: bool = True
    need: float = 0.0
    have: float = 0.0
    unit: str = ""
    blockers: tuple[WorkloadId, ...] = ()
    unblocks: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """Decisions in the order in which they must happen, and all reasons of each workload that does not start.

    `estimates`: when each waiting workload is expected to start [s since the epoch], None where nothing is known.
    """

    versions: Versions
    now_s: float
    decisions: tuple[Decision, ...]
    waits: Mapping[WorkloadId, tuple[Wait, ...]] = field(default_factory=dict)
    estimates: Mapping[WorkloadId, float | None] = field(default_factory=dict)
    positions: Mapping[WorkloadId, int] = field(default_factory=dict)
    reservations: tuple[ReservationView, ...] = ()
    cells: tuple[CellsView, ...] = ()
