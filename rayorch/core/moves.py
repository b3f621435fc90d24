"""Moves that lower fragmentation: what a policy for them sees, and a board on which it tries them.

A *step* gives one seat of a running gang another node. What it brings is how much the fragmentation of the two nodes
falls (`core.fragmentation`); what it costs is the work that the gang loses by being stopped, once, however many of its
seats change. A seat may only go to room that is free without any of the other steps, so that each can be carried out
whatever becomes of the others.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import nsmallest

from rayorch.core.fragmentation import Fragmentation
from rayorch.core.placement import NodeView, PlacementView
from rayorch.core.slot import Slot
from rayorch.core.types import CPU, UNIT, Member, NodeId, Resources, WorkloadId

LOOKS = 200_000
"""How often it is looked at what a kind of seat would do on a node; of more kinds those whose leaving brings most."""
SEATS_OF_KIND = 8
"""Of each kind, so many seats are tried: those whose leaving brings most."""
MOST_KNOWN = 200_000
"""Changes of fragmentation that are kept."""
MOST_KINDS = 1_000
"""Kinds of seats of which it is kept how they rank nodes."""

Kind = tuple[Resources, tuple[str, ...]]
"""Seats that may go to the same nodes: (bundle, the models that will do, none: any)."""
Place = tuple[WorkloadId, int]
"""A seat: whose, and its place among its gang's members."""
Ranking = tuple[dict[NodeId, int], list[tuple[int, NodeId]]]
"""How fragmentation changes on each node that takes a kind of seat, and these nodes by that."""
Device = Callable[[Resources, NodeView, PlacementView], int | None]
"""A device policy (`core.policy.DevicePolicy`)."""


@dataclass(frozen=True, slots=True)
class Mover:
    """A running gang that may be moved. `cost_gpu_s`: the work that is lost by it. `models`: that its GPUs may be of,
    none: any."""

    id: WorkloadId
    members: tuple[Member, ...]
    cost_gpu_s: float
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """A seat goes to a node. `gain`: by how many GPUs fragmentation falls; `net_gpu_s`: what that is worth, less the
    work that is lost."""

    mover: WorkloadId
    seat: int
    node: NodeId
    gain: float
    net_gpu_s: float

    @property
    def key(self) -> tuple[float, WorkloadId, int, NodeId]:
        """The best first; of equals by id."""
        return -self.net_gpu_s, self.mover, self.seat, self.node


def moves_somebody(policy: Callable[..., object]) -> bool:
    """Whether a moves policy may have anything to say; one that never has is marked `nobody`."""
    return getattr(policy, "nobody", False) is not True


def anywhere(mover: Mover, nodes: tuple[NodeId, ...]) -> bool:
    """Any nodes will do."""
    return True


@dataclass(frozen=True, slots=True, eq=False)
class MovesView:
    """What a moves policy may look at.

    `nodes`: with what is free there when all that is leaving has left. `targets`: those of them where a seat may go, at
    once. `movers`: who may be moved, at most `most` of them. `worth_s`: what a GPU of fragmentation less is worth, in
    GPU-seconds. `least_gain`: a step that brings less, in GPUs, is none. `device`: which device a share goes to.
    `allows`: whether a gang may lie on such nodes, one for each of its members. `seed`: of what is drawn.
    """

    nodes: Mapping[NodeId, NodeView]
    targets: frozenset[NodeId]
    movers: tuple[Mover, ...]
    placement: PlacementView
    device: Device
    most: int
    worth_s: float
    least_gain: float
    allows: Callable[[Mover, tuple[NodeId, ...]], bool] = anywhere
    seed: int = 0


class Known:
    """What was worked out for the typical classes of a view.

    `changes`: of fragmentation, by all that decides them. `seen`: the targets of the last board with what was free
    there, and `kinds`: how each kind of seat ranked them.
    """

    def __init__(self, view: PlacementView) -> None:
        self.fragmentation = Fragmentation(view.classes)
        self.changes: dict[tuple[object, ...], int] = {}
        self.seen: dict[NodeId, Slot] = {}
        self.kinds: dict[Kind, Ranking] = {}

    def of(self, node: NodeView, slot: Slot) -> int:
        """F of a node of which so much is free."""
        return self.fragmentation.of(node.model, slot.amounts.get(CPU, 0), tuple(sorted(slot.devices)))


def fragmentation_of(nodes: Mapping[NodeId, NodeView], placement: PlacementView) -> float:
    """The fragmentation of all these nodes, in GPUs; 0 while nothing is typical."""
    known = placement.once(Known)
    scale = known.fragmentation.total * UNIT
    return sum(known.of(node, node.slot) for node in nodes.values()) / scale if scale else 0.0


class Board:
    """What would be free after the steps that were taken on it, and the best ones next.

    Only some seats are looked at: of each kind those whose leaving alone brings most, and a bounded number of kinds.
    """

    def __init__(self, view: MovesView) -> None:
        self.view = view
        self.known = view.placement.once(Known)
        self.scale = self.known.fragmentation.total * UNIT
        self.steps: list[Step] = []
        self._movers = {mover.id: mover for mover in view.movers}
        self._free = {id: node.slot for id, node in view.nodes.items()}
        self._sure = {id: view.nodes[id].slot for id in view.targets}  # nothing comes free there
        self._leaving: dict[Place, int] = {}
        self._on_node: dict[NodeId, list[Place]] = {}
        self._kinds: dict[Kind, Ranking] = {}
        self._moved: dict[WorkloadId, dict[int, NodeId]] = {}
        if self.scale:
            self._choose()

    def copy(self) -> Board:
        """Another board with the same steps taken."""
        twin = Board.__new__(Board)
        twin.view, twin.known, twin.scale, twin.steps = self.view, self.known, self.scale, list(self.steps)
        twin._movers, twin._on_node = self._movers, self._on_node
        twin._free, twin._sure, twin._leaving = dict(self._free), dict(self._sure), dict(self._leaving)
        twin._kinds = {kind: (dict(changes), list(ranked)) for kind, (changes, ranked) in self._kinds.items()}
        twin._moved = {id: dict(seats) for id, seats in self._moved.items()}
        return twin

    @property
    def net_gpu_s(self) -> float:
        """What all steps bring, less all that is lost."""
        return sum(step.net_gpu_s for step in self.steps)

    @property
    def gain(self) -> float:
        """By how many GPUs fragmentation falls with all steps."""
        return sum(step.gain for step in self.steps)

    def options(self, count: int) -> list[Step]:
        """The best next steps, one for each seat at most, also those that do harm: by `Step.key`."""
        found: list[Step] = []
        full = len(self._moved) >= self.view.most
        for place, leaves in self._leaving.items():
            mover = self._movers[place[0]]
            moved = self._moved.get(mover.id)
            if (moved is None and full) or (moved is not None and place[1] in moved):
                continue
            member = mover.members[place[1]]
            target = self._target(mover, place[1], member)
            if target is not None:
                gain = -(leaves + target[0]) / self.scale
                cost_gpu_s = mover.cost_gpu_s if moved is None else 0.0
                found.append(Step(mover.id, place[1], target[1], gain, gain * self.view.worth_s - cost_gpu_s))
        return nsmallest(count, found, key=lambda step: step.key)

    def do(self, step: Step) -> None:
        """Take it."""
        mover = self._movers[step.mover]
        member, view = mover.members[step.seat], self.view
        self._free[member.node] = self._free[member.node].minus(member.bundle.times(-1), member.devices)
        for slots in (self._free, self._sure):
            slot = slots[step.node]
            slots[step.node] = slot.minus(member.bundle, self._devices(member.bundle, view.nodes[step.node], slot))
        self._moved.setdefault(mover.id, {})[step.seat] = step.node
        self.steps.append(step)
        for id in (member.node, step.node):
            for place in self._on_node.get(id, ()):
                self._leaving[place] = self._change_by_leaving(place)
            for kind, (changes, ranked) in self._kinds.items():
                self._rank(kind, id, changes, ranked)

    # ------------------------------------------------------------ what is looked at

    def _choose(self) -> None:
        """The seats that are tried, and where each kind of them would go."""
        scale, worth_s = self.scale, self.view.worth_s
        found: list[tuple[float, Place]] = []
        for mover in self.view.movers:
            for seat, member in enumerate(mover.members):
                if member.node in self._free:
                    place = (mover.id, seat)
                    leaves = self._leaving[place] = self._change_by_leaving(place)
                    found.append((leaves / scale * worth_s + mover.cost_gpu_s, place))
        found.sort()
        chosen: dict[Kind, list[Place]] = {}
        for _, place in found:
            kind = self._kind(place)
            if kind in chosen or len(chosen) < max(1, LOOKS // max(1, len(self.view.targets))):
                places = chosen.setdefault(kind, [])
                if len(places) < SEATS_OF_KIND:
                    places.append(place)
        self._look_again()
        for kind, places in chosen.items():
            known = self.known.kinds.get(kind)
            if known is None:
                known = self.known.kinds[kind] = self._ranked(kind)
            self._kinds[kind] = dict(known[0]), list(known[1])
            for place in places:
                self._on_node.setdefault(self._member(place).node, []).append(place)
        self._leaving = {place: self._leaving[place] for places in chosen.values() for place in places}

    def _look_again(self) -> None:
        """Bring what is known of kinds up to date: nodes of which other things are free now, or that are new."""
        known, sure = self.known, self._sure
        changed = [id for id, slot in sure.items() if known.seen.get(id) is not slot]
        changed += [id for id in known.seen if id not in sure]
        if len(changed) * 2 > len(sure) or len(known.kinds) > MOST_KINDS:
            known.kinds.clear()
        known.seen = dict(sure)
        for kind, (changes, ranked) in known.kinds.items():
            for id in changed:
                self._rank(kind, id, changes, ranked)

    def _ranked(self, kind: Kind) -> Ranking:
        coming = ((id, self._change_by_coming(kind, id)) for id in self._sure)
        changes = {id: change for id, change in coming if change is not None}
        return changes, sorted((change, id) for id, change in changes.items())

    def _member(self, place: Place) -> Member:
        return self._movers[place[0]].members[place[1]]

    def _kind(self, place: Place) -> Kind:
        return self._member(place).bundle, self._movers[place[0]].models

    def _target(self, mover: Mover, seat: int, member: Member) -> tuple[int, NodeId] | None:
        """Where the seat does least harm, of the nodes that it may go to."""
        known = self._kinds.get((member.bundle, mover.models))
        for change, id in known[1] if known is not None else ():
            if id != member.node and self.view.allows(mover, self._nodes(mover, seat, id)):
                return change, id
        return None

    def _nodes(self, mover: Mover, seat: int, node: NodeId) -> tuple[NodeId, ...]:
        """The gang's nodes when the seat has gone there too."""
        moved = self._moved.get(mover.id, {})
        return tuple(node if n == seat else moved.get(n, m.node) for n, m in enumerate(mover.members))

    # ------------------------------------------------------------ changes of fragmentation

    def _change_by_leaving(self, place: Place) -> int:
        member = self._member(place)
        node, slot = self.view.nodes[member.node], self._free[member.node]
        free, sick = (
            (slot.amounts.get(CPU, 0), slot.devices, slot.indices),
            slot.layout.sick,
        )  # where nothing comes free
        key = (node.model, free, sick, member.bundle, member.devices)
        change = self.known.changes.get(key)
        if change is None:
            after = slot.minus(member.bundle.times(-1), member.devices)
            change = self._keep(key, self.known.of(node, after) - self.known.of(node, slot))
        return change

    def _change_by_coming(self, kind: Kind, id: NodeId) -> int | None:
        """None: it does not fit there, or may not go there."""
        if id not in self._sure:
            return None
        bundle, models = kind
        node, slot = self.view.nodes[id], self._free[id]
        if models and bundle.gpu_units and node.model not in models:
            return None
        if not self._sure[id].fits(bundle):
            return None
        key = (node.model, slot.amounts.get(CPU, 0), slot.devices, bundle, slot.layout.exact)
        change = self.known.changes.get(key)
        if change is None:
            after = slot.minus(bundle, self._devices(bundle, node, slot))
            change = self._keep(key, self.known.of(node, after) - self.known.of(node, slot))
        return change

    def _keep(self, key: tuple[object, ...], change: int) -> int:
        if len(self.known.changes) >= MOST_KNOWN:
            self.known.changes.clear()
        self.known.changes[key] = change
        return change

    def _devices(self, bundle: Resources, node: NodeView, slot: Slot) -> tuple[int, ...]:
        """The devices that it would get there."""
        if slot.layout.exact and 0 < bundle.gpu_units < UNIT:
            position = self.view.device(bundle, NodeView(node.spec, slot, node.model), self.view.placement)
            if position is not None:
                return (slot.indices[position],)
        return slot.choose(bundle)

    def _rank(self, kind: Kind, id: NodeId, changes: dict[NodeId, int], ranked: list[tuple[int, NodeId]]) -> None:
        """What the node is for the kind has changed."""
        was = changes.pop(id, None)
        if was is not None:
            del ranked[bisect_left(ranked, (was, id))]
        change = self._change_by_coming(kind, id)
        if change is not None:
            changes[id] = change
            insort(ranked, (change, id))
