"""NVLink channels: each segment that asks for one gets a number that no other segment of its domain has.

The number is the one that `nvidia-imex-channels` creates as a device on each node of the domain; two gangs that were
given the same could read each other's memory. It is the seat's as long as somebody holds the seat, leaving or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rayorch.core.gang_shape import Channel
from rayorch.core.planning.groups import Cell
from rayorch.core.topology import Topology
from rayorch.core.types import Member, NodeId

Taken = dict[str, set[int]]
"""The numbers in use in each domain, by the domain's name with its level."""


def in_use(members: Iterable[Member]) -> Taken:
    """The channels of everything that is held."""
    found: Taken = {}
    for member in members:
        if member.channel is not None:
            found.setdefault(member.channel.domain, set()).add(member.channel.number)
    return found


def give(cell: Cell, nodes: Sequence[NodeId], topology: Topology, taken: Taken) -> Mapping[int, Channel]:
    """The channel of each seat (by its place in the cell) that gets one; `taken` is charged."""
    found: dict[int, Channel] = {}
    for first, segment in _segments(cell, 0):
        level = segment.topology.required or ""
        domain = topology.domain_of(level, nodes[first])
        name = f"{level}:{domain.name if domain is not None else nodes[first]}"
        used = taken.setdefault(name, set())
        number = next(n for n in range(len(used) + 1) if n not in used)
        used.add(number)
        found.update(dict.fromkeys(range(first, first + segment.count), Channel(name, number)))
    return found


def _segments(cell: Cell, first: int) -> Iterator[tuple[int, Cell]]:
    """(place of its first seat, segment) of every segment that asks for a channel."""
    if cell.channel:
        yield first, cell
        return
    first += sum(count for _, count in cell.seats)
    for inner, count in cell.inside:
        for _ in range(count if inner.has_channels else 0):
            yield from _segments(inner, first)
            first += inner.count
        first += 0 if inner.has_channels else inner.count * count
