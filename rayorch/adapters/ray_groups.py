"""Placement groups: the one way in which rayorch holds capacity on Ray.

Only the allocator calls the functions here that change something. Ray's private table is read through
`ray.util.placement_group_table`, whose shape `tests/adapters/test_ray_groups.py` checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray._raylet import PlacementGroupID
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

from rayorch.core.errors import ClusterError
from rayorch.core.types import Resources

PREFIX = "rayorch/"
NODE_ID_LABEL = "ray.io/node-id"


def group_handle(group_id: str) -> PlacementGroup:
    """The group with that hex id, whatever namespace it was made in."""
    return PlacementGroup(PlacementGroupID(bytes.fromhex(group_id)))


def create_group(name: str, bundles: tuple[Resources, ...], nodes: tuple[str, ...]) -> PlacementGroup:
    """Ask Ray for a detached group whose bundle i lies on node i. Returns at once; await `ready()` for its creation.

    Detached: it outlives the process that made it, so a restart of the allocator takes nothing from a running gang.
    """
    group: PlacementGroup = placement_group(
        [bundle.to_floats() for bundle in bundles],
        strategy="PACK",
        name=name,
        lifetime="detached",
        bundle_label_selector=[{NODE_ID_LABEL: node} for node in nodes],
    )
    return group


def remove_group(group_id: str) -> None:
    """Remove a group; its actors and tasks die with it. Removing one that is gone does nothing."""
    remove_placement_group(group_handle(group_id))


def group_rows(prefix: str = PREFIX) -> tuple[Mapping[str, Any], ...]:
    """Every live group whose name starts with `prefix`, as Ray's table describes it, sorted by name and id.

    Keys used: placement_group_id, name, state (PENDING, PREPARED, CREATED, RESCHEDULING), bundles
    (index → {resource: amount}), bundles_to_node_id (index → hex id, empty while unplaced).
    """
    try:
        table = placement_group_table()
    except Exception as error:  # the GCS client raises several unrelated classes
        raise ClusterError(f"could not read Ray's placement groups: {error}") from error
    rows = [row for row in table.values() if row["state"] != "REMOVED" and str(row["name"]).startswith(prefix)]
    return tuple(sorted(rows, key=lambda row: (row["name"], row["placement_group_id"])))


def row_bundles(row: Mapping[str, Any]) -> tuple[tuple[str, Resources], ...]:
    """(node id, resources) of each bundle of a table row, in bundle order; the node is empty while unplaced."""
    out: list[tuple[str, Resources]] = []
    for index in sorted(row["bundles"], key=int):
        amounts = {name: float(n) for name, n in row["bundles"][index].items() if not name.startswith("node:")}
        out.append((str(row["bundles_to_node_id"].get(index, "")), Resources.of(amounts)))
    return tuple(out)


def held_by_node(rows: tuple[Mapping[str, Any], ...]) -> dict[str, Resources]:
    """How much of each node the given groups take, placed bundles only."""
    held: dict[str, Resources] = {}
    for row in rows:
        for node, bundle in row_bundles(row):
            if node:
                held[node] = held.get(node, Resources()) + bundle
    return held
