"""Which seats of a grant are used, which are free, and how many replicas there should be. No Ray here.

A *group* is a placement group that Serve made: one per replica, or one per gang of replicas. It uses one seat, or one
seat per member of the gang. Seats of one role on one node are interchangeable, so everything is counted by node.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rayorch.core.device_binding import deal, device_index, devices_of
from rayorch.core.errors import ClusterError
from rayorch.core.grants import Seat
from rayorch.core.types import Resources, total

REPLICA_PREFIX = "SERVE_REPLICA::"
GANG_PREFIX = "SERVE_GANG::"
NODE_ID_LABEL = "ray.io/node-id"
HELD_LABEL = "rayorch.io/held"
"""A label that no node carries. Deployments that need a grant ask for it, so that their replicas wait instead of
taking ungranted GPUs wherever our placement is not in force; our placement replaces it by the seat's node."""

_GANG_REST = re.compile(r"(?P<deployment>.+)_\d+_[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Group:
    """A live group: `nodes` holds one entry per seat that it uses, empty while its place is not known.

    `devices`: per seat, the GPUs that it takes by name; empty when it names none.
    """

    group_id: str
    name: str
    deployment: str
    nodes: tuple[str, ...]
    created: bool
    devices: tuple[tuple[int, ...], ...] = ()

    @property
    def uses(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """(node, GPUs by name) of each seat that it uses."""
        return tuple(zip(self.nodes, self.devices or ((),) * len(self.nodes), strict=True))


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
    bundles = [named_in(row["bundles"][index]) for index in sorted(row["bundles"], key=int)]
    used, taken = (nodes, bundles) if name.startswith(GANG_PREFIX) else (nodes[:1], [total(bundles)])
    devices = tuple(devices_of(amount) for amount in taken)
    return Group(
        str(row["placement_group_id"]),
        name,
        deployment,
        tuple(used),
        state == "CREATED",
        devices if any(devices) else (),
    )


def named_in(bundle: Mapping[str, float]) -> Resources:
    """The GPUs that a bundle of Ray's takes by name."""
    return Resources.of({name: float(n) for name, n in bundle.items() if device_index(name) is not None})


def with_named(bundles: Sequence[Mapping[str, float]], seats: Sequence[Seat]) -> list[dict[str, float]]:
    """A new group's bundles with the GPUs of its seats by name, where those are chosen: a seat per bundle, or one for
    all of them. ClusterError when a seat has fewer GPUs than its bundles ask for.
    """
    parts = [bundles] if len(seats) < len(bundles) else [[bundle] for bundle in bundles]
    made: list[dict[str, float]] = []
    for seat, part in zip(seats, parts, strict=True):
        if not seat.devices:
            made += [dict(bundle) for bundle in part]
            continue
        try:
            made += [amount.to_floats() for amount in deal([Resources.of(bundle) for bundle in part], seat.devices)]
        except ValueError as error:
            raise ClusterError(f"seat {seat.role} {seat.index} is too small for a replica: {error}") from error
    return made


def used_by_node(groups: tuple[Group, ...]) -> Counter[str]:
    """Seats that the groups use, by node; those whose place is unknown under the empty id."""
    return Counter(node for group in groups for node in group.nodes)


def seats_by_node(seats: tuple[Seat, ...]) -> Counter[str]:
    """How many seats each node has."""
    return Counter(seat.node_id for seat in seats)


def named_uses(groups: tuple[Group, ...]) -> Counter[tuple[str, tuple[int, ...]]]:
    """Seats that the groups use with GPUs by name, by (node, GPUs)."""
    return Counter(use for group in groups for use in group.uses if all(use))


def free_seats(
    seats: tuple[Seat, ...], used: Counter[str], named: Counter[tuple[str, tuple[int, ...]]] | None = None
) -> tuple[Seat, ...]:
    """The seats that nothing uses, the gang's minimum first. `named`: those of `used` that name their GPUs.

    A use whose node is unknown may be on any seat, so it takes the first ones. A seat whose GPUs are named by a use of
    another shape (of a seat that was moved) is free only when that has gone.
    """
    left, taken = Counter(used), Counter(named or ())
    others = []
    for seat in sorted(seats, key=lambda s: (s.surplus, s.index, s.node_id)):
        if seat.devices and taken[seat.node_id, seat.devices] > 0:
            taken[seat.node_id, seat.devices] -= 1
            left[seat.node_id] -= 1
        else:
            others.append(seat)
    busy = {(node, device) for (node, devices), n in taken.items() if n > 0 for device in devices}
    in_the_way = [s for s in others if any((s.node_id, device) in busy for device in s.devices)]
    free = []
    for seat in (*in_the_way, *(s for s in others if s not in in_the_way)):
        if left[seat.node_id] > 0:
            left[seat.node_id] -= 1
        else:
            free.append(seat)
    free = [seat for seat in free if seat not in in_the_way]
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
