"""By what a running attempt grows next: one member, a whole segment, or a group that it could start without.

What comes together is one placement group under one surplus number, so that it comes and goes as a whole. The role or
group that has least of what it needs goes first, at each level of the tree of groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rayorch.core.planning.claims import Ask, Claim, Shape, accelerators_of, charge_for, growth_claim, held_models
from rayorch.core.planning.groups import Cell, Place, ancestry, is_nested, layout_of, segment
from rayorch.core.types import Member, NodeId, Role, TopologyRequest, Workload, WorkloadSpec

Ratio = tuple[float, int]
"""How much of what it needs a role or group has, then its place among its siblings."""


def growths(
    workload: Workload, members: tuple[Member, ...], wanted: Mapping[str, int], models: Mapping[NodeId, str]
) -> list[Claim]:
    """What the attempt with these members could grow by, the first to try first. `wanted`: members per role at most."""
    spec = workload.spec
    have = counts(members)
    if not is_nested(spec):
        able = [role for role in spec.roles if have.get(role.name, 0) < wanted.get(role.name, 0)]
        able.sort(key=lambda role: have.get(role.name, 0) / max(1, role.min_count))
        return [growth_claim(workload, role, members, models) for role in able]
    steps = _steps(spec, "", have, wanted)
    return [_claim(workload, members, models, group, cell, places) for group, cell, places in steps]


def counts(members: tuple[Member, ...]) -> dict[str, int]:
    """Members per role."""
    found: dict[str, int] = {}
    for member in members:
        found[member.role] = found.get(member.role, 0) + 1
    return found


def missing(workload: Workload, members: tuple[Member, ...], models: Mapping[NodeId, str]) -> Claim | None:
    """All seats that the attempt lacks of its minimum, as one claim; None when it has it."""
    spec, have = workload.spec, counts(members)
    short = {role.name: n for role in spec.roles if (n := role.min_count - have.get(role.name, 0)) > 0}
    lacks = [{name: n for name, n in short.items() if name in way} for way in spec.needed]
    lack = min(lacks, key=lambda way: sum(way.values()))
    if not lack:
        return None
    cells: list[tuple[Cell, int]] = []
    places: list[Place] = []
    for role in spec.roles:
        if count := lack.get(role.name, 0):
            cells.append((_within(spec, role.group, members, Cell(seats=((role.bundle, count),))), 1))
            places += _next(role, members, count)
    return _claim(workload, members, models, "", Cell(inside=tuple(cells)), tuple(places))


# ---------------------------------------------------------------- the tree of groups


def _satisfied(spec: WorkloadSpec, group: str, have: Mapping[str, int]) -> tuple[int, int]:
    """How many children of a group have their minimum, and how many must."""
    roles = [role for role in spec.roles if role.group == group]
    groups = [entry for entry in spec.groups if entry.parent == group]
    whole = sum(have.get(role.name, 0) >= role.min_count for role in roles)
    for entry in groups:
        done, needed = _satisfied(spec, entry.name, have)
        whole += done >= needed
    least = next((entry.min_children for entry in spec.groups if entry.name == group), None)
    return whole, len(roles) + len(groups) if least is None else least


def _steps(
    spec: WorkloadSpec, group: str, have: Mapping[str, int], wanted: Mapping[str, int]
) -> list[tuple[str, Cell, tuple[Place, ...]]]:
    """(group, cell, whose seats) of each step that some part of the group could take."""
    roles = [role for role in spec.roles if role.group == group]
    found: list[tuple[Ratio, list[tuple[str, Cell, tuple[Place, ...]]]]] = []
    for role in roles:
        count = have.get(role.name, 0)
        cell = segment(role, role.segments) if role.segments else Cell(seats=((role.bundle, 1),))
        whole = role.min_count if count < role.min_count else cell.count
        if count + whole > min(wanted.get(role.name, 0), role.max_count):
            continue
        number = whole // cell.count
        step = cell if number == 1 else Cell(inside=((cell, number),))
        places = tuple((role.name, count + nth) for nth in range(whole))
        found.append(((count / max(1, role.min_count), len(found)), [(group, step, places)]))
    for entry in spec.groups:
        if entry.parent != group:
            continue
        done, needed = _satisfied(spec, entry.name, have)
        started = any(have.get(name, 0) for name in _roles_in(spec, entry.name))
        if started:
            steps = _steps(spec, entry.name, have, wanted)
        else:
            layout = layout_of(spec, entry.name, entry.topology, spec.needed_in(entry.name))
            fits = all(wanted.get(name, 0) > index for name, index in layout.places)
            steps = [(group, layout.cell, layout.places)] if layout.places and fits else []
        found.append(((done / max(1, needed), len(found)), steps))
    return [step for _, steps in sorted(found, key=lambda entry: entry[0]) for step in steps]


def _roles_in(spec: WorkloadSpec, group: str) -> list[str]:
    return [role.name for role in spec.roles if group in ancestry(spec, role.group)]


# ---------------------------------------------------------------- the claim


def _next(role: Role, members: tuple[Member, ...], count: int) -> list[Place]:
    first = max((m.index for m in members if m.role == role.name), default=-1) + 1
    return [(role.name, first + nth) for nth in range(count)]


def _within(spec: WorkloadSpec, group: str, members: tuple[Member, ...], cell: Cell) -> Cell:
    """The cell inside the domains that the groups around it, the gang among them, keep to."""
    topologies = {entry.name: entry.topology for entry in spec.groups} | {"": spec.topology}
    for around in ancestry(spec, group):
        topology = topologies[around]
        if topology.required is None and topology.preferred is None:
            continue
        inside = set(_roles_in(spec, around)) if around else {role.name for role in spec.roles}
        near = tuple(sorted({m.node for m in members if m.role in inside}))
        cell = Cell(replace(topology, balanced=False), inside=((cell, 1),), near=near, group=around)
    return cell


def _claim(
    workload: Workload,
    members: tuple[Member, ...],
    models: Mapping[NodeId, str],
    group: str,
    cell: Cell,
    places: tuple[Place, ...],
) -> Claim:
    spec = workload.spec
    layout = _within(spec, group, members, cell)
    bundles = layout.bundles
    surplus = max((m.surplus for m in members), default=0) + 1
    taken = {(m.role, m.index) for m in members}
    asks = []
    each = (bundle for bundle, count in bundles for _ in range(count))
    for number, ((role, index), bundle) in enumerate(zip(places, each, strict=True)):
        while (role, index) in taken:
            index += 1
        taken.add((role, index))
        asks.append(Ask(role, index, bundle, surplus, number, spec.role(role).countables))
    allowed = accelerators_of(spec, bundles) and held_models(spec, members, models)
    shape = Shape(bundles, TopologyRequest(spec.topology.required), False, (), allowed, layout)
    return Claim(
        workload=workload,
        attempt=workload.attempt,
        asks=tuple(asks),
        shape=shape,
        resources=charge_for(asks, shape),
        grows=True,
    )
