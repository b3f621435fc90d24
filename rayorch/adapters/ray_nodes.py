"""Ray's nodes as facts: totals, labels, use, drains. Reads the GCS directly; one pass costs about 2 ms on 8 nodes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import ray
from ray._private import state as ray_state

from rayorch.core.errors import ClusterError
from rayorch.core.types import CPU, GPU, UNIT, Device, NodeHealth, NodeId, NodeSpec, Resources

log = logging.getLogger(__name__)

HEAD_RESOURCE = "node:__internal_head__"
LABEL_PREFIX = "rayorch.io/"
MODEL_LABEL = "ray.io/accelerator-type"
ACCELERATOR_PREFIX = "accelerator_type:"


def _amounts(raw: Mapping[str, float]) -> Resources:
    """Ray's resource map without the names that are not amounts of anything (node:…, group resources)."""
    return Resources.of_units(
        {
            name: round(amount * UNIT)
            for name, amount in raw.items()
            if not name.startswith(("node:", ACCELERATOR_PREFIX)) and "_group_" not in name
        }
    )


def observe_nodes(levels: tuple[str, ...]) -> tuple[NodeSpec, ...]:
    """Every node that Ray calls alive, sorted by id; its topology from the labels `rayorch.io/<level>` or `<level>`.

    `levels` run from the outermost inwards. Nodes that Ray is draining carry DRAINING and Ray's deadline.
    """
    try:
        rows = ray.nodes()
        draining = ray_state.state.get_draining_nodes()
    except Exception as error:  # several unrelated classes while the GCS is away
        raise ClusterError(f"could not read Ray's nodes: {error}") from error
    nodes = [_node(row, levels, draining) for row in rows if row["Alive"]]
    return tuple(sorted(nodes, key=lambda node: node.id))


def _node(row: Mapping[str, Any], levels: tuple[str, ...], draining: Mapping[str, int]) -> NodeSpec:
    labels = {str(k): str(v) for k, v in (row.get("Labels") or {}).items()}
    node_id = NodeId(row["NodeID"])
    total = _amounts(row["Resources"])
    model = labels.get(MODEL_LABEL, "")
    deadline_ms = draining.get(node_id)
    topology = [(level, labels.get(LABEL_PREFIX + level, labels.get(level))) for level in levels]
    return NodeSpec(
        id=node_id,
        name=labels.get(LABEL_PREFIX + "name") or str(row.get("NodeName") or row["NodeManagerAddress"]),
        total=total,
        devices=tuple(Device(index=i, model=model) for i in range(total.units(GPU) // UNIT)),
        labels=tuple(sorted(labels.items())),
        topology=tuple((level, value) for level, value in topology if value is not None),
        health=NodeHealth.OK if deadline_ms is None else NodeHealth.DRAINING,
        reason="" if deadline_ms is None else "Ray drains it",
        drain_deadline_s=None if not deadline_ms else deadline_ms / 1000,
    )


def used_by_node() -> dict[NodeId, Resources]:
    """GPUs and CPUs in use on each node, whoever uses them."""
    try:
        total = ray_state.total_resources_per_node()
        available = ray_state.available_resources_per_node()
    except Exception as error:
        raise ClusterError(f"could not read Ray's use of resources: {error}") from error
    used: dict[NodeId, Resources] = {}
    for node_id, amounts in total.items():
        if node_id in available:  # a node that has just joined has no report yet
            spent = (_amounts(amounts) - _amounts(available[node_id])).floor_zero()
            used[NodeId(node_id)] = Resources.of_units({name: spent.units(name) for name in (CPU, GPU)})
    return used


def foreign_holders(node_ids: frozenset[str], our_groups: frozenset[str]) -> dict[NodeId, tuple[str, ...]]:
    """Which actors of which Ray jobs hold GPUs on these nodes outside our groups (hex ids).

    Read from the GCS, which also answers where the dashboard is off. It does not list tasks: GPUs that those hold
    have no name here.
    """
    from ray.core.generated import gcs_pb2

    messages: Any = gcs_pb2
    holders: dict[NodeId, set[str]] = {}
    try:
        rows = ray_state.state._connect_and_get_accessor().get_actor_table(None, "ALIVE")
    except Exception as error:  # noqa: BLE001 - the amount of foreign use is known all the same
        log.info("who holds foreign GPUs is not known: %s", error)
        return {}
    for row in rows:
        actor = messages.ActorTableData.FromString(row)
        node = NodeId(actor.address.node_id.hex())
        if node in node_ids and actor.required_resources.get(GPU) and actor.placement_group_id.hex() not in our_groups:
            name = f" {actor.name!r}" if actor.name else ""
            holders.setdefault(node, set()).add(f"job {actor.job_id.hex()} actor {actor.class_name}{name}")
    return {node: tuple(sorted(names)) for node, names in holders.items()}


def head_options() -> dict[str, Any]:
    """Actor options that keep an actor on the head, also after the head was replaced (its node id changes)."""
    return {"num_cpus": 0, "resources": {HEAD_RESOURCE: 0.001}}
