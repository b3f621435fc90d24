"""The simulated outside: nodes and placement groups, as Ray would have them. Nobody here decides anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from rayorch.core.adoption import WorldGroup
from rayorch.core.device_binding import devices_of, split_devices
from rayorch.core.room import Room
from rayorch.core.types import (
    UNIT,
    Allocation,
    Member,
    MemberPhase,
    NodeHealth,
    NodeId,
    NodeSpec,
    Resources,
    WorkloadId,
    total,
)


@dataclass(frozen=True, slots=True)
class SimGroup:
    """One placement group. `lost`: a node under one of its bundles is gone, and with it what ran there."""

    name: str
    group_id: str
    bundles: tuple[tuple[NodeId, Resources], ...]
    asked_s: float
    created: bool = False
    lost: bool = False


class SimWorld:
    """Nodes and groups. A group is created `group_s` after it was asked for, if all its bundles then fit."""

    def __init__(self, nodes: tuple[NodeSpec, ...], group_s: float = 0.2) -> None:
        self._nodes = {node.id: node for node in nodes}
        self._away: dict[NodeId, NodeSpec] = {}
        self._groups: dict[str, SimGroup] = {}
        self._group_s = group_s
        self._count = 0
        self._exiting: list[NodeId] = []
        self.stuck: set[NodeId] = set()
        """Nodes on which no new group ever gets ready, though Ray lists them as fine."""
        self.foreign: dict[NodeId, Resources] = {}
        """What is in use outside our groups."""
        self.changes = 0
        """Grows with every change of a node or a group."""

    # ------------------------------------------------------------ reading

    @property
    def nodes(self) -> Mapping[NodeId, NodeSpec]:
        """The nodes that are up."""
        return self._nodes

    @property
    def groups(self) -> Mapping[str, SimGroup]:
        """All groups by hex id."""
        return self._groups

    @property
    def away(self) -> Mapping[NodeId, NodeSpec]:
        """The nodes that were lost and have not come back."""
        return self._away

    def listing(self) -> tuple[WorldGroup, ...]:
        """The groups as the cluster's table shows them, sorted by name and id."""
        rows = [WorldGroup(g.name, g.group_id, g.bundles, g.created) for g in self._groups.values()]
        return tuple(sorted(rows, key=lambda row: (row.name, row.group_id)))

    def used(self) -> dict[NodeId, Resources]:
        """What is in use on each node, for all that Ray counts; nothing on an idle one."""
        found: dict[NodeId, list[Resources]] = {node: [] for node in self._nodes}
        for group in self._groups.values():
            for node, bundle in group.bundles if group.created else ():
                found.setdefault(node, []).append(bundle)
        for node, amount in self.foreign.items():
            found.setdefault(node, []).append(amount)
        return {node: total(amounts) for node, amounts in found.items()}

    def holders(self, node: NodeId) -> tuple[str, ...]:
        """The names of the groups that have a bundle on the node, and "foreign" if others use it."""
        names = {g.name for g in self._groups.values() if g.created and any(on == node for on, _ in g.bundles)}
        return tuple(sorted(names | ({"foreign"} if self.foreign.get(node) else set())))

    def named(self, name: str) -> SimGroup | None:
        """The group of that name."""
        found = [group for group in self._groups.values() if group.name == name]
        return min(found, key=lambda group: group.group_id) if found else None

    # ------------------------------------------------------------ groups

    def create_group(self, name: str, bundles: tuple[tuple[NodeId, Resources], ...], now_s: float) -> SimGroup:
        """Ask for a group; the one of that name if it exists."""
        known = self.named(name)
        if known is not None:
            return known
        self._count += 1
        group = SimGroup(name, f"{self._count:08x}", bundles, now_s)
        self._groups[group.group_id] = group
        self.changes += 1
        return group

    def remove_group(self, group_id: str) -> None:
        """Remove a group; removing one that is gone does nothing."""
        self._groups.pop(group_id, None)
        self.changes += 1

    def tick(self, now_s: float) -> None:
        """Nodes that were drained while idle exit; then create what was asked for, oldest first, where it fits."""
        for node in self._exiting:
            self.remove_node(node)
        self._exiting.clear()
        for group in sorted(self._groups.values(), key=lambda g: (g.asked_s, g.group_id)):
            if not group.created and now_s >= group.asked_s + self._group_s and self._fits(group, now_s):
                self._groups[group.group_id] = replace(group, created=True)
                self.changes += 1

    def _fits(self, group: SimGroup, now_s: float) -> bool:
        if any(node in self.stuck for node, _ in group.bundles):
            return False
        # Ray starts nothing on a draining node.
        nodes = [replace(n, foreign=self.foreign[n.id]) if n.id in self.foreign else n for n in self._nodes.values()]
        room = Room.of((_as_ray(n) for n in nodes), _as_allocations(self._groups.values()), now_s)
        for node, bundle in group.bundles:
            rest, _ = split_devices(bundle)
            if not room.fits(node, rest):
                return False
            room.take(node, rest)
        return self._names_are_free(group)

    def _names_are_free(self, group: SimGroup) -> bool:
        """Whether the devices that it names are free: Ray counts the names like any resource."""
        taken: dict[tuple[NodeId, int], int] = {}
        for other in (*(g for g in self._groups.values() if g.created), group):
            for node, bundle in other.bundles:
                for device, units in split_devices(bundle)[1]:
                    taken[node, device] = taken.get((node, device), 0) + units
        return all(units <= UNIT for units in taken.values())

    # ------------------------------------------------------------ nodes

    def add_node(self, spec: NodeSpec) -> None:
        """A new machine joins."""
        self._nodes[spec.id] = spec
        self.changes += 1

    def drain(self, node: NodeId, deadline_s: float, reason: str) -> None:
        """The node takes nothing new and is gone at the deadline; there is no way back."""
        spec = self._nodes.get(node)
        if spec is not None:
            by_s = deadline_s if spec.drain_deadline_s is None else min(deadline_s, spec.drain_deadline_s)
            self._nodes[node] = replace(spec, health=NodeHealth.DRAINING, reason=reason, drain_deadline_s=by_s)
            self.changes += 1

    def busy(self, node: NodeId) -> str:
        """Why Ray would not let the node go; empty when it is idle."""
        holders = self.holders(node)
        return f"in use by {', '.join(holders)}" if holders else ""

    def drain_idle(self, node: NodeId, now_s: float, reason: str) -> str:
        """Ask Ray to end a node that is idle. Empty when it does: the node exits at once; otherwise why not."""
        if node not in self._nodes:
            return ""
        why = self.busy(node)
        if why:
            return why
        self.drain(node, now_s, reason)
        self._exiting.append(node)
        return ""

    def remove_node(self, node: NodeId) -> None:
        """The node goes for good."""
        self.lose_node(node)
        self._away.pop(node, None)

    def forget_away(self, which: Callable[[NodeSpec], bool]) -> None:
        """These lost nodes never come back."""
        self._away = {id: spec for id, spec in self._away.items() if not which(spec)}

    def lose_node(self, node: NodeId) -> None:
        """The node dies; bundles on it die with it."""
        spec = self._nodes.pop(node, None)
        if spec is None:
            return
        self._away[node] = spec
        self.changes += 1
        for group in list(self._groups.values()):
            if group.created and any(where == node for where, _ in group.bundles):
                self._groups[group.group_id] = replace(group, lost=True)

    def return_node(self, node: NodeId) -> NodeId | None:
        """The machine comes back: a new Ray node with a new id, as after a restart of its raylet."""
        spec = self._away.pop(node, None)
        if spec is None:
            return None
        self._count += 1
        fresh = NodeId(f"{node.split('~')[0]}~{self._count}")
        self._nodes[fresh] = replace(spec, id=fresh)
        self.changes += 1
        return fresh

    def restart_head(self) -> None:
        """The head restarts without its state: every group is gone and every node has a new id."""
        self._groups.clear()
        self.changes += 1
        for node in sorted(self._nodes):
            self.lose_node(node)
            self.return_node(node)


def _as_ray(node: NodeSpec) -> NodeSpec:
    """The node as Ray counts it: to it a MIG instance is a GPU like any other."""
    if not node.mig_mixed:
        return node
    devices = tuple(replace(device, mig_profile="", memory_bytes=0) for device in node.devices)
    return replace(node, total=node.ray_total, devices=devices, mig_mixed=False)


def _as_allocations(groups: Iterable[SimGroup]) -> list[Allocation]:
    """The created groups in the form that Room charges."""
    out = []
    for group in groups:
        if group.created:
            members = tuple(
                Member("", i, node, split_devices(bundle)[0], 0, i, MemberPhase.READY, devices=devices_of(bundle))
                for i, (node, bundle) in enumerate(group.bundles)
            )
            out.append(Allocation(WorkloadId(group.group_id), 0, members, 0.0, 0.0))
    return out
