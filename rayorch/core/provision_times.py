"""How long the nodes of each group take from their order until they have joined, learned from those that came."""

from __future__ import annotations

from collections.abc import Mapping

from rayorch.core.capacity import GroupName, NodeGroup

LEARN_FROM = 20
"""How many of a group's last node creations the estimate is made from."""

QUANTILE = 0.9
"""Which of them: late nodes should be rare, and one straggler in twenty should not set the pace."""

LONGEST_S = 4 * 3600.0
"""A creation that took longer says nothing about the next one (a node that became ready again, a paused cluster)."""


class ProvisionTimes:
    """`default_s`: the estimate before the first."""

    def __init__(self, default_s: float) -> None:
        self._default_s = default_s
        self._took: dict[GroupName, dict[str, float]] = {}
        self._counted: set[tuple[GroupName, str]] = set()

    def see(self, group: NodeGroup) -> None:
        """Learn from those of its machines that have become nodes, from each once."""
        ready = [(i.ready_s, i) for i in group.instances if i.ready_s is not None]
        for ready_s, instance in sorted(ready, key=lambda pair: (pair[0], pair[1].name)):
            if (group.name, instance.name) not in self._counted:
                self._counted.add((group.name, instance.name))
                self.learn(group.name, instance.name, ready_s - instance.created_s)

    def learn(self, group: GroupName, name: str, took_s: float) -> None:
        """One creation took so long."""
        if not 0.0 < took_s <= LONGEST_S:
            return
        took = self._took.setdefault(group, {})
        took[name] = took_s
        while len(took) > LEARN_FROM:
            del took[next(iter(took))]

    def of(self, group: GroupName) -> float:
        """The time that most of the last node creations stayed below; the default before the first."""
        took = sorted(self._took.get(group, {}).values())
        if not took:
            return self._default_s
        return took[min(len(took) - 1, int(QUANTILE * len(took)))]

    def keep(self, groups: Mapping[GroupName, NodeGroup]) -> None:
        """Forget groups and machines that are gone."""
        self._took = {name: took for name, took in self._took.items() if name in groups}
        self._counted &= {(name, i.name) for name, group in groups.items() for i in group.instances}
