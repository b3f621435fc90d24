"""The nouns of the system: what is asked for, what exists and what is held.

Everything here is frozen. Amounts are integers of 1/10000 (`UNIT`), which is Ray's own fixed point, so
that sums are exact. Times are seconds since the epoch on the owner's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from rayorch.core.attempt_facts import Checkpoint as Checkpoint
from rayorch.core.attempt_facts import Demand as Demand
from rayorch.core.attempt_facts import StopCause as StopCause
from rayorch.core.attempt_facts import StopOrder as StopOrder
from rayorch.core.gang_shape import Channel as Channel
from rayorch.core.gang_shape import GroupSpec as GroupSpec
from rayorch.core.gang_shape import JointGang as JointGang
from rayorch.core.gang_shape import Segment as Segment
from rayorch.core.gang_shape import TopologyRequest as TopologyRequest
from rayorch.core.gang_shape import choices
from rayorch.core.ids import CellNodes as CellNodes
from rayorch.core.ids import NodeId as NodeId
from rayorch.core.ids import QueueId as QueueId
from rayorch.core.ids import WorkloadId as WorkloadId
from rayorch.core.pace import Pace as Pace
from rayorch.core.queue_spec import Budget as Budget
from rayorch.core.queue_spec import CellShare as CellShare
from rayorch.core.queue_spec import QueueMode as QueueMode
from rayorch.core.queue_spec import QueueSpec as QueueSpec
from rayorch.core.queue_spec import UserLimits as UserLimits
from rayorch.core.resources import CPU as CPU
from rayorch.core.resources import GPU as GPU
from rayorch.core.resources import MAX_UNITS as MAX_UNITS
from rayorch.core.resources import MODEL_LABEL as MODEL_LABEL
from rayorch.core.resources import MODEL_PREFIX as MODEL_PREFIX
from rayorch.core.resources import UNIT as UNIT
from rayorch.core.resources import Resources as Resources
from rayorch.core.resources import gpus_of_model as gpus_of_model
from rayorch.core.resources import total as total
from rayorch.core.sharing import counted, mig_profile
from rayorch.core.timing import ArrayEntry as ArrayEntry
from rayorch.core.timing import ArrayProgress as ArrayProgress
from rayorch.core.timing import ArraySpec as ArraySpec
from rayorch.core.timing import Dependency as Dependency
from rayorch.core.timing import RetryRule as RetryRule

# ---------------------------------------------------------------- what is asked for


class Kind(StrEnum):
    """How a workload runs once its gang is held."""

    TRAIN = "train"  # a command that runs Ray Train inside the gang
    SERVE = "serve"  # a Ray Serve application whose replicas are the members
    JOB = "job"  # a command whose Ray tasks and actors run inside the gang
    GANG = "gang"  # a leased placement group, for a notebook


@dataclass(frozen=True, slots=True)
class Role:
    """Members of one shape: at least `min_count` or the gang does not start, at most `max_count`.

    `group`: the GroupSpec of the workload that it belongs to, empty: the gang itself. `segments`: which of its
    members share a domain. `countables`: what each member draws of what the cluster has as a whole (a licence,
    watts); no node is asked for it.
    """

    name: str
    bundle: Resources
    min_count: int
    max_count: int
    group: str = ""
    segments: tuple[Segment, ...] = ()
    countables: Resources = Resources()

    @property
    def charge(self) -> Resources:
        """What each member counts for against queues, before it is known which model of GPU it gets."""
        return counted(self.bundle + self.countables if self.countables else self.bundle)


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """What a user asked for; it changes after admission only where work is unpacked (`Workload.asked`).

    `priority`: larger goes first. `grace_s`: how long a stop waits for a checkpoint before it is forced.
    `accelerators`: models that will do, in order of preference (Ray's names: "H100"); all GPUs of a gang are of one
    model. Empty: any, mixed ones included. `any_model`: they are equally good, and the one of which most is free is
    taken.
    `resizable`: members above the minimum may come and go while it runs (elastic Train, Serve replicas).
    `max_retries`: failures of the workload's own that are retried; preemptions and lost nodes never count.
    `payload`: JSON for the runner (command, environment, import path …), opaque to the core.
    `groups`, `joint`: groups inside the gang, and further submissions that it starts together with.
    `wall_limit_s`: it is stopped for good after running that long. `expected_s`: how long its owner thinks that it
    runs. `deadline_s`: when it must have ended. `begin_s`: it does not start before. `total_steps`: how many steps it
    has to do in all. `after`: what must have happened to others first.
    `retries`: rules by exit code; where none matches, `max_retries` counts. `preemption_delay_s`: how long it waits for
    room before it evicts anyone. `stale_grace_s`: how long it may run below its minimum before it is ended, in place of
    the profile's; negative: for ever. `reservation`: the id of the reservation that it runs in.
    `max_requeues`: how often it may go back to its queue for causes that are not its own before that is its end, None:
    always. `entry`: set by the queue owner in the workloads that an array's entries become.
    """

    id: WorkloadId
    name: str
    kind: Kind
    queue: QueueId
    roles: tuple[Role, ...]
    priority: int = 0
    preemptible: bool = True
    resizable: bool = False
    topology: TopologyRequest = TopologyRequest()
    accelerators: tuple[str, ...] = ()
    any_model: bool = False
    grace_s: float = 30.0
    min_runtime_s: float = 0.0
    max_retries: int = 0
    owner: str = ""
    payload: str = "{}"
    groups: tuple[GroupSpec, ...] = ()
    joint: JointGang | None = None
    wall_limit_s: float | None = None
    expected_s: float | None = None
    deadline_s: float | None = None
    begin_s: float | None = None
    total_steps: int | None = None
    array: ArraySpec | None = None
    after: tuple[Dependency, ...] = ()
    retries: tuple[RetryRule, ...] = ()
    preemption_delay_s: float = 0.0
    stale_grace_s: float | None = None
    reservation: str = ""
    max_requeues: int | None = None
    entry: ArrayEntry | None = None

    def role(self, name: str) -> Role:
        """The role of that name; KeyError if there is none."""
        for role in self.roles:
            if role.name == name:
                return role
        raise KeyError(name)

    @property
    def elastic_role(self) -> Role | None:
        """The role whose members come and go: the first with room above its minimum."""
        for role in self.roles:
            if role.max_count > role.min_count:
                return role
        return None

    @property
    def needed(self) -> tuple[frozenset[str], ...]:
        """The sets of roles that make up the gang's minimum; several where a group needs not all of its own."""
        return choices([(role.name, role.group) for role in self.roles], self.groups)

    def needed_in(self, group: str) -> frozenset[str]:
        """The roles that make up the minimum of one group, the first way that there is."""
        return choices([(role.name, role.group) for role in self.roles], self.groups, group)[0]

    def least(self, resource: str) -> int:
        """What the gang needs of one resource to start at all, in stored units; cheaper than `min_resources`."""
        needed = 0
        for role in self.roles:
            needed += role.bundle.units(resource) * role.min_count
        return needed

    @property
    def min_resources(self) -> Resources:
        """What the gang needs to start at all: of each resource the least that any way to start takes."""
        return self._least({role.name: role.bundle for role in self.roles})

    @property
    def min_charge(self) -> Resources:
        """What that counts for against queues; of a model's limits only if the workload names that one model."""
        least = self._least({role.name: role.charge for role in self.roles})
        one = self.accelerators[0] if len(self.accelerators) == 1 else ""
        return least + gpus_of_model(one, least.gpu_units)

    def _least(self, each: Mapping[str, Resources]) -> Resources:
        """The least of all ways to start, where each member of a role takes so much."""
        if not self.groups:
            return total(each[r.name].times(r.min_count) for r in self.roles)
        ways = [total(each[r.name].times(r.min_count) for r in self.roles if r.name in way) for way in self.needed]
        return Resources.of_units({name: min(way.units(name) for way in ways) for way in ways for name, _ in way})

    @property
    def max_resources(self) -> Resources:
        """What the gang holds at its largest."""
        return total(r.bundle.times(r.max_count) for r in self.roles)


# ---------------------------------------------------------------- what exists


class NodeHealth(StrEnum):
    """Whether new work may go to a node, and whether work that is there may stay."""

    OK = "ok"
    CORDONED = "cordoned"  # nothing new
    DRAINING = "draining"  # nothing new, and what is there must leave by the deadline
    LOST = "lost"  # gone; its members are gone with it


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU (or MIG instance) of a node; `index` is Ray's device index.

    `sick`: why nothing new may use it, empty means healthy. `watch`: what is wrong with it although it can be used
    (it throttles). What follows is known where a device was read: `mig_profile` of a MIG instance ("1g.10gb"), the
    `numa` node, `nvlink`: the indices that it reaches by NVLink. `lost`: the driver does not reach it any more, so
    that whatever ran on it fails.
    """

    index: int
    model: str = ""
    uuid: str = ""
    sick: str = ""
    watch: str = ""
    lost: bool = False
    memory_bytes: int = 0
    mig_profile: str = ""
    pci: str = ""
    numa: int | None = None
    nvlink: tuple[int, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether it is known to be a GPU, and not an instance of one."""
        return bool(self.uuid) and not self.mig_profile and not self.uuid.startswith("MIG-")


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A Ray node as the inventory knows it.

    `topology`: (level, value) pairs from the outermost level inwards, the node itself excluded:
    (("zone", "z1"), ("rack", "r3")). `foreign`: in use outside our grants, subtracted before planning.
    `blocked_until_s`: a group could not be made here; nothing new is planned onto it before that time.
    `exact`: every GPU has a resource of its own (gpu0, gpu1, …), so that it can be chosen. `foreign_devices`: which of
    them, and how many units of each, is in use outside our grants by name.
    `group`, `instance`: the node group that it belongs to and the name of its machine (pod) there, empty where nobody
    provides nodes. `idle_since_s`: since when nothing at all has been in use on it, None while something is.
    `device_note`: what is to be said of its devices as a whole (they can't be read; their MIG profiles are not those of
    its group, it differs from nodes of its kind).
    `mig_mixed`: MIG instances are had by their profile ("mig-1g.10gb" in `total`) and do not count as GPUs. `sharing`:
    how parts of one device are kept apart there (`sharing.MODES`), empty where nothing is; `replicas`: how many may
    share one device, 0 where the node does not say.
    """

    id: NodeId
    name: str
    total: Resources
    devices: tuple[Device, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    topology: tuple[tuple[str, str], ...] = ()
    health: NodeHealth = NodeHealth.OK
    reason: str = ""
    drain_deadline_s: float | None = None
    foreign: Resources = Resources()
    foreign_holders: tuple[str, ...] = ()
    blocked_until_s: float = 0.0
    group: str = ""
    instance: str = ""
    idle_since_s: float | None = None
    device_note: str = ""
    exact: bool = False
    foreign_devices: tuple[tuple[int, int], ...] = ()
    mig_mixed: bool = False
    sharing: str = ""
    replicas: int = 0

    @property
    def foreign_unnamed(self) -> int:
        """GPU units in use outside our grants of which nobody knows on which devices they lie; only on exact nodes.

        Elsewhere Ray keeps all users of a node apart, whichever devices they have.
        """
        return max(0, self.foreign.gpu_units - sum(n for _, n in self.foreign_devices)) if self.exact else 0

    @property
    def ray_total(self) -> Resources:
        """What Ray counts: instances that are had by their profile are GPUs to it."""
        if not self.mig_mixed or not self.devices:
            return self.total
        rest = {name: n for name, n in self.total if mig_profile(name) is None}
        return Resources.of_units({**rest, GPU: UNIT * len(self.devices)})

    @property
    def models(self) -> tuple[str, ...]:
        """The models of its devices, as far as they are known, each once."""
        return tuple(dict.fromkeys(device.model for device in self.devices if device.model))

    @property
    def model(self) -> str:
        """The model of all its GPUs by the name that Ray gives it ("H100").

        Empty where it is not known, where there are no GPUs, and where there are several models: such a node serves
        no workload that names a model.
        """
        if not self.total.gpu_units and not self.devices:
            return ""
        models = self.models
        if len(models) > 1:
            return ""
        for name, value in self.labels:
            if name == MODEL_LABEL:
                return value
        return models[0] if models else ""

    def domain(self, level: str) -> str | None:
        """This node's value at a topology level; the level "node" is the node itself."""
        if level == "node":
            return self.id
        for name, value in self.topology:
            if name == level:
                return value
        return None


# ---------------------------------------------------------------- what is held


class MemberPhase(StrEnum):
    """How far one member's place has come."""

    RESERVED = "reserved"  # in our books only
    CREATING = "creating"  # its placement group was asked for
    READY = "ready"  # its placement group exists
    RELEASING = "releasing"  # to be given back; still occupied


@dataclass(frozen=True, slots=True)
class Member:
    """One seat of a gang. `surplus` 0 is the gang's minimum (one common group); n > 0 is surplus member n,
    whose group is its own. `bundle_index` is its place in that group. `devices` are the indices our books
    charge: with `exact`, its group names them; else Ray binds first-fit, so they are a model until observed.
    `model`: of the GPUs of its node, when it was seated. `countables`: what it draws of the cluster's.
    `path`: the domains of its node, outermost first, when it was seated ("z1/r3"). `channel`: its segment's."""

    role: str
    index: int
    node: NodeId
    bundle: Resources
    surplus: int = 0
    bundle_index: int = 0
    phase: MemberPhase = MemberPhase.RESERVED
    group_id: str = ""  # hex id of the placement group, empty until it exists
    devices: tuple[int, ...] = ()
    exact: bool = False
    model: str = ""
    countables: Resources = Resources()
    path: str = ""
    channel: Channel | None = None

    @property
    def charge(self) -> Resources:
        """What it counts for against queues: its bundle, its GPUs once more under their model, countables."""
        amount = _counted_on(self.bundle, self.model)
        return total((amount, self.countables)) if self.countables else amount


@lru_cache(maxsize=4096)
def _counted_on(bundle: Resources, model: str) -> Resources:
    """What a bundle counts for on a node whose GPUs are of the model; the same few are asked for all the time."""
    amount = counted(bundle)
    return total((amount, gpus_of_model(model, amount.gpu_units))) if model else amount


def charge_of(members: Iterable[Member]) -> Resources:
    """What members together count for against queues."""
    parts = tuple(members)
    first = parts[0] if parts else None
    if len(parts) > 1 and first is not None and all(_alike(m, first) for m in parts):
        return first.charge.times(len(parts))
    return total([member.charge for member in parts])


def _alike(one: Member, other: Member) -> bool:
    """Whether they certainly count for the same, by a look that is cheaper than the sum."""
    return one.bundle is other.bundle and one.model == other.model and one.countables is other.countables


@dataclass(frozen=True, slots=True)
class Allocation:
    """Who holds which seats under which attempt; realised as placement groups by the allocator."""

    workload: WorkloadId
    attempt: int
    members: tuple[Member, ...]
    reserved_s: float
    deadline_s: float  # when the groups must be ready, or the start is given up
    failed: str = ""  # why the groups could not be made; empty while all is well
    gang: tuple[int, ...] = (0,)  # the surplus numbers whose groups make up the minimum; Serve has several

    @property
    def ready(self) -> bool:
        """Every member of the minimum has its seat."""
        phases = [m.phase for m in self.members if m.surplus in self.gang]
        return bool(phases) and all(p in (MemberPhase.READY, MemberPhase.RELEASING) for p in phases)

    @property
    def held(self) -> Resources:
        """Everything that it takes of nodes, members that are leaving included."""
        return total(m.bundle for m in self.members)

    @property
    def charge(self) -> Resources:
        """What that counts for against queues."""
        return charge_of(self.members)


def group_name(instance: str, workload: WorkloadId, attempt: int, surplus: int = 0) -> str:
    """The name of a gang's placement group: identity is in the name, so a repeated start finds the first one."""
    base = f"rayorch/{instance}/{workload}/{attempt}"
    return f"{base}/+{surplus}" if surplus else base


# ---------------------------------------------------------------- what a workload has become


class State(StrEnum):
    """Where a workload is; the arrows are in `lifecycle.py`."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def terminal(self) -> bool:
        """Nothing more will happen to it."""
        return self in TERMINAL

    __hash__ = str.__hash__  # as equality, and sooner than an enumeration's own: many books are kept by state


LIVE = (State.RUNNING, State.STOPPING)
"""The states in which an attempt holds seats."""
TERMINAL = (State.SUCCEEDED, State.FAILED, State.CANCELLED)
"""The states in which nothing more will happen."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A submitted workload with all that has happened to it. Owned by the queue tree.

    `submitted_s` is its place in the queue and survives every requeue. `not_before_s`: no new attempt before
    this time (back-off, or the lease of an attempt that we lost contact with). `size`: members per role that
    the running attempt is meant to have. `lease_renewed_s`: the last sign of life of the attempt's runner, equal to
    `started_s` until the first. `placement`: the seats that were committed for the current attempt, without
    phase and group (those are the allocator's). `release_by_s`, `release_for`: the last shrink's deadline and
    beneficiary. `requeued_s`, `yielded_to`: when the last attempt was requeued, and for whom it was stopped.
    `short_since_s`: since when the attempt has had less than its minimum, None while it is whole.
    `attained_gpu_s`: GPU-seconds held up to the last change of its seats; `progress_s`: seconds of work that former
    attempts saved. `core.service` adds what the current attempt has had since.
    `sequence`: its place among all submissions, also of those of one moment; 0 for what is older than this field.
    `unmet`: the dependencies that are still open. `ran_s`: what earlier attempts count against `wall_limit_s`.
    `rule_failures`: own failures by the place of the retry rule that they fell under. `requeues`: how often it went
    back to its queue for causes that were not its own. `progress`: how its entries are; only of an array.
    `last_cause`, `last_started_s`: why the last attempt was ended by us and when it had begun. `former`: its seats,
    where it ended because a node was lost, drained or silent, or those that it was moved to: what is there is taken.
    `cell`: the level of its queue's cells in which the current attempt lies, empty: outside of them; `cell_domains`:
    these cells and their nodes, where a cell is more than a node.
    `pace`: how fast it goes beside others on a GPU, where that is watched. `asked`: what was submitted, where `spec` is
    another: it asked for a part of a GPU, and for a whole one since it was unpacked.
    `outlasted_s`: the most seconds of work that an attempt had come to, saved or lost, when it ended unfinished: the
    whole takes longer than that.
    """

    spec: WorkloadSpec
    state: State
    submitted_s: float
    attempt: int = 0
    size: tuple[tuple[str, int], ...] = ()
    started_s: float | None = None  # the current attempt's commit
    ready_s: float | None = None  # the current attempt's runner reported that work runs
    resized_s: float | None = None
    ended_s: float | None = None
    stop: StopOrder | None = None
    cancel_requested: bool = False
    step: int = 0
    checkpoint: Checkpoint | None = None
    demand: Demand | None = None
    demand_low_since_s: float | None = None
    lease_renewed_s: float = 0.0
    not_before_s: float = 0.0
    failures: int = 0
    preemptions: int = 0
    node_losses: int = 0
    start_failures: int = 0
    exit_code: int | None = None
    reason: str = ""
    labels: tuple[tuple[str, str], ...] = field(default=())
    placement: tuple[Member, ...] = ()
    release_by_s: float | None = None
    release_for: WorkloadId | None = None
    requeued_s: float | None = None
    yielded_to: WorkloadId | None = None
    attained_gpu_s: float = 0.0
    progress_s: float = 0.0
    sequence: int = 0
    unmet: tuple[Dependency, ...] = ()
    ran_s: float = 0.0
    rule_failures: tuple[int, ...] = ()
    requeues: int = 0
    progress: ArrayProgress | None = None
    short_since_s: float | None = None
    last_cause: StopCause | None = None
    last_started_s: float | None = None
    former: tuple[Member, ...] = ()
    cell: str = ""
    outlasted_s: float = 0.0
    pace: Pace | None = None
    asked: WorkloadSpec | None = None
    cell_domains: tuple[CellNodes, ...] = ()

    @property
    def id(self) -> WorkloadId:
        """The spec's id."""
        return self.spec.id

    def members(self, role: str) -> int:
        """How many members of a role the current attempt is meant to have."""
        for name, count in self.size:
            if name == role:
                return count
        return 0
