"""What is asked of this turn: one gang that wants to start, or one more seat for a running workload."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from rayorch.core.planning.groups import Cell, Layout, is_nested, layouts
from rayorch.core.sharing import counted, uses_devices
from rayorch.core.types import (
    MODEL_PREFIX,
    Allocation,
    Kind,
    Member,
    MemberPhase,
    NodeId,
    QueueId,
    Resources,
    Role,
    TopologyRequest,
    Workload,
    WorkloadId,
    WorkloadSpec,
    gpus_of_model,
    total,
)


@dataclass(frozen=True, slots=True)
class Ask:
    """One seat that is asked for; a Member without a node."""

    role: str
    index: int
    bundle: Resources
    surplus: int
    bundle_index: int
    countables: Resources = Resources()

    def on(self, node: NodeId, devices: tuple[int, ...], model: str = "") -> Member:
        """The seat on a node whose GPUs are of the model (empty: not known)."""
        return Member(
            role=self.role,
            index=self.index,
            node=node,
            bundle=self.bundle,
            surplus=self.surplus,
            bundle_index=self.bundle_index,
            devices=devices,
            model=model if uses_devices(self.bundle) else "",
            countables=self.countables,
        )


@dataclass(frozen=True, slots=True)
class Shape:
    """All that decides whether a claim finds seats; claims of equal shape fail together.

    `near`: seats that the workload holds already, whose domain a required level must keep to. `accelerators`: the
    models that its GPUs may be of, all of one, the preferred first; empty: any, mixed ones included. `layout`: the gang
    as a tree of cells, None where all members just share the same levels; its seats are `bundles`, in that order.
    `others`: further shapes of which one would do as well, where a group needs only some of what is in it. `by_score`:
    one seat whose models are equally good, so that the score of the nodes decides.
    """

    bundles: tuple[tuple[Resources, int], ...]
    topology: TopologyRequest
    packed: bool
    near: tuple[NodeId, ...] = ()
    accelerators: tuple[str, ...] = ()
    layout: Cell | None = None
    others: tuple[Shape, ...] = ()
    by_score: bool = False
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        # Shapes are looked up many times in a turn.
        parts = (
            self.bundles,
            self.topology,
            self.packed,
            self.near,
            self.accelerators,
            self.layout,
            self.others,
            self.by_score,
        )
        object.__setattr__(self, "_hash", hash(parts))

    def __hash__(self) -> int:
        return self._hash

    @property
    def gpu_units(self) -> int:
        """GPU units of all members together."""
        return sum(bundle.gpu_units * count for bundle, count in self.bundles)

    @property
    def levels(self) -> frozenset[str]:
        """The levels that it, or something in it, must lie in one domain of."""
        own = frozenset() if self.topology.required is None else frozenset({self.topology.required})
        return own if self.layout is None else own | self.layout.levels

    @property
    def by_model(self) -> tuple[Shape, ...]:
        """The same with one model each, the preferred first; itself where any model will do."""
        if len(self.accelerators) < 2:
            return (self,)
        return tuple(replace(self, accelerators=(model,)) for model in self.accelerators)

    @property
    def loose(self) -> Shape:
        """The same without the wish to be close together, where none was asked for."""
        return replace(self, packed=False)


@dataclass(frozen=True, slots=True)
class Claim:
    """All of `asks` or nothing. `grows`: for a running attempt; otherwise the start of attempt `attempt`.

    `resources`: what it counts for against queues; of the limits on a model of GPU, where its shape names only one.
    `others`: claims of which one would do as well. `parts`: the members of a joint gang, whose claims this is together.
    """

    workload: Workload
    attempt: int
    asks: tuple[Ask, ...]
    shape: Shape
    resources: Resources
    grows: bool = False
    others: tuple[Claim, ...] = ()
    parts: tuple[Claim, ...] = ()

    @property
    def ways(self) -> tuple[Claim, ...]:
        """The claim, and what would do as well, in the order in which they are tried."""
        return (self, *self.others) if self.others else (self,)

    @property
    def id(self) -> WorkloadId:
        """The workload's id."""
        return self.workload.spec.id

    @property
    def place(self) -> tuple[WorkloadId, int]:
        """What tells it from other claims of one turn: its workload and the first surplus number."""
        return self.workload.spec.id, self.asks[0].surplus if self.asks else 0

    @property
    def queue(self) -> QueueId:
        """The queue that is charged."""
        return self.workload.spec.queue

    @property
    def priority(self) -> int:
        """The workload's priority."""
        return self.workload.spec.priority

    @property
    def owner(self) -> str:
        """Whose limits in the queue count."""
        return self.workload.spec.owner

    @property
    def attempts(self) -> int:
        """How many more workloads of its owner run with it."""
        return int(not self.grows)

    def on_models(self, models: tuple[str, ...]) -> Claim:
        """The same with its GPUs of one of these models."""
        shape = replace(self.shape, accelerators=models)
        plain = Resources(tuple(item for item in self.resources if not item[0].startswith(MODEL_PREFIX)))
        return replace(self, shape=shape, resources=with_model(plain, shape))


@dataclass(frozen=True, slots=True)
class Gang:
    """What workloads of equal roles, groups, kind, topology and accelerators ask for to start.

    `others`: further sets of seats that would do as well, where a group needs only some of what is in it.
    """

    asks: tuple[Ask, ...]
    shape: Shape
    resources: Resources
    others: tuple[Gang, ...] = ()

    @property
    def first(self) -> int:
        """The surplus number of its first seat."""
        return self.asks[0].surplus if self.asks else 0


def gang_of(spec: WorkloadSpec) -> Gang:
    """The gang's minimum. Serve's replicas are groups of their own, all others share one."""
    if is_nested(spec):
        first, *others = (_gang_in(spec, layout) for layout in layouts(spec))
        shape = replace(first.shape, others=tuple(other.shape for other in others))
        return replace(first, shape=shape, others=tuple(others))
    asks: list[Ask] = []
    own_groups = spec.kind is Kind.SERVE
    for role in spec.roles:
        for index in range(role.min_count):
            number = len(asks)
            surplus, bundle_index = (number + 1, 0) if own_groups else (0, number)
            asks.append(Ask(role.name, index, role.bundle, surplus, bundle_index, role.countables))
    return Gang(tuple(asks), start_shape(spec), spec.min_charge)


def _gang_in(spec: WorkloadSpec, layout: Layout) -> Gang:
    bundles = layout.cell.bundles
    places = zip(layout.places, (bundle for bundle, count in bundles for _ in range(count)), strict=True)
    asks = tuple(
        Ask(role, index, bundle, 0, number, spec.role(role).countables)
        for number, ((role, index), bundle) in enumerate(places)
    )
    shape = Shape(bundles, spec.topology, True, (), accelerators_of(spec, bundles), layout.cell)
    return Gang(asks, shape, charge_for(asks, shape))


def start_claim(workload: Workload, gang: Gang) -> Claim:
    """The start of the workload's next attempt with its `gang`."""
    others = tuple(start_claim(workload, other) for other in gang.others)
    return Claim(workload, workload.attempt + 1, gang.asks, gang.shape, gang.resources, others=others)


def next_start(workload: Workload) -> Claim:
    """The same where nobody keeps its gang."""
    return start_claim(workload, gang_of(workload.spec))


def start_shape(spec: WorkloadSpec) -> Shape:
    """The shape of the gang's minimum. A gang prefers one node, then one rack …; Serve's replicas don't."""
    bundles = tuple((role.bundle, role.min_count) for role in spec.roles if role.min_count)
    members = sum(count for _, count in bundles)
    packed = spec.kind is not Kind.SERVE and members > 1
    return Shape(bundles, spec.topology, packed, accelerators=accelerators_of(spec, bundles))


def accelerators_of(spec: WorkloadSpec, bundles: tuple[tuple[Resources, int], ...]) -> tuple[str, ...]:
    """Models matter only to what has GPUs."""
    return spec.accelerators if any(uses_devices(bundle) for bundle, _ in bundles) else ()


def held_models(spec: WorkloadSpec, members: tuple[Member, ...], models: Mapping[NodeId, str]) -> tuple[str, ...]:
    """The models that further GPUs of an attempt with these members may be of: the one that it holds, if any.

    `models`: of each node that has one. Members whose node is gone say nothing.
    """
    held = {models[m.node] for m in members if uses_devices(m.bundle) and m.node in models}
    return tuple(model for model in spec.accelerators if model in held) or spec.accelerators


def growth_claim(
    workload: Workload, role: Role, members: tuple[Member, ...], models: Mapping[NodeId, str], nth: int = 0
) -> Claim:
    """One more member of `role` for an attempt that holds (or, in this plan, is given) `members`.

    It keeps to the accelerator model that these hold; `models`: of each node that has one. `nth` counts the growth
    claims of the workload in this turn from 0: each gets an index and a surplus number of its own. Numbers of seats
    that are being left are not used again before they are gone.
    """
    surplus = max((m.surplus for m in members), default=0) + 1 + nth
    index = max((m.index for m in members if m.role == role.name), default=-1) + 1 + nth
    topology = workload.spec.topology
    wanted = topology.required or topology.preferred
    near = tuple(sorted({m.node for m in members})) if wanted is not None else ()
    bundles = ((role.bundle, 1),)
    allowed = accelerators_of(workload.spec, bundles) and held_models(workload.spec, members, models)
    shape = Shape(bundles, topology, False, near, allowed)
    return Claim(
        workload=workload,
        attempt=workload.attempt,
        asks=(Ask(role.name, index, role.bundle, surplus, 0, role.countables),),
        shape=shape,
        resources=with_model(role.charge, shape),
        grows=True,
    )


def staying(allocation: Allocation) -> tuple[Member, ...]:
    """The members that are not being given back."""
    for member in allocation.members:
        if member.phase is MemberPhase.RELEASING:
            return tuple(m for m in allocation.members if m.phase is not MemberPhase.RELEASING)
    return allocation.members


def removable(spec: WorkloadSpec, members: tuple[Member, ...]) -> tuple[Member, ...]:
    """The members that may go while the rest runs, the first to go first: the highest surplus number.

    Those of one surplus number go together.
    """
    if not spec.resizable:
        return ()
    kept = _kept_roles(spec, members)
    found: list[Member] = []
    for role in spec.roles:
        ours = sorted((m for m in members if m.role == role.name), key=lambda m: (m.surplus, m.index))
        found += [m for m in ours[role.min_count if role.name in kept else 0 :] if m.surplus > 0]
    return tuple(sorted(found, key=lambda m: (-m.surplus, m.bundle_index)))


def minimum_of(spec: WorkloadSpec, members: tuple[Member, ...]) -> tuple[Member, ...]:
    """The others: those that stay for as long as the attempt runs."""
    surplus = {member.surplus for member in removable(spec, members)}
    return tuple(member for member in members if member.surplus not in surplus)


def _kept_roles(spec: WorkloadSpec, members: tuple[Member, ...]) -> frozenset[str]:
    """The roles that make up the minimum which this attempt was started with."""
    ways = spec.needed
    if len(ways) == 1:
        return ways[0]
    started = {m.role for m in members if m.surplus == 0}
    return min(ways, key=lambda way: len(way ^ started))


def by_number(members: tuple[Member, ...]) -> list[tuple[Member, ...]]:
    """Members that come and go together: those of one surplus number, in the order in which they are given."""
    found: dict[int, list[Member]] = {}
    for member in members:
        found.setdefault(member.surplus, []).append(member)
    return [tuple(together) for together in found.values()]


def charge_for(asks: Iterable[Ask], shape: Shape) -> Resources:
    """What these seats count for against queues."""
    return with_model(counted(total(part for ask in asks for part in (ask.bundle, ask.countables))), shape)


def with_model(amount: Resources, shape: Shape) -> Resources:
    """The amount, and its GPUs once more under their model where the shape leaves only one."""
    one = shape.accelerators[0] if len(shape.accelerators) == 1 else ""
    return amount + gpus_of_model(one, amount.gpu_units) if one else amount
