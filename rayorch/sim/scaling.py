"""The inventory owner's work on node groups in a simulated cluster: it watches them and carries out their changes.

As on a live cluster a change is ordered in the controller's call and carried out afterwards, in the owner's own time:
Ray drains the nodes of a shrink first, then the count is patched. What is under way is kept in memory only: a kill
loses it, and the next observation has to do. A patch that got no answer is sent again a few times; it tests the old
count, so it can't take effect twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayorch.core.capacity import Capacity, NodeGroup, Provider
from rayorch.core.decisions import GroupChange, Scale
from rayorch.core.errors import AdmissionError, ClusterError, StalePlanError
from rayorch.core.node_groups import GroupKnobs, NodeGroups
from rayorch.core.types import NodeId
from rayorch.sim.autoscaler import SimAutoscaler
from rayorch.sim.faults import Actor
from rayorch.sim.groups import SimProvider

if TYPE_CHECKING:
    from rayorch.sim.cluster import SimCluster

PATCH_TRIES = 3


@dataclass(slots=True)
class _Work:
    """A change on its way. `drained`: its nodes have been asked to leave. `tries`: patches sent."""

    change: GroupChange
    drained: bool = False
    tries: int = 0


class SimScaling:
    """See the module's docstring. `autoscaler`: Ray's, where that changes the counts and we only state our demand.

    `forget_all` is what a kill of the inventory's owner does to it.
    """

    def __init__(self, cluster: SimCluster, provider: SimProvider, autoscaler: SimAutoscaler | None) -> None:
        self._cluster = cluster
        self.provider = provider
        self.autoscaler = autoscaler
        self.forget_all()

    def forget_all(self) -> None:
        """The process has died."""
        cluster = self._cluster
        self.groups = NodeGroups(Provider.RAY if self.autoscaler else Provider.OURS, GroupKnobs.of(cluster.profile))
        self.groups.unknown("the node groups have not been read since the inventory's start", cluster.now_s)
        self._works: list[_Work] = []

    def capacity(self) -> Capacity:
        """What the planner is shown."""
        return self.groups.capacity()

    def change(self, change: GroupChange) -> None:
        """Order one change. StalePlanError when the group is not what it was decided on."""
        self.groups.order(change, self._cluster.now_s)
        self._cluster.inventory.set_leaving(self.groups.leaving)
        self._works.append(_Work(change))

    def demand(self, scale: Scale) -> None:
        """State what is held and wanted, where Ray's autoscaler listens."""
        autoscaler = self.autoscaler
        if autoscaler is not None:
            demand = (*scale.held, *scale.wanted)
            self._cluster.call(Actor.CONTROLLER, Actor.RAY, "demand", lambda: autoscaler.request(demand))

    def tick(self, now_s: float) -> None:
        """What goes on outside: Ray's autoscaler, the operator, the machines."""
        if self.autoscaler is not None:
            self.autoscaler.tick(now_s)
        self.provider.tick(now_s)

    def turn(self) -> None:
        """Read the groups, then go on with what is under way."""
        cluster, groups = self._cluster, self.groups
        try:
            groups.observe(self._read(), cluster.now_s, nodes=cluster.inventory.nodes.values())
        except ClusterError as error:
            groups.unknown(str(error), cluster.now_s)
        cluster.inventory.set_leaving(groups.leaving)
        works, self._works = self._works, []
        for work in works:
            if not self._carry_out(work):
                self._works.append(work)
        cluster.inventory.set_leaving(groups.leaving)

    def _read(self) -> tuple[NodeGroup, ...]:
        cluster = self._cluster
        return cluster.call(
            Actor.INVENTORY, Actor.PROVIDER, "observe_groups", lambda: self.provider.observe(cluster.now_s)
        )

    def _carry_out(self, work: _Work) -> bool:
        """Do what can be done now; True when the change needs nothing more."""
        change = work.change
        grows = change.to_replicas > change.from_replicas
        if not grows:
            if not work.drained:
                work.drained = True
                self._drain(change)
            left = self.groups.shrink(change.group)
            if left is None:
                return True
            change = left
        work.tries += 1
        why = self._patch(change, work.tries)
        if why == "" or (why is None and work.tries < PATCH_TRIES):
            return why is not None
        if grows and why is None and self._count(change) == change.from_replicas:
            self.groups.refused(change.group, "no answer", self._cluster.now_s)  # it can be read, but not written
        elif grows:
            self.groups.withdraw(change.group)  # if it was taken after all, the count will say so
        else:
            self.groups.refused(change.group, why or "no answer", self._cluster.now_s)
        return True

    def _patch(self, change: GroupChange, tries: int) -> str | None:
        """Send it. Empty when it took effect, None when that is not known, otherwise why it did not."""
        cluster = self._cluster
        try:
            cluster.call(
                Actor.INVENTORY, Actor.PROVIDER, "scale_group", lambda: self.provider.scale(change, cluster.now_s)
            )
        except ClusterError as error:
            cluster.refusals.append(f"{cluster.now_s:.1f} scale_group: {error}")
            return None
        except AdmissionError as error:
            self.groups.refused(change.group, error.message, cluster.now_s)
            return ""
        except StalePlanError as error:
            cluster.refusals.append(f"{cluster.now_s:.1f} scale_group: {error}")
            return "" if tries > 1 and self._count(change) == change.to_replicas else str(error)
        return ""

    def _count(self, change: GroupChange) -> int | None:
        """The group's count now, None when that can't be read."""
        try:
            seen = self._read()
        except ClusterError:
            return None
        return next((group.replicas for group in seen if group.name == change.group), None)

    def _drain(self, change: GroupChange) -> None:
        """Ask Ray to end the nodes that go; what it does not let go stays, with the rest of its replica."""
        cluster, world = self._cluster, self.provider.world
        named = set(change.instances)
        nodes = sorted(id for id, node in world.nodes.items() if id in change.nodes or node.instance in named)
        kept = {node: why for node in nodes if (why := world.busy(node))}
        whole = set(kept) | self._together(change, set(kept))
        for node in nodes:
            if node not in whole:
                try:
                    why = cluster.call(
                        Actor.INVENTORY,
                        Actor.RAY,
                        "drain_node",
                        lambda node=node: world.drain_idle(node, cluster.now_s, change.reason),  # type: ignore[misc]
                    )
                except ClusterError as error:
                    why = str(error)
                if why:
                    kept[node] = why
        if kept:
            self.groups.stay(kept, next(iter(kept.values())), cluster.now_s)

    def _together(self, change: GroupChange, busy: set[NodeId]) -> set[NodeId]:
        """The nodes that can only go together with one of these."""
        states = [state for state in self.capacity().groups if state.group.name == change.group]
        instances = [instance for state in states for instance in state.group.instances]
        replicas = {i.replica for i in instances if i.node in busy}
        return {i.node for i in instances if i.replica in replicas and i.node is not None}
