"""The inventory owner's work on node groups in a simulated cluster: it watches them and carries out their changes.

What is under way in a group is kept by `core.node_groups.NodeGroups`, in memory only: a kill loses it, and the next
observation has to do. A change whose patch got no answer is patched again after the next observation, unless that
shows that it took effect: the patch tests the old count, so it can't take effect twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayorch.core.capacity import Capacity, GroupName
from rayorch.core.decisions import GroupChange
from rayorch.core.errors import AdmissionError, ClusterError, StalePlanError
from rayorch.core.node_groups import GroupKnobs, NodeGroups
from rayorch.sim.faults import Actor
from rayorch.sim.groups import SimProvider

if TYPE_CHECKING:
    from rayorch.sim.cluster import SimCluster


class SimScaling:
    """See the module's docstring. `forget_all` is what a kill of the inventory's owner does to it."""

    def __init__(self, cluster: SimCluster, provider: SimProvider) -> None:
        self._cluster = cluster
        self.provider = provider
        self.forget_all()

    def forget_all(self) -> None:
        """The process has died."""
        cluster = self._cluster
        self.groups = NodeGroups(self.provider.kind, GroupKnobs.of(cluster.profile))
        self.groups.unknown("the node groups have not been read since the inventory's start", cluster.now_s)
        self._unsure: dict[GroupName, GroupChange] = {}

    def capacity(self) -> Capacity:
        """What the planner is shown."""
        return self.groups.capacity()

    def turn(self) -> None:
        """Read the groups; then send again what got no answer and has not taken effect."""
        cluster = self._cluster
        try:
            seen = cluster.call(
                Actor.INVENTORY, Actor.PROVIDER, "observe_groups", lambda: self.provider.observe(cluster.now_s)
            )
        except ClusterError as error:
            self.groups.unknown(str(error), cluster.now_s)
            return
        self.groups.observe(seen, cluster.now_s, nodes=cluster.inventory.nodes.values())
        cluster.inventory.set_leaving(self.groups.leaving)
        replicas = {group.name: group.replicas for group in seen}
        for name, change in sorted(self._unsure.items()):
            del self._unsure[name]
            if replicas.get(name) == change.from_replicas:
                self._send(change)

    def change(self, change: GroupChange) -> None:
        """Order one change and carry it out. StalePlanError when the group is not what it was decided on."""
        self.groups.order(change, self._cluster.now_s)
        self._cluster.inventory.set_leaving(self.groups.leaving)
        for node in change.nodes:
            why = self._cluster.call(
                Actor.INVENTORY,
                Actor.RAY,
                "drain_node",
                lambda node=node: self.provider.world.drain_idle(node, self._cluster.now_s, change.reason),  # type: ignore[misc]
            )
            if why:
                self.groups.stay((node,), why, self._cluster.now_s)
        self._send(change)
        self._cluster.inventory.set_leaving(self.groups.leaving)

    def _send(self, change: GroupChange) -> None:
        """Patch the count; of a shrink what is left of it."""
        cluster = self._cluster
        if change.to_replicas < change.from_replicas:
            left = self.groups.shrink(change.group)
            if left is None:
                return
            change = left
        try:
            cluster.call(
                Actor.INVENTORY, Actor.PROVIDER, "scale_group", lambda: self.provider.scale(change, cluster.now_s)
            )
        except AdmissionError as error:
            self.groups.refused(change.group, error.message, cluster.now_s)
        except StalePlanError as error:
            # The next observation shows whether an earlier try of ours has taken effect, or somebody else's change.
            cluster.refusals.append(f"{cluster.now_s:.1f} scale_group: {error}")
            self.groups.stay(change.nodes, str(error), cluster.now_s)
        except ClusterError as error:
            cluster.refusals.append(f"{cluster.now_s:.1f} scale_group: {error}")
            self._unsure[change.group] = change
