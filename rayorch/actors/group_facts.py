"""What a group's facts mean for its nodes, and what the Cluster document adds to them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rayorch.core.capacity import GroupName, NodeGroup
from rayorch.core.planning.arrivals import NOTICE_S, REPLACED_WITHIN_S
from rayorch.core.types import MODEL_LABEL, NodeHealth, NodeSpec

TOPOLOGY_PREFIX = "rayorch.io/"
"""Groups and nodes may carry the label of a topology level with it."""


@dataclass(frozen=True, slots=True)
class GroupWishes:
    """What the Cluster document says of one group; None leaves what its provider says."""

    name: str
    spares: int | None = None
    idle_s: float | None = None
    preference: int | None = None


def ends_soon(node: NodeSpec, now_s: float) -> bool:
    """Ray drains the node because its machine is being taken away. A drain for long is a person's doing."""
    by_s = node.drain_deadline_s
    if node.health is not NodeHealth.DRAINING or by_s is None:
        return False
    return -REPLACED_WITHIN_S <= by_s - now_s <= NOTICE_S


def as_wished(group: NodeGroup, wish: GroupWishes | None, levels: tuple[str, ...]) -> NodeGroup:
    """With what the Cluster document says of it, and each topology level under its own name."""
    if wish is not None:
        group = replace(
            group,
            spares=group.spares if wish.spares is None else wish.spares,
            idle_s=group.idle_s if wish.idle_s is None else wish.idle_s,
            preference=group.preference if wish.preference is None else wish.preference,
        )
    labels = dict(group.labels)
    for level in levels:
        prefixed = labels.get(TOPOLOGY_PREFIX + level)
        if prefixed is not None:
            labels[level] = prefixed
    return replace(group, labels=tuple(sorted(labels.items())))


def completed(
    node: NodeSpec,
    groups: Mapping[GroupName, NodeGroup],
    machines: Mapping[str, GroupName],
    by_address: Mapping[str, str],
    levels: tuple[str, ...],
) -> NodeSpec:
    """A node with what its group says of all of its nodes; its own word goes first.

    `machines`: group by machine. `by_address`: machine by address, for a node that does not name its own.
    """
    if not node.instance and node.name in by_address:  # a node without a name of its own is called by its address
        instance = by_address[node.name]
        node = replace(node, instance=instance, group=machines[instance])
    group = groups.get(GroupName(node.group))
    if group is None:
        return node
    labels = {**dict(group.labels), **dict(node.labels)}
    known = {**{level: labels[level] for level in levels if level in labels}, **dict(node.topology)}
    return replace(
        node,
        labels=tuple(sorted(labels.items())),
        topology=tuple((level, known[level]) for level in levels if level in known),
        devices=tuple(d if d.model else replace(d, model=group.model) for d in node.devices),
    )


def shape_labels(group: NodeGroup) -> tuple[tuple[str, str], ...]:
    """The labels of the group's nodes as the door knows them, the accelerator model among them."""
    # Empty where the model is not known: such a group serves nobody who names one.
    model = {MODEL_LABEL: group.model} if group.total.gpu_units else {}
    return tuple(sorted({**model, **dict(group.labels)}.items()))
