"""What exists: nodes with their devices, health, foreign use and blocks. One owner; all else is a dated copy.

The facts come in layers (observed, devices, cordoned, leaving, used by others, blocked), each replaced on its own;
`nodes` is their join. Nothing here is durable: nodes are observed again after a restart, devices are reported again
by the nodes' agents, cordons come from the queue owner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rayorch.core.admission import NodeShape
from rayorch.core.changes import ChangeLog
from rayorch.core.device_binding import DeviceShares, split_devices, unnamed
from rayorch.core.device_layer import DeviceLayer
from rayorch.core.devices import DeviceReport
from rayorch.core.events import NodeCordoned
from rayorch.core.sharing import MIB
from rayorch.core.types import GPU, MODEL_LABEL, NodeHealth, NodeId, NodeSpec, Resources

UNNAMED_USE = "GPUs are in use here by somebody who does not say which, so any of them may be; nothing new is put here"
NODE_LABELS = ("ray.io/node-id", "kubernetes.io/hostname", "rayorch.io/instance", "rayorch.io/name")
"""Labels that name one node, and so say nothing about its kind."""


@dataclass(frozen=True, slots=True)
class InventoryChanges:
    """What changed for a reader of an older version; with `full`, `nodes` is everything that exists."""

    version: int
    full: bool
    nodes: tuple[NodeSpec, ...]
    removed: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class _Block:
    until_s: float
    reason: str


class Inventory:
    """See the module's docstring.

    `version` must start above that of any former incarnation (milliseconds since the epoch do), so that a reader's
    old copy is never taken for a new one.
    """

    def __init__(self, version: int = 0) -> None:
        self._version = version
        self._observed: dict[NodeId, NodeSpec] = {}
        self._lost: dict[NodeId, str] = {}
        self._cordons: dict[NodeId, NodeCordoned] = {}
        self._foreign_seen: dict[NodeId, Resources] = {}
        self._foreign: dict[NodeId, Resources] = {}
        self._foreign_devices: dict[NodeId, DeviceShares] = {}
        self._holders: dict[NodeId, tuple[str, ...]] = {}
        self._blocks: dict[NodeId, _Block] = {}
        self._devices = DeviceLayer()
        self._leaving: dict[NodeId, str] = {}
        self._idle_since_s: dict[NodeId, float] = {}
        self._now_s = 0.0
        self._nodes: dict[NodeId, NodeSpec] = {}
        self._log: ChangeLog[NodeId] = ChangeLog(floor=version)
        self._most: dict[NodeShape, int] = {}

    @property
    def version(self) -> int:
        """Grows with every change of a node."""
        return self._version

    @property
    def nodes(self) -> Mapping[NodeId, NodeSpec]:
        """All nodes that exist, and the lost ones that have not been forgotten."""
        return self._nodes

    def changes_since(self, version: int) -> InventoryChanges:
        """What a reader with this version lacks; one with a version of another incarnation gets everything."""
        changed = self._log.since(version)
        if changed is None or version > self._version:
            return InventoryChanges(self._version, True, tuple(self._nodes[id] for id in sorted(self._nodes)), ())
        ids = sorted(changed)
        return InventoryChanges(
            version=self._version,
            full=False,
            nodes=tuple(self._nodes[id] for id in ids if id in self._nodes),
            removed=tuple(id for id in ids if id not in self._nodes),
        )

    # ------------------------------------------------------------ facts

    def observe(self, nodes: tuple[NodeSpec, ...], now_s: float) -> tuple[NodeId, ...]:
        """All live nodes, as Ray lists them now. Answers those that were there before and are not any more.

        A lost node stays, as LOST, until `forget`: the planner has to see that members were on it. A node that is
        seen again is no longer lost.
        """
        self._now_s = now_s
        seen = {node.id: node for node in nodes}
        newly_lost = sorted(id for id in self._observed if id not in seen and id not in self._lost)
        for id in newly_lost:
            self._lost[id] = f"not seen since {now_s:.3f}"
        for id in seen:
            self._lost.pop(id, None)
        self._observed.update(seen)
        self._devices.settle(self._observed, now_s)
        for id in sorted(self._observed):
            self._join(id)
        self._count_shapes()
        return tuple(newly_lost)

    def forget(self, node: NodeId) -> None:
        """Drop a lost node that nothing refers to any more; a live one stays."""
        if self._lost.pop(node, None) is None:
            return
        self._idle_since_s.pop(node, None)
        self._foreign_devices.pop(node, None)
        self._devices.forget(node)
        for layer in (self._observed, self._foreign_seen, self._foreign, self._holders, self._blocks, self._nodes):
            layer.pop(node, None)
        self._touch(node)

    def observe_foreign(
        self,
        used: Mapping[NodeId, Resources],
        held: Mapping[NodeId, Resources],
        holders: Mapping[NodeId, tuple[str, ...]],
    ) -> None:
        """What is in use on each node, what our groups hold of it, and who is known to use the rest.

        The two are never read at the same instant, so a difference counts only when two observations running show
        it, and then only the smaller of the two. A node with nothing in use at all is idle since the first observation
        that showed it so.
        """
        for id in sorted(self._observed):
            if id in used and not used[id] and id not in self._lost:
                self._idle_since_s.setdefault(id, self._now_s)
            else:  # in use, or not known
                self._idle_since_s.pop(id, None)
            excess = unnamed((used.get(id, Resources()) - held.get(id, Resources())).floor_zero())
            before = self._foreign_seen.get(id, Resources())
            self._foreign_seen[id] = excess
            excess = Resources.of_units({n: min(k, before.units(n)) for n, k in excess})
            rest, self._foreign_devices[id] = split_devices(excess)
            self._foreign[id] = rest + Resources.of_units({GPU: sum(n for _, n in self._foreign_devices[id])})
            self._holders[id] = holders.get(id, ()) if self._foreign[id] else ()
            self._join(id)

    def set_idle(self, since_s: Mapping[NodeId, float | None]) -> None:
        """Since when nothing at all is in use on these nodes, None while something is; for who knows it without a look
        at all of them. O(nodes named)."""
        for id in sorted(since_s):
            at_s = since_s[id]
            if id not in self._observed:
                continue
            if at_s is None:
                self._idle_since_s.pop(id, None)
            else:
                self._idle_since_s[id] = at_s
            self._join(id)

    def set_cordons(self, cordons: Mapping[NodeId, NodeCordoned]) -> None:
        """The cordons in force, from the queue owner."""
        self._cordons = dict(cordons)
        for id in sorted(self._observed):
            self._join(id)

    def set_leaving(self, leaving: Mapping[NodeId, str]) -> None:
        """Nodes that their group is giving back, and why: nothing new goes there."""
        changed = {id for id in {*leaving, *self._leaving} if leaving.get(id) != self._leaving.get(id)}
        self._leaving = dict(leaving)
        for id in sorted(changed & self._observed.keys()):
            self._join(id)

    def block(self, nodes: tuple[NodeId, ...], until_s: float, reason: str) -> None:
        """A group could not be made on these nodes: nothing new goes there before `until_s`."""
        for id in nodes:
            old = self._blocks.get(id)
            if id in self._observed and (old is None or until_s > old.until_s):
                self._blocks[id] = _Block(until_s, reason)
                self._join(id)

    def take_devices(self, node: NodeId, report: DeviceReport, now_s: float) -> bool:
        """What a node's agent has read of its GPUs. False when the node does not exist or something newer is known."""
        if node not in self._observed or not self._devices.take(node, report, now_s):
            return False
        self._join(node)
        return True

    def device_report(self, node: NodeId) -> DeviceReport | None:
        """What a node's agent told last of its GPUs, None where it has told nothing."""
        return self._devices.report(node)

    def shapes(self) -> tuple[NodeShape, ...]:
        """Sizes and labels of nodes, with the most that existed at once: a node that is down for a moment counts."""
        return tuple(
            replace(shape, max_count=count)
            for shape, count in sorted(self._most.items(), key=lambda item: (item[0].labels, item[0].total.items))
        )

    # ------------------------------------------------------------ the join

    def _join(self, id: NodeId) -> None:
        """Build the node anew from its layers, and count it as changed if it differs."""
        node = self._devices.applied(self._observed[id])
        cordon = self._cordons.get(id)
        block = self._blocks.get(id)
        if id in self._lost:
            node = replace(node, health=NodeHealth.LOST, reason=self._lost[id])
        elif cordon is not None and cordon.drain_by_s is not None:
            by_s = cordon.drain_by_s
            if node.health is NodeHealth.DRAINING and node.drain_deadline_s is not None:
                by_s = min(by_s, node.drain_deadline_s)
            node = replace(node, health=NodeHealth.DRAINING, reason=cordon.reason, drain_deadline_s=by_s)
        elif cordon is not None and node.health is NodeHealth.OK:
            node = replace(node, health=NodeHealth.CORDONED, reason=cordon.reason)
        elif id in self._leaving and node.health is NodeHealth.OK:
            node = replace(node, health=NodeHealth.CORDONED, reason=self._leaving[id])
        elif block is not None and not node.reason:
            node = replace(node, reason=block.reason)
        joined = replace(
            node,
            foreign=self._foreign.get(id, Resources()),
            foreign_holders=self._holders.get(id, ()),
            blocked_until_s=block.until_s if block is not None else node.blocked_until_s,
            idle_since_s=self._idle_since_s.get(id, node.idle_since_s),
            foreign_devices=self._foreign_devices.get(id, ()),
        )
        if joined.foreign_unnamed and not joined.reason:
            joined = replace(joined, reason=UNNAMED_USE)
        if self._nodes.get(id) != joined:
            self._nodes[id] = joined
            self._touch(id)

    def _touch(self, id: NodeId) -> None:
        self._version += 1
        if id in self._nodes:
            self._log.touch(id, self._version)
        else:
            self._log.drop(id, self._version)

    def _count_shapes(self) -> None:
        now: dict[NodeShape, int] = {}
        for id, node in self._observed.items():
            if id not in self._lost:
                labels = dict(node.labels) | dict(node.topology)
                if node.total.gpu_units:
                    labels[MODEL_LABEL] = node.model  # empty: none that a workload could name
                kept = tuple(sorted((k, v) for k, v in labels.items() if k not in NODE_LABELS))
                joined = self._nodes.get(id, node)
                most_mib = max((device.memory_bytes // MIB for device in joined.devices), default=0)
                shape = NodeShape(joined.total, 0, kept, most_mib)
                now[shape] = now.get(shape, 0) + 1
        for shape, count in now.items():
            self._most[shape] = max(count, self._most.get(shape, 0))


def with_pools(observed: tuple[NodeShape, ...], pools: tuple[NodeShape, ...]) -> tuple[NodeShape, ...]:
    """What can exist: the declared pools at their maximum, and observed nodes that belong to none of them.

    A node belongs to a pool whose labels it has and whose named amounts it does not exceed.
    """
    return (*pools, *(shape for shape in observed if not any(_belongs(shape, pool) for pool in pools)))


def with_groups(
    observed: tuple[NodeShape, ...], pools: tuple[NodeShape, ...], groups: tuple[NodeShape, ...]
) -> tuple[NodeShape, ...]:
    """The same where node groups are known: they go before declared pools that mean the same nodes."""
    others = tuple(pool for pool in pools if not any(_belongs(group, pool) for group in groups))
    return with_pools(observed, (*others, *groups))


def _belongs(shape: NodeShape, pool: NodeShape) -> bool:
    return set(pool.labels) <= set(shape.labels) and all(shape.total.units(name) <= n for name, n in pool.total)
