"""A played autoscaler of Ray's: it hears one demand and changes the groups by its own rules; we never touch a count.

As Ray's it knows bundles, not gangs: each bundle of the demand is fitted on what exists and what is coming, in order,
and a node is added for what finds no place, up to the group's maximum. Nodes that the demand does not need go when
they have been idle for a while.
"""

from __future__ import annotations

from collections.abc import Iterable

from rayorch.core.capacity import GroupName, NodeGroup
from rayorch.core.decisions import GangDemand
from rayorch.core.types import MODEL_LABEL, NodeId, Resources
from rayorch.sim.groups import SimMachine, SimProvider

Selector = tuple[tuple[str, str], ...]


class SimAutoscaler:
    """See the module's docstring. `requests`: how often the demand has changed; the last one counts."""

    def __init__(self, provider: SimProvider, idle_s: float = 20.0) -> None:
        self.provider = provider
        self.requests = 0
        self._idle_s = idle_s
        self._demand: tuple[GangDemand, ...] = ()
        self._busy_s: dict[str, float] = {}

    def request(self, demand: tuple[GangDemand, ...]) -> None:
        """All that is held and wanted; it replaces the former demand."""
        if demand != self._demand:
            self._demand = demand
            self.requests += 1

    def tick(self, now_s: float) -> None:
        """Add what the demand lacks, take away what has been idle and is not needed."""
        machines = {m.name: m for m in self.provider.machines.values() if not m.leaving}
        room = {name: self.provider.groups[machine.group].total for name, machine in sorted(machines.items())}
        group_of = {name: self.provider.groups[machine.group] for name, machine in machines.items()}
        needed: set[str] = set()
        counts = {name: group.replicas for name, group in self.provider.groups.items()}
        for gang in self._demand:
            for bundle in sorted(gang.bundles, key=lambda b: (-b.gpu_units, repr(b))):
                place = next((n for n in room if bundle.fits_in(room[n]) and _has(group_of[n], gang.selector)), None)
                if place is None:
                    group = self._growable(counts, bundle, gang.selector)
                    if group is None:
                        continue
                    counts[group.name] += 1
                    for host in range(group.hosts):
                        name = f"{group.name} new {counts[group.name]} {host}"
                        room[name], group_of[name] = group.total, group
                    place = f"{group.name} new {counts[group.name]} 0"
                room[place] = room[place] - bundle
                needed.add(place)
        for name, count in sorted(counts.items()):
            if count > self.provider.groups[name].replicas:
                self.provider.set_replicas(name, count, now_s)
        self._take_idle(machines, needed, now_s)

    def _growable(self, counts: dict[GroupName, int], bundle: Resources, selector: Selector) -> NodeGroup | None:
        groups: Iterable[NodeGroup] = (self.provider.groups[name] for name in sorted(self.provider.groups))
        for group in groups:
            free = counts[group.name] < group.max_replicas
            if free and bundle.fits_in(group.total) and _has(group, selector):
                return group
        return None

    def _take_idle(self, machines: dict[str, SimMachine], needed: set[str], now_s: float) -> None:
        for name, machine in sorted(machines.items()):
            if machine.ready_s is None or name in needed or self.provider.world.holders(NodeId(name)):
                self._busy_s[name] = now_s
            group = self.provider.groups[machine.group]
            idle_s = now_s - self._busy_s.setdefault(name, now_s)
            if idle_s >= self._idle_s and group.replicas > group.min_replicas and group.hosts == 1:
                self.provider.name_for_removal(name)
                self.provider.set_replicas(group.name, group.replicas - 1, now_s)
                del self._busy_s[name]


def _has(group: NodeGroup, selector: Selector) -> bool:
    labels = dict(group.labels) | ({MODEL_LABEL: group.model} if group.model else {})
    return all(labels.get(key) == value for key, value in selector)
