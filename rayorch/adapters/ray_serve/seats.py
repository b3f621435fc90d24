"""Which seats of a grant are used, which are free, and how many replicas there should be. No Ray here.

A *group* is a placement group that Serve made: one per replica, or one per gang of replicas. It uses one seat, or one
seat per member of the gang. Seats of one role on one node are interchangeable, so everything is counted by node.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rayorch.core.grants import Seat

REPLICA_PREFIX = "SERVE_REPLICA::"
GANG_PREFIX = "SERVE_GANG::"
NODE_ID_LABEL = "ray.io/node-id"
HELD_LABEL = "rayorch.io/held"
"""A label that no node carries. Deployments that need a grant ask for it, so that their replicas wait instead of
taking ungranted GPUs wherever our placement is not in force; our placement replaces it by the seat's node."""

_GANG_REST = re.compile(r"(?P<deployment>.+)_\d+_[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Group:
    """A live group: `nodes` holds one entry per seat that it uses, empty while its place is not known."""

    group_id: str
    name: str
    deployment: str
    nodes: tuple[str, ...]
    created: bool


def deployment_of(group_name: str, app: str) -> str | None:
    """The deployment whose replica or gang a group of that name holds; None when it is not one of this application."""
    if group_name.startswith(REPLICA_PREFIX):
        parts = group_name.removeprefix(REPLICA_PREFIX).split("#")
        return parts[1] if len(parts) == 3 and parts[0] == app else None
    if group_name.startswith(f"{GANG_PREFIX}{app}_"):
        match = _GANG_REST.fullmatch(group_name.removeprefix(f"{GANG_PREFIX}{app}_"))
        return match["deployment"] if match else None
    return None


def group_of_row(row: Mapping[str, Any], app: str) -> Group | None:
    """A row of Ray's table of placement groups as a Group; None when it is removed or not of this application."""
    name, state = str(row["name"]), str(row["state"])
    deployment = deployment_of(name, app)
    if deployment is None or state == "REMOVED":
        return None
    placed = row["bundles_to_node_id"]
    nodes = [str(placed.get(index, "")) for index in sorted(row["bundles"], key=int)]
    # A replica's bundles share a node, so the first one tells; a gang's members have one bundle each.
    used = nodes if name.startswith(GANG_PREFIX) else nodes[:1]
    return Group(str(row["placement_group_id"]), name, deployment, tuple(used), state == "CREATED")


def used_by_node(groups: tuple[Group, ...]) -> Counter[str]:
    """Seats that the groups use, by node; those whose place is unknown under the empty id."""
    return Counter(node for group in groups for node in group.nodes)


def seats_by_node(seats: tuple[Seat, ...]) -> Counter[str]:
    """How many seats each node has."""
    return Counter(seat.node_id for seat in seats)


def free_seats(seats: tuple[Seat, ...], used: Counter[str]) -> tuple[Seat, ...]:
    """The seats that nothing uses, the gang's minimum first.

    A use whose node is unknown may be on any seat, so it takes the first ones.
    """
    left = Counter(used)
    free = []
    for seat in sorted(seats, key=lambda s: (s.surplus, s.index, s.node_id)):
        if left[seat.node_id] > 0:
            left[seat.node_id] -= 1
        else:
            free.append(seat)
    return tuple(free[left[""] :])


def is_within(used: Counter[str], seats: tuple[Seat, ...]) -> bool:
    """Whether every use is on a seat of the grant."""
    known = Counter({node: n for node, n in used.items() if node})
    return known <= seats_by_node(seats) and used.total() <= len(seats)


@dataclass(frozen=True, slots=True)
class Replicas:
    """A deployment's replicas that are not stopping: `running` and `starting` (waiting for a seat included) within
    the grant, and `outside` it."""

    running: int
    starting: int
    outside: int


def target_replicas(granted: int, now: Replicas) -> int:
    """How many replicas Serve should have: as many as there are seats, never below one.

    Serve only knows a number, so a change of place is a sequence of numbers: first those outside the grant leave
    (`GrantScheduler` picks them before others), then the free seats are filled. When none would be left that answers,
    the last one outside stays until one within the grant runs.
    """
    if not now.outside:
        return max(1, granted)
    if now.running:
        return now.running + now.starting
    return now.starting + 1 if now.outside > 1 else granted + 1
