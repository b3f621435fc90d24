"""The actor that owns what exists. All rules are in `core.inventory`; this shell observes Ray and keeps the time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray

from rayorch.actors import wire as wire
from rayorch.actors.collecting import collect_seldom
from rayorch.actors.device_reports import device_reports
from rayorch.actors.names import inventory_name, owner_options
from rayorch.actors.poke import Poker, controller_sender
from rayorch.adapters.ray_groups import group_rows, held_by_node
from rayorch.adapters.ray_nodes import Machine, foreign_holders, observe_nodes, used_by_node
from rayorch.core.admission import NodeShape
from rayorch.core.capacity import Capacity
from rayorch.core.decisions import GroupChange
from rayorch.core.devices import DeviceReport
from rayorch.core.errors import ClusterError
from rayorch.core.events import NodeCordoned
from rayorch.core.inventory import Inventory, InventoryChanges, with_groups
from rayorch.core.types import GPU, NodeHealth, NodeId, NodeSpec, Resources
from rayorch.core.views import AutoscalerView

if TYPE_CHECKING:
    from rayorch.actors.node_groups import GroupKeeper, GroupSettings

log = logging.getLogger(__name__)

HOLDERS_PERIOD_S = 10.0
"""Who holds foreign GPUs is asked at most this often: Ray answers with all actors of the cluster."""


@dataclass(frozen=True, slots=True)
class InventorySettings:
    """`levels`: topology levels from the outermost inwards. `period_s`: time between two looks at Ray. `pools`: nodes
    that can be had, whether or not they are there now. `groups`: who provides nodes, None for nobody."""

    instance: str = "main"
    levels: tuple[str, ...] = ("zone", "block", "rack")
    period_s: float = 1.0
    pools: tuple[NodeShape, ...] = ()
    groups: GroupSettings | None = None


@dataclass(frozen=True, slots=True)
class Sight:
    """What a reader's copy lacks. Nodes and groups are of the same moment, so that a node that has joined is never
    missing on one side and still awaited on the other.

    `capacity` None: as the reader has it. `autoscaler`: the last report of Ray's, None where there is none. `notes`:
    what an operator should know of the groups.
    """

    nodes: InventoryChanges
    capacity_version: int = 0
    capacity: Capacity | None = None
    autoscaler: AutoscalerView | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Look:
    """What one look at Ray saw."""

    nodes: tuple[NodeSpec, ...]
    used: dict[NodeId, Resources]
    held: dict[NodeId, Resources]
    groups: frozenset[str]


class InventoryShell:
    """Observes Ray's nodes in a period, and answers with dated copies."""

    async def __init__(self, settings: InventorySettings) -> None:  # type: ignore[misc]  # Ray awaits it
        self._settings = settings
        collect_seldom()
        # Milliseconds since the epoch: above every version of a former incarnation, so no reader's copy seems new.
        self._inventory = Inventory(version=int(time.time() * 1000))
        self._holders: dict[NodeId, tuple[str, ...]] = {}
        self._holders_asked_s = 0.0
        self._served: dict[NodeId, Resources] = {}
        self._machines: dict[NodeId, Machine] = {}
        self._poker = Poker(controller_sender(settings.instance))
        self._groups = self._keeper(settings.groups)
        self._observed = asyncio.Event()
        self._watch = asyncio.create_task(self._observe_forever())

    def _keeper(self, settings: GroupSettings | None) -> GroupKeeper | None:
        if settings is None:
            return None
        from rayorch.actors.node_groups import GroupKeeper  # only where nodes come and go

        keeper = GroupKeeper(settings, self._inventory, self._poker.poke)
        keeper.start()
        return keeper

    async def _observe_forever(self) -> None:
        while True:
            before = self._inventory.version
            try:
                self._take(await asyncio.to_thread(self._look))
                if not self._observed.is_set():
                    await self._recall_devices()
                self._observed.set()
            except ClusterError as error:
                log.warning("nodes not observed, what is known stays: %s", error)
            except Exception:
                log.exception("observing the nodes failed")
            if self._inventory.version != before:
                self._poker.poke()
            await asyncio.sleep(self._settings.period_s)

    async def _recall_devices(self) -> None:
        """Ask the agents that run already how their devices are: a new inventory must not take sick ones for well."""
        for node, report in (await device_reports(self._settings.instance, tuple(self._inventory.nodes))).items():
            self._inventory.take_devices(node, report, time.time())

    def _look(self) -> _Look:
        # Of this instance alone: what another one holds on the same cluster is foreign to us.
        rows = group_rows(f"rayorch/{self._settings.instance}/")
        held = {NodeId(node): amount for node, amount in held_by_node(rows).items()}
        for node, amount in tuple(self._served.items()):
            held[node] = held.get(node, Resources()) + amount
        nodes = observe_nodes(self._settings.levels, self._machines)
        return _Look(nodes, used_by_node(), held, frozenset(row["placement_group_id"] for row in rows))

    def _take(self, sight: _Look) -> None:
        now_s = time.time()
        nodes = sight.nodes if self._groups is None else self._groups.completed(sight.nodes)
        for node in self._inventory.observe(nodes, now_s):
            log.warning("node %s is lost", node)
        known = self._inventory.nodes.values()
        foreign = frozenset(n.id for n in known if n.foreign.units(GPU) and n.health is not NodeHealth.LOST)
        if foreign and now_s - self._holders_asked_s > HOLDERS_PERIOD_S:
            self._holders_asked_s = now_s
            self._holders = foreign_holders(foreign, sight.groups)
        self._inventory.observe_foreign(sight.used, sight.held, self._holders if foreign else {})
        if self._groups is not None:
            self._groups.nodes_changed()

    @ray.method
    async def changes_since(self, version: int) -> InventoryChanges:
        """What changed after `version`; waits for the first look at Ray, so that a new inventory never seems empty."""
        await self._observed.wait()
        return self._inventory.changes_since(version)

    @ray.method
    async def sight_since(self, copy: tuple[int, int]) -> Sight:
        """What changed after a copy, by its versions of the nodes and of the capacity."""
        await self._observed.wait()
        nodes, groups = self._inventory.changes_since(copy[0]), self._groups
        if groups is None:
            return Sight(nodes)
        capacity = groups.capacity() if groups.version != copy[1] else None
        return Sight(nodes, groups.version, capacity, groups.autoscaler, groups.notes())

    @ray.method
    async def change_groups(self, changes: tuple[GroupChange, ...]) -> tuple[str, ...]:
        """Begin to change node groups; answers with why some are not changed. How it goes shows in the capacity."""
        if self._groups is None:
            return tuple(f"group {change.group}: nobody provides nodes here" for change in changes)
        return self._groups.change(changes)

    @ray.method
    async def set_cordons(self, cordons: tuple[NodeCordoned, ...]) -> int:
        """Replace the cordons by those that the journal holds; answers with the version."""
        self._inventory.set_cordons({cordon.node: cordon for cordon in cordons})
        return self._inventory.version

    @ray.method
    async def set_served(self, served: Mapping[NodeId, Resources]) -> None:
        """What the seats of Serve applications take on each node. Serve names their groups, so Ray's table does not
        tell that they are ours."""
        self._served = dict(served)

    @ray.method
    async def take_devices(self, told: tuple[NodeId, DeviceReport]) -> None:
        """(node, report): what a node's agent has read of its GPUs."""
        before = self._inventory.version
        self._inventory.take_devices(*told, time.time())
        if self._inventory.version != before:
            self._poker.poke()

    @ray.method
    async def device_report(self, node: NodeId) -> DeviceReport | None:
        """What the node's agent told last: an agent that was restarted asks for it."""
        return self._inventory.device_report(node)

    @ray.method
    async def block(self, request: tuple[tuple[NodeId, ...], float, str]) -> int:
        """(nodes, until, reason): plan nothing new onto these nodes before that time."""
        nodes, until_s, reason = request
        self._inventory.block(nodes, until_s, reason)
        return self._inventory.version

    @ray.method
    async def forget(self, nodes: tuple[NodeId, ...]) -> int:
        """Drop lost nodes that nothing refers to any more."""
        for node in nodes:
            self._inventory.forget(node)
        return self._inventory.version

    @ray.method
    async def shapes(self) -> tuple[NodeShape, ...]:
        """Sizes of nodes, and how many there can be or were at most: what a workload may hope for.

        Empty, which means unknown, before the groups were read for the first time.
        """
        groups = () if self._groups is None else self._groups.shapes()
        if groups is None:
            return ()
        return with_groups(self._inventory.shapes(), self._settings.pools, groups)

    @ray.method
    async def ping(self) -> int:
        """The version, as a sign of life."""
        return self._inventory.version


NodeInventory = ray.remote(InventoryShell)


def start_inventory(settings: InventorySettings, **options: Any) -> Any:
    """The instance's inventory, created if it does not run; `options` (where it must run) go to Ray."""
    return NodeInventory.options(**owner_options(inventory_name(settings.instance)), **options).remote(settings)
