"""Node groups of a run: what the plan orders comes after a delay, or never; what it gives back goes at once.

What is under way is kept by the owner that keeps it on a live cluster (`core/node_groups.py`): one change of a group at
a time, deadlines, groups that are left alone after a failure. Here are its provider and the machines: a group has as
many slots as it may have replicas, a machine takes the first free one and its node is called after it, so that what
befalls a slot (`faults.py`) depends on no decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rayorch.core.admission import NodeShape
from rayorch.core.capacity import Capacity, GroupName, Instance, InstancePhase, NodeGroup, Provider
from rayorch.core.decisions import GroupChange
from rayorch.core.errors import SpecError
from rayorch.core.node_groups import GroupKnobs, NodeGroups
from rayorch.core.policy import Profile
from rayorch.core.types import MODEL_LABEL, NodeId, NodeSpec
from rayorch.sim.models import ProvisioningModel, stream
from rayorch.sim.trace.events import NOBODY, Moment, Moments
from rayorch.sim.trace.outcome import NodeStay

ORDERS_IN_VAIN = 12
"""So many orders in a row of which nothing came, with nothing running, and nothing will."""


@dataclass(frozen=True, slots=True)
class Supply:
    """A group whose nodes come and go in a run. `group.replicas`: how many there are at first. `node`: one of them."""

    group: NodeGroup
    node: NodeSpec

    def nodes(self) -> tuple[NodeSpec, ...]:
        """Every node that there may be."""
        return tuple(self.slot(n) for n in range(self.group.max_replicas))

    def slot(self, number: int) -> NodeSpec:
        """The node in a slot."""
        name = f"{self.group.name}-{number:05d}"
        return replace(self.node, id=NodeId(name), name=name, group=self.group.name, instance=name)


@dataclass(slots=True)
class _Machine:
    """One machine. `ready_s`: when its node joined, None before; `order`: of its arrival."""

    slot: int
    created_s: float
    order: int
    ready_s: float | None = None


class Supplies:
    """See the module. `log`: lines on what came and went since it was last taken."""

    def __init__(
        self, supplies: Sequence[Supply], model: ProvisioningModel, profile: Profile, seed: int, moments: Moments
    ) -> None:
        self._of = {GroupName(one.group.name): one for one in check(supplies)}
        self._model, self._seed, self._moments = model, seed, moments
        told_s = max(model.told_s(name, seed) for name in sorted(self._of))
        self._owner = NodeGroups(Provider.OURS, replace(GroupKnobs.of(profile), provision_s=told_s))
        self._idle_s = profile.node_idle_s
        self._replicas = {name: one.group.replicas for name, one in self._of.items()}
        self._machines: dict[GroupName, dict[int, _Machine]] = {
            name: {n: _Machine(n, 0.0, 0, 0.0) for n in range(one.group.replicas)} for name, one in self._of.items()
        }
        self._coming: dict[int, tuple[GroupName, int]] = {}
        self._orders = 0
        self._vain = 0
        self._due_s = 0.0
        self._wakes: set[float] = set()
        self._stays: list[NodeStay] = []
        self.log: list[str] = []

    # ------------------------------------------------------------ what there is

    @property
    def first(self) -> tuple[NodeSpec, ...]:
        """The nodes that are there at first."""
        return tuple(self._of[name].slot(slot) for name in sorted(self._of) for slot in sorted(self._machines[name]))

    @property
    def potential(self) -> tuple[NodeSpec, ...]:
        """All nodes that there may ever be."""
        return tuple(node for name in sorted(self._of) for node in self._of[name].nodes())

    @property
    def shapes(self) -> tuple[NodeShape, ...]:
        """What the door counts with."""
        found = []
        for name in sorted(self._of):
            group, node = self._of[name].group, self._of[name].node
            labels = dict(node.labels) | dict(node.topology)
            if node.total.gpu_units:
                labels[MODEL_LABEL] = node.model
            found.append(NodeShape(group.total, group.max_replicas, tuple(sorted(labels.items()))))
        return tuple(found)

    @property
    def awaited(self) -> bool:
        """Whether nodes may still come, or a group be asked again."""
        return self._vain < ORDERS_IN_VAIN and bool(self._coming or self._wakes)

    def stands(self, node: NodeSpec) -> bool:
        """Whether a node of a group has joined and not been given back; others always have."""
        machines = self._machines.get(GroupName(node.group))
        if machines is None:
            return True
        slots = self._of[GroupName(node.group)]
        return any(m.ready_s is not None and slots.slot(m.slot).id == node.id for m in machines.values())

    def idle_after_s(self, node: NodeSpec) -> float | None:
        """How long a node of a group must have been idle before it goes; None: it is of none."""
        supply = self._of.get(GroupName(node.group))
        if supply is None:
            return None
        return self._idle_s if supply.group.idle_s is None else supply.group.idle_s

    def capacity(self, nodes: Mapping[NodeId, NodeSpec], now_s: float) -> Capacity:
        """What the planner is shown; the owner looks where something has changed or is over its time."""
        if now_s >= self._due_s:
            self._observe(nodes, now_s)
        return self._owner.capacity()

    def _observe(self, nodes: Mapping[NodeId, NodeSpec], now_s: float) -> None:
        self._owner.observe(tuple(self._shown(name) for name in sorted(self._of)), now_s, nodes=nodes.values())
        self._due_s = float("inf")
        self._wakes = {at_s for at_s in self._wakes if at_s > now_s}
        for state in self._owner.capacity().groups:
            times = [state.order.deadline_s] if state.order is not None else []
            times += [state.back_off.until_s] if state.back_off is not None else []
            for at_s in times:
                if at_s > now_s:
                    self._due_s = min(self._due_s, at_s)
                    self.wake(at_s)

    def wake(self, at_s: float) -> None:
        """The plan is asked then, once."""
        if at_s not in self._wakes:
            self._wakes.add(at_s)
            self._moments.put(at_s, Moment.WAKE, NOBODY, 0)

    def changed(self) -> None:
        """Something of the nodes has changed: the owner looks again."""
        self._due_s = 0.0

    def _shown(self, name: GroupName) -> NodeGroup:
        supply = self._of[name]
        instances = []
        for slot in sorted(self._machines[name]):
            machine, node = self._machines[name][slot], supply.slot(slot)
            phase = InstancePhase.PENDING if machine.ready_s is None else InstancePhase.RUNNING
            there = node.id if machine.ready_s is not None else None
            instances.append(Instance(node.name, node.name, phase, machine.created_s, machine.ready_s, there))
        return replace(supply.group, replicas=self._replicas[name], instances=tuple(instances))

    # ------------------------------------------------------------ what happens

    def change(self, change: GroupChange, now_s: float) -> tuple[NodeSpec, ...]:
        """Order it and carry it out; answers the nodes that are gone. StalePlanError where the group is not so."""
        self._owner.order(change, now_s)
        self.changed()
        self._moments.put(now_s, Moment.WAKE, NOBODY, 0)  # the owner looks at it once more
        name, machines = change.group, self._machines[change.group]
        gone: list[NodeSpec] = []
        for slot, machine in sorted(machines.items()):
            node = self._of[name].slot(slot)
            if node.name in change.instances:
                del machines[slot]
                self._coming.pop(machine.order, None)
                if machine.ready_s is not None:
                    gone.append(node)
                    self._stays.append(NodeStay(str(name), node.id, machine.ready_s, now_s))
        self._replicas[name] = change.to_replicas
        if change.to_replicas > change.from_replicas:
            self._vain += 1
            while len(machines) < change.to_replicas:
                self._make(name, now_s)
        self.log.append(f"{now_s!r} group {name} {change.from_replicas} {change.to_replicas} {change.reason}\n")
        return tuple(gone)

    def _make(self, name: GroupName, now_s: float) -> None:
        machines = self._machines[name]
        slot = next(n for n in range(len(machines) + 1) if n not in machines)
        self._orders += 1
        machines[slot] = _Machine(slot, now_s, self._orders)
        delay_s = self._model.draw(name, stream(self._seed, "provisioning", name, self._orders))
        if delay_s is not None:
            self._coming[self._orders] = (name, slot)
            self._moments.put(now_s + delay_s, Moment.JOIN, NOBODY, self._orders)

    def joined(self, order: int, now_s: float) -> NodeSpec | None:
        """A machine has become a node; None: it was given back meanwhile."""
        found = self._coming.pop(order, None)
        if found is None:
            return None
        name, slot = found
        self._machines[name][slot].ready_s = now_s
        self._vain = 0
        self.changed()
        node = self._of[name].slot(slot)
        self.log.append(f"{now_s!r} join {node.id}\n")
        return node

    def stays(self, now_s: float) -> tuple[NodeStay, ...]:
        """When each node was there; those that are, up to now."""
        there = [
            NodeStay(str(name), self._of[name].slot(slot).id, machine.ready_s, now_s)
            for name in sorted(self._of)
            for slot, machine in sorted(self._machines[name].items())
            if machine.ready_s is not None
        ]
        return (*self._stays, *there)


def check(supplies: Iterable[Supply]) -> tuple[Supply, ...]:
    """SpecError for groups that can't be played: none at all, named twice, counts that contradict each other."""
    found = tuple(supplies)
    names = [one.group.name for one in found]
    for n, (name, one) in enumerate(zip(names, found, strict=True)):
        group, at = one.group, f"groups[{n}]"
        if names.count(name) > 1:
            raise SpecError(f"{at}.name", f"{name} is given twice")
        if group.hosts != 1:
            raise SpecError(f"{at}.hosts", f"must be 1 in a run of a trace, got {group.hosts}")
        if not 0 <= group.min_replicas <= group.replicas <= group.max_replicas or group.max_replicas < 1:
            counts = f"{group.min_replicas}, {group.replicas} and {group.max_replicas}"
            raise SpecError(at, f"must have min_replicas <= replicas <= max_replicas and room for one, got {counts}")
        if group.total != one.node.total:
            raise SpecError(f"{at}.total", f"is not what its node has: {one.node.total}")
    return found
