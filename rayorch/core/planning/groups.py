"""A gang as a tree of cells: which members belong together, from the groups and segments of its spec.

A cell is a set of seats, or of cells, with levels of the topology that it must or should not cross. The gang itself
is the outermost one; a group is a cell, and so is each segment of a role. Equal cells beside each other are kept once,
with their number, so that a role of a thousand segments costs no more than one of two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rayorch.core.types import NodeId, Resources, Role, Segment, TopologyRequest, WorkloadSpec, total

Place = tuple[str, int]
"""A role and a member's index in it."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Seats that belong together: `seats`, runs of equal ones, then those of the cells `inside`, (cell, how many).

    `near`: nodes whose domain a level of `topology` must, or should, keep to. `accelerators`: as of a Shape, where they
    are this cell's own. `channel`: it gets an NVLink channel id of its own. `role`: whose segment it is; `group`: which
    group it is, both for messages.
    """

    topology: TopologyRequest = TopologyRequest()
    seats: tuple[tuple[Resources, int], ...] = ()
    inside: tuple[tuple[Cell, int], ...] = ()
    near: tuple[NodeId, ...] = ()
    accelerators: tuple[str, ...] = ()
    channel: bool = False
    group: str = ""
    role: str = ""
    count: int = field(init=False, compare=False, default=0)
    gpu_units: int = field(init=False, compare=False, default=0)
    has_channels: bool = field(init=False, compare=False, default=False)
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        count = sum(n for _, n in self.seats) + sum(cell.count * n for cell, n in self.inside)
        units = sum(bundle.gpu_units * n for bundle, n in self.seats)
        units += sum(cell.gpu_units * n for cell, n in self.inside)
        object.__setattr__(self, "count", count)
        object.__setattr__(self, "gpu_units", units)
        object.__setattr__(self, "has_channels", self.channel or any(cell.has_channels for cell, _ in self.inside))
        key = (self.topology, self.seats, self.inside, self.near, self.accelerators, self.channel)
        object.__setattr__(self, "_hash", hash(key))

    def __hash__(self) -> int:
        return self._hash

    @property
    def bundles(self) -> tuple[tuple[Resources, int], ...]:
        """All seats in order, runs of equal ones."""
        runs: list[tuple[Resources, int]] = []
        for bundle, count in self._runs():
            if runs and runs[-1][0] == bundle:
                runs[-1] = (bundle, runs[-1][1] + count)
            else:
                runs.append((bundle, count))
        return tuple(runs)

    def _runs(self) -> Iterator[tuple[Resources, int]]:
        yield from self.seats
        for cell, count in self.inside:
            inner = cell.bundles
            if len(inner) == 1:
                yield inner[0][0], inner[0][1] * count
            else:
                for _ in range(count):
                    yield from inner

    @property
    def levels(self) -> frozenset[str]:
        """The levels that it, or something in it, must lie in one domain of."""
        own = frozenset() if self.topology.required is None else frozenset({self.topology.required})
        return own.union(*(cell.levels for cell, _ in self.inside))

    @property
    def resources(self) -> Resources:
        """What all seats take together."""
        return total(bundle.times(count) for bundle, count in self.bundles)


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to make up a gang's minimum: its cell, and whose seats these are, in the cell's order."""

    cell: Cell
    places: tuple[Place, ...]


def is_nested(spec: WorkloadSpec) -> bool:
    """Whether the gang is more than a set of members that all share the same levels."""
    return bool(spec.groups) or spec.topology.balanced or any(role.segments for role in spec.roles)


def required_levels(spec: WorkloadSpec) -> frozenset[str]:
    """The levels that the gang, a group or a segment of it must lie in one domain of."""
    found = {spec.topology.required, *(group.topology.required for group in spec.groups)}
    found.update(segment.level for role in spec.roles for segment in role.segments)
    return frozenset(level for level in found if level is not None)


def layouts(spec: WorkloadSpec) -> tuple[Layout, ...]:
    """The ways to make up the gang's minimum; the one to try first comes first."""
    return tuple(layout_of(spec, "", spec.topology, way) for way in spec.needed)


def layout_of(spec: WorkloadSpec, group: str, topology: TopologyRequest, way: frozenset[str]) -> Layout:
    """The cell of one group ("": the gang itself), of those of its roles that `way` names."""
    roles = [role for role in spec.roles if role.group == group and role.name in way and role.min_count]
    plain = [role for role in roles if not role.segments]
    places = [(role.name, index) for role in plain for index in range(role.min_count)]
    inside: list[tuple[Cell, int]] = []
    for role in roles:
        if role.segments:
            cell = segment(role, role.segments)
            inside.append((cell, role.min_count // cell.count))
            places += [(role.name, index) for index in range(role.min_count)]
    for child in spec.groups:
        if child.parent == group:
            found = layout_of(spec, child.name, child.topology, way)
            if found.cell.count:
                inside.append((found.cell, 1))
                places += found.places
    seats = tuple((role.bundle, role.min_count) for role in plain)
    return Layout(Cell(topology, seats, tuple(inside), group=group), tuple(places))


def segment(role: Role, segments: tuple[Segment, ...]) -> Cell:
    """One segment of a role: the outermost of these, with the further ones inside."""
    first, further = segments[0], segments[1:]
    topology = TopologyRequest(required=first.level)
    if not further:
        return Cell(topology, ((role.bundle, first.size),), channel=first.channel, role=role.name)
    inner = segment(role, further)
    return Cell(topology, inside=((inner, first.size // inner.count),), channel=first.channel, role=role.name)


def ancestry(spec: WorkloadSpec, group: str) -> tuple[str, ...]:
    """The groups from this one outwards, the gang itself ("") last."""
    parents = {entry.name: entry.parent for entry in spec.groups}
    found: list[str] = []
    while group and group not in found:
        found.append(group)
        group = parents.get(group, "")
    return (*found, "")
