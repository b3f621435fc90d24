"""A played provider of nodes: groups whose replica counts are changed, and machines that come, fail and go.

It behaves as KubeRay's operator does over a cloud: it makes as many machines as the replica count says, takes those
away that are named, any others when there are still too many, and replaces what is lost or deleted. Nothing here
decides what is needed. Chance comes from the seed only.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rayorch.core.capacity import GroupName, Instance, InstancePhase, NodeGroup
from rayorch.core.decisions import GroupChange
from rayorch.core.errors import AdmissionError, ClusterError, StalePlanError
from rayorch.core.types import UNIT, Device, NodeHealth, NodeId, NodeSpec
from rayorch.sim.world import SimWorld

LEVELS = ("zone", "block", "rack")
"""Labels of a group that are topology levels, from the outermost inwards."""

FAILED_SHOWN_S = 5.0
"""How long a failed machine is shown before the operator replaces it."""

TERMINATION_S = 30.0
"""How long a machine that is deleted while something runs on it still lives: the pod's grace period."""


@dataclass(frozen=True, slots=True)
class GroupPlay:
    """How a group behaves.

    `provision_s`: least and most time from a machine's creation until it is a node. `stock`: machines that can exist
    at once, None without limit; those beyond it stay pending. `refuses`: the words in which every growth is refused,
    empty: none is. `fails`: how many of the next machines fail instead of coming up, with `fail_reason`. `slow_share`
    of all machines take `slow_factor` times as long. `notice_s`: the notice before a spot machine is taken.
    """

    provision_s: tuple[float, float] = (10.0, 20.0)
    stock: int | None = None
    refuses: str = ""
    fails: int = 0
    fail_reason: str = "Failed: image can't be pulled"
    slow_share: float = 0.0
    slow_factor: float = 10.0
    notice_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Patch:
    """One accepted change of a replica count. `ours`: by this system, otherwise by somebody else."""

    at_s: float
    group: GroupName
    from_replicas: int
    to_replicas: int
    ours: bool
    instances: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Removal:
    """One machine that was taken away alive. `busy`: the placement groups that were on it. `named`: by a patch of
    ours; otherwise the operator chose it, somebody deleted it or the cloud took it, as `reason` says."""

    at_s: float
    instance: str
    busy: tuple[str, ...]
    named: bool
    reason: str


@dataclass(slots=True)
class SimMachine:
    """One machine (pod). `due_s`: when it becomes a node, None before it could be scheduled. `until_s`: when it is
    gone at the latest, once it is leaving; `changed_s`: since when it is in its phase."""

    name: str
    replica: str
    group: GroupName
    created_s: float
    phase: InstancePhase = InstancePhase.PENDING
    due_s: float | None = None
    ready_s: float | None = None
    changed_s: float = 0.0
    until_s: float = 0.0
    reason: str = ""

    @property
    def leaving(self) -> bool:
        """It is being taken away."""
        return self.phase is InstancePhase.LEAVING


class SimProvider:
    """See the module's docstring. `patches`, `removals`: all that happened, for checkers."""

    def __init__(self, groups: Mapping[NodeGroup, GroupPlay], seed: int = 0) -> None:
        self.world = SimWorld(())  # until it is given one
        self.groups = {group.name: replace(group, instances=()) for group in groups}
        self.plays = {group.name: play for group, play in groups.items()}
        self.machines: dict[str, SimMachine] = {}
        self.patches: list[Patch] = []
        self.removals: list[Removal] = []
        self.hidden: set[GroupName] = set()
        """Groups that are not listed for now."""
        self._rng = random.Random(seed)
        self._to_delete: dict[GroupName, set[str]] = {name: set() for name in self.groups}
        self._numbers = dict.fromkeys(self.groups, 0)
        self._outage = (0.0, "")
        self._stale: tuple[float, tuple[NodeGroup, ...]] = (0.0, ())

    def begin(self, world: SimWorld, now_s: float) -> None:
        """Provide for this world. The machines that the counts promise are nodes already."""
        self.world = world
        for name in sorted(self.groups):
            group = self.groups[name]
            for _ in range(group.replicas):
                self._make(group, now_s)
        for machine in self.machines.values():
            machine.due_s = now_s
            self._come_up(machine, now_s)

    def made(self, group: GroupName) -> int:
        """How many machines of the group were ever made."""
        return self._numbers[group] * self.groups[group].hosts

    # ------------------------------------------------------------ its API

    def observe(self, now_s: float) -> tuple[NodeGroup, ...]:
        """All groups, by name. ClusterError during an outage; during staleness what was true when that began."""
        self._answer(now_s)
        if now_s < self._stale[0]:
            return self._stale[1]
        return self.truth()

    def truth(self) -> tuple[NodeGroup, ...]:
        """All groups as they are, by name."""
        nodes = self._nodes()
        return tuple(self._shown(self.groups[name], nodes) for name in sorted(self.groups) if name not in self.hidden)

    def scale(self, change: GroupChange, now_s: float) -> None:
        """Patch one replica count, and name what goes.

        StalePlanError when the count, or one of the named machines, is not what the change was made on;
        AdmissionError when it is refused; ClusterError during an outage.
        """
        self._answer(now_s)
        group = self.groups.get(change.group)
        if group is None or group.name in self.hidden:
            raise AdmissionError("", f"there is no group {change.group}")
        if group.replicas != change.from_replicas:
            raise StalePlanError(f"{group.name} has {group.replicas} replicas, not {change.from_replicas}")
        gone = [name for name in change.instances if not self._stands(name)]
        if gone:
            raise StalePlanError(f"{', '.join(gone)} of {group.name} are not there any more")
        play = self.plays[group.name]
        if play.refuses and change.to_replicas > change.from_replicas:
            raise AdmissionError("", play.refuses)
        self._to_delete[group.name].update(change.instances)
        self._patch(group, change.to_replicas, now_s, True, change.instances)

    def _answer(self, now_s: float) -> None:
        if now_s < self._outage[0]:
            raise ClusterError(self._outage[1])

    def _patch(self, group: NodeGroup, to: int, now_s: float, ours: bool, instances: tuple[str, ...] = ()) -> None:
        self.patches.append(Patch(now_s, group.name, group.replicas, to, ours, instances))
        self.groups[group.name] = replace(group, replicas=to)

    def _stands(self, name: str) -> bool:
        machine = self.machines.get(name)
        return machine is not None and machine.phase is not InstancePhase.LEAVING

    def _shown(self, group: NodeGroup, nodes: Mapping[str, NodeId]) -> NodeGroup:
        ours = sorted((m for m in self.machines.values() if m.group == group.name), key=lambda m: m.name)
        instances = tuple(
            Instance(m.name, m.replica, m.phase, m.created_s, m.ready_s, nodes.get(m.name), m.reason) for m in ours
        )
        return replace(group, instances=instances)

    # ------------------------------------------------------------ what people, clouds and networks do

    def play(self, group: GroupName, play: GroupPlay) -> None:
        """From now on the group behaves so."""
        self.plays[group] = play

    def set_replicas(self, group: GroupName, to: int, now_s: float) -> None:
        """Somebody else writes the replica count, and names nobody."""
        self._patch(self.groups[group], to, now_s, False)

    def name_for_removal(self, instance: str) -> None:
        """Somebody else who lowers the count says which machine is to go."""
        self._to_delete[self.machines[instance].group].add(instance)

    def edit(self, group: NodeGroup) -> None:
        """Somebody else changes a group's limits or properties; its replica count stays."""
        self.groups[group.name] = replace(group, replicas=self.groups[group.name].replicas, instances=())

    def delete(self, instance: str, now_s: float) -> None:
        """Somebody deletes a pod: what runs there is told, and has the grace period."""
        if self._stands(instance):
            self._terminate(self.machines[instance], now_s, TERMINATION_S, False, "deleted by hand")

    def notice(self, instance: str, now_s: float) -> None:
        """The cloud will take a spot machine back."""
        if self._stands(instance):
            machine = self.machines[instance]
            self._terminate(machine, now_s, self.plays[machine.group].notice_s, False, "spot machine taken back")

    def out_of_reach(self, until_s: float, error: str = "the API server does not answer") -> None:
        """No call gets an answer until then."""
        self._outage = (until_s, error)

    def stale(self, until_s: float) -> None:
        """Until then everybody is shown what is true now."""
        self._stale = (until_s, self.truth())

    # ------------------------------------------------------------ the operator and the machines

    def tick(self, now_s: float) -> None:
        """Take away, replace, make, and let machines come up."""
        self._bury(now_s)
        for name in sorted(self.groups):
            self._reconcile(self.groups[name], now_s)
        for machine in sorted(self.machines.values(), key=lambda m: (m.created_s, m.name)):
            if machine.phase is InstancePhase.PENDING:
                self._advance(machine, now_s)

    def _bury(self, now_s: float) -> None:
        """Machines whose node is gone, that have failed for a while, or whose grace is over."""
        nodes = self._nodes()
        for machine in list(self.machines.values()):
            node = nodes.get(machine.name)
            over = machine.phase is InstancePhase.LEAVING and (
                now_s >= machine.until_s or node is None or not self.world.holders(node)
            )
            lost = machine.phase is InstancePhase.RUNNING and node is None
            failed = machine.phase is InstancePhase.FAILED and now_s >= machine.changed_s + FAILED_SHOWN_S
            if over or lost or failed:
                del self.machines[machine.name]
                if node is not None:
                    self.world.remove_node(node)
        self.world.forget_away(lambda spec: bool(spec.group))

    def _reconcile(self, group: NodeGroup, now_s: float) -> None:
        named = self._to_delete[group.name]
        for instance in sorted(named):
            machine = self.machines.get(instance)
            if machine is not None:
                for mate in self._replica(machine.replica):
                    self._terminate(mate, now_s, TERMINATION_S, True, "named by a patch")
        named.clear()
        replicas: dict[str, int] = {}
        for machine in self.machines.values():
            if machine.group == group.name and machine.phase is not InstancePhase.LEAVING:
                replicas[machine.replica] = replicas.get(machine.replica, 0) + 1
        for replica, count in sorted(replicas.items()):
            if count < group.hosts:  # a replica lives and dies as one
                for mate in self._replica(replica):
                    self._terminate(mate, now_s, TERMINATION_S, False, "the rest of its replica is gone")
                del replicas[replica]
        surplus = max(0, len(replicas) - group.replicas)
        for replica in self._rng.sample(sorted(replicas), surplus):
            for mate in self._replica(replica):
                self._terminate(mate, now_s, TERMINATION_S, False, "chosen by the operator")
        for _ in range(group.replicas - len(replicas)):
            self._make(group, now_s)

    def _replica(self, replica: str) -> list[SimMachine]:
        found = [m for m in self.machines.values() if m.replica == replica]
        return sorted(found, key=lambda m: m.name)

    def _make(self, group: NodeGroup, now_s: float) -> None:
        self._numbers[group.name] += 1
        base = f"{group.name}-{self._numbers[group.name]}"
        for host in range(group.hosts):
            name = base if group.hosts == 1 else f"{base}-h{host}"
            self.machines[name] = SimMachine(name, base, group.name, now_s, changed_s=now_s)

    def _advance(self, machine: SimMachine, now_s: float) -> None:
        play = self.plays[machine.group]
        if machine.due_s is None:
            if play.stock is not None and self._scheduled(machine.group) >= play.stock:
                machine.reason = f"Unschedulable: all {play.stock} machines of {machine.group} are taken"
                return
            slow = self._rng.random() < play.slow_share
            takes_s = self._rng.uniform(*play.provision_s) * (play.slow_factor if slow else 1.0)
            machine.due_s, machine.reason = now_s + takes_s, "ContainerCreating"
        elif now_s >= machine.due_s:
            if play.fails > 0:
                self.plays[machine.group] = replace(play, fails=play.fails - 1)
                machine.phase, machine.changed_s, machine.reason = InstancePhase.FAILED, now_s, play.fail_reason
                return
            self._come_up(machine, now_s)

    def _come_up(self, machine: SimMachine, now_s: float) -> None:
        machine.phase, machine.ready_s, machine.changed_s, machine.reason = InstancePhase.RUNNING, now_s, now_s, ""
        self.world.add_node(node_of(self.groups[machine.group], machine.name))

    def _scheduled(self, group: GroupName) -> int:
        return sum(1 for m in self.machines.values() if m.group == group and m.due_s is not None)

    def _terminate(self, machine: SimMachine, now_s: float, grace_s: float, named: bool, reason: str) -> None:
        if machine.phase is InstancePhase.LEAVING:
            return
        node = self._nodes().get(machine.name)
        busy = self.world.holders(node) if node is not None else ()
        self.removals.append(Removal(now_s, machine.name, busy, named, reason))
        machine.phase, machine.changed_s, machine.reason = InstancePhase.LEAVING, now_s, reason
        machine.until_s = now_s + grace_s
        if node is not None:
            self.world.drain(node, machine.until_s, reason)

    def _nodes(self) -> dict[str, NodeId]:
        return {spec.instance: id for id, spec in self.world.nodes.items() if spec.instance}


def node_of(group: NodeGroup, instance: str) -> NodeSpec:
    """The Ray node that a machine of the group becomes."""
    return NodeSpec(
        id=NodeId(instance),
        name=instance,
        total=group.total,
        devices=tuple(Device(i, group.model) for i in range(group.total.gpu_units // UNIT)),
        labels=group.labels,
        topology=tuple((level, value) for level in LEVELS if (value := group.label(level)) is not None),
        health=NodeHealth.OK,
        group=group.name,
        instance=instance,
    )
