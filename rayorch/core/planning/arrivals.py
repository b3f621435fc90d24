"""Node groups beside their nodes: what is there, what is on its way, and what a further node would be like.

A group's replica count is a promise of nodes. Those that are not there yet are on their way, whoever asked for them
and whether or not their machines are listed already; so nothing is asked for twice, not even right after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rayorch.core.capacity import Capacity, GroupName, GroupState, InstancePhase, Provider
from rayorch.core.policy import Profile
from rayorch.core.topology import NODE_LEVEL, Topology
from rayorch.core.types import MODEL_LABEL, UNIT, Device, NodeHealth, NodeId, NodeSpec

REPLACED_WITHIN_S = 60.0
"""How long after its deadline a drained spot node is still taken to be replaced by its provider."""

NOTICE_S = 300.0
"""Spot notices are shorter than this; a longer drain is a person's, and nobody replaces the node meanwhile."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One group: its nodes that exist, those that are on their way, and one like those that it would add.

    `resting_s`: for how long it is left alone because it refused, 0: it may be asked. `expected_s`: when what is on
    its way should be there.
    """

    state: GroupState
    nodes: tuple[NodeSpec, ...]
    arriving: tuple[NodeSpec, ...]
    blank: NodeSpec
    resting_s: float
    expected_s: float

    @property
    def name(self) -> GroupName:
        """The group's name."""
        return self.state.group.name

    @property
    def replicas(self) -> int:
        """How many there will be once what is under way is over; the provider may not show it yet."""
        return _promised(self.state)


def standings(
    capacity: Capacity, nodes: Iterable[NodeSpec], topology: Topology, levels: Iterable[str], now_s: float
) -> dict[GroupName, Standing]:
    """Every group by name, where somebody changes its count: we, or Ray's autoscaler as we demand.

    `levels`: topology levels that workloads ask for; those that no node has yet come after the ones that are known.
    """
    if capacity.provider is Provider.NONE:
        return {}
    order = [level for level in topology.levels if level != NODE_LEVEL]
    order += sorted({level for level in levels if level not in topology.levels})
    members: dict[str, list[NodeSpec]] = {state.group.name: [] for state in capacity.groups}
    for node in nodes:
        if node.group in members and node.health is not NodeHealth.LOST:
            members[node.group].append(node)
    return {
        state.group.name: _standing(state, tuple(members[state.group.name]), order, now_s) for state in capacity.groups
    }


def _standing(state: GroupState, nodes: tuple[NodeSpec, ...], levels: list[str], now_s: float) -> Standing:
    group, order, back_off = state.group, state.order, state.back_off
    resting_s = max(0.0, back_off.until_s - now_s) if back_off is not None else 0.0
    leaving = {i.name for i in group.instances if i.phase is InstancePhase.LEAVING}
    # While an order is open what failed may be replaced. What failed before is among what was given up.
    failed = state.given_up
    if order is None:
        failed = max(failed, sum(i.phase is InstancePhase.FAILED for i in group.instances))
    there = [node for node in nodes if node.instance not in leaving]
    replaced_s = [by_s for node in there if (by_s := _replaced_s(node, group.spot, now_s)) is not None]
    staying = len(there) - len(replaced_s)
    target = _promised(state) * group.hosts
    count = 0 if resting_s else max(0, target - staying - failed)
    blank = _blank(state, nodes, levels)
    expected_s = order.expected_s if order is not None else now_s + state.provision_s
    expected_s = max([expected_s, *(by_s + state.provision_s for by_s in replaced_s)])
    return Standing(
        state=state,
        nodes=nodes,
        arriving=tuple(replace(blank, id=nth(state.group.name, number)) for number in range(count)),
        blank=blank,
        resting_s=resting_s,
        expected_s=max(now_s, expected_s),
    )


def idle_after_s(standing: Standing, profile: Profile) -> float:
    """For how long a node of the group must have been idle before it is given back."""
    idle_s = standing.state.group.idle_s
    return idle_s if idle_s is not None else profile.node_idle_s


def _promised(state: GroupState) -> int:
    if state.shrinks_to is not None:
        return state.shrinks_to
    return max(state.group.replicas, state.order.to_replicas if state.order is not None else 0)


def nth(group: GroupName, number: int) -> NodeId:
    """The id that stands for a node of the group that is not there yet; no node of Ray's has such an id."""
    return NodeId(f"{group}/+{number:04d}")


def _replaced_s(node: NodeSpec, spot: bool, now_s: float) -> float | None:
    """By when a node that is being taken from a spot group is gone; its provider replaces it then."""
    by_s = node.drain_deadline_s
    if not spot or node.health is not NodeHealth.DRAINING or by_s is None:
        return None
    return by_s if -REPLACED_WITHIN_S <= by_s - now_s <= NOTICE_S else None


def _blank(state: GroupState, nodes: tuple[NodeSpec, ...], levels: list[str]) -> NodeSpec:
    """A node as the group would add it, without an id."""
    group = state.group
    units = group.total.gpu_units
    labels = group.labels
    if group.model and group.label(MODEL_LABEL) is None:
        labels = tuple(sorted((*labels, (MODEL_LABEL, group.model))))
    blank = NodeSpec(
        id=NodeId(""),
        name=f"a new node of {group.name}",
        total=group.total,
        devices=tuple(Device(index, group.model) for index in range(units // UNIT)) if units % UNIT == 0 else (),
        labels=labels,
        topology=_path(dict(group.labels), nodes, levels),
        group=group.name,
    )
    return _like(blank, nodes)


def _like(blank: NodeSpec, nodes: tuple[NodeSpec, ...]) -> NodeSpec:
    """The new node with devices as one that is there has them: its memory, its instances, how they are had.

    Of a group that never had a node that is not known, and parts of GPUs are not expected of it.
    """
    read = [node for node in nodes if len(node.devices) == len(blank.devices) and any(d.uuid for d in node.devices)]
    if not read:
        return blank
    model = min(read, key=lambda node: node.id)
    devices = tuple(replace(device, sick="", watch="", lost=False) for device in model.devices)
    return replace(
        blank,
        total=model.total if model.mig_mixed else blank.total,
        devices=devices,
        exact=model.exact,
        mig_mixed=model.mig_mixed,
        sharing=model.sharing,
        replicas=model.replicas,
    )


def _path(labels: Mapping[str, str], nodes: tuple[NodeSpec, ...], levels: list[str]) -> tuple[tuple[str, str], ...]:
    """The group's labels that are levels; the levels around them as all its nodes have them, where it names none.

    A level further in than its own labels is not known of a node that does not exist yet.
    """
    own = [position for position, level in enumerate(levels) if level in labels]
    path: list[tuple[str, str]] = []
    for level in levels[: max(own, default=-1) + 1]:
        seen = {node.domain(level) for node in nodes} if level not in labels else {labels[level]}
        value = seen.pop() if len(seen) == 1 else None
        if value is not None:
            path.append((level, value))
    return tuple(path)
