"""The door for the shape of a gang: groups, segments and joint gangs that can't be right on any cluster."""

from __future__ import annotations

from rayorch.core.errors import SpecError
from rayorch.core.gang_shape import GroupSpec, JointGang, Segment
from rayorch.core.types import Kind, Role, WorkloadSpec
from rayorch.core.wellformed import check_text, check_topology, check_whole

MAX_GROUPS = 1_000
MAX_DEPTH = 8
"""How deep groups lie in groups."""

MAX_SEGMENTS = 3
"""Segments inside segments of one role."""

MAX_JOINT = 1_000
"""Submissions of one joint gang."""

MAX_NAME = 128


def check_gang(spec: WorkloadSpec) -> None:
    """SpecError with the path of the first field of groups, segments or joint that can't be right."""
    if not isinstance(spec.groups, tuple):
        raise SpecError("groups", f"must be a tuple of groups, got {type(spec.groups).__name__}")
    if len(spec.groups) > MAX_GROUPS:
        raise SpecError("groups", f"has {len(spec.groups)} groups, at most {MAX_GROUPS}")
    for n, group in enumerate(spec.groups):
        _check_group_types(group, f"groups[{n}]")
    _check_tree(spec)
    for role in spec.roles:
        _check_role(spec, role)
    if spec.joint is not None:
        _check_joint(spec.joint)
    nested = spec.groups or any(role.segments for role in spec.roles)
    if spec.kind is Kind.SERVE and (nested or spec.joint is not None):
        field = "joint" if not nested else "groups" if spec.groups else "roles"
        raise SpecError(field, "Serve makes each replica by itself: they are in no groups, segments or joint gangs")
    if not all(any(role.min_count and role.name in way for role in spec.roles) for way in spec.needed):
        raise SpecError("groups", "the gang could start without any member")


def _check_group_types(group: GroupSpec, field: str) -> None:
    if not isinstance(group, GroupSpec):
        raise SpecError(field, f"must be a group, got {group!r}")
    _check_name(group.name, f"{field}.name")
    check_text(group.parent, f"{field}.parent")
    if group.min_children is not None:
        check_whole(group.min_children, f"{field}.min_children")
    check_topology(group.topology, f"{field}.topology")


def _check_name(value: object, field: str) -> None:
    check_text(value, field)
    assert isinstance(value, str)
    if not value or len(value) > MAX_NAME or value != value.strip() or not value.isprintable():
        raise SpecError(
            field, f"must have 1 to {MAX_NAME} printable characters without space around them, got {value!r}"
        )


def _check_tree(spec: WorkloadSpec) -> None:
    """Every group has a parent that exists, lies in the gang in the end, and has as many children as it needs."""
    parents: dict[str, str] = {}
    for n, group in enumerate(spec.groups):
        if group.name in parents:
            raise SpecError(f"groups[{n}].name", f"another group is named {group.name!r}")
        parents[group.name] = group.parent
    children = dict.fromkeys(parents, 0)
    for n, group in enumerate(spec.groups):
        if group.parent and group.parent not in parents:
            raise SpecError(f"groups[{n}].parent", f"there is no group {group.parent!r}")
        if group.parent:
            children[group.parent] += 1
    for n, group in enumerate(spec.groups):
        seen, above = [group.name], group.parent
        while above:
            if above in seen:
                raise SpecError(f"groups[{n}].parent", f"the groups {' in '.join([*seen, above])} lie in each other")
            seen.append(above)
            above = parents[above]
        if len(seen) > MAX_DEPTH:
            raise SpecError(f"groups[{n}].parent", f"lies {len(seen)} groups deep, at most {MAX_DEPTH}")
    for role in spec.roles:
        check_text(role.group, f"roles.{role.name}.group")
        if role.group and role.group not in parents:
            raise SpecError(f"roles.{role.name}.group", f"there is no group {role.group!r}")
        if role.group:
            children[role.group] += 1
    for n, group in enumerate(spec.groups):
        count = children[group.name]
        if not count:
            raise SpecError(f"groups[{n}].name", f"no role or group lies in {group.name!r}")
        if group.min_children is not None and not 1 <= group.min_children <= count:
            raise SpecError(f"groups[{n}].min_children", f"must be from 1 to {count}, got {group.min_children}")


def _check_role(spec: WorkloadSpec, role: Role) -> None:
    path = f"roles.{role.name}.segments"
    if not isinstance(role.segments, tuple):
        raise SpecError(path, f"must be a tuple of segments, got {type(role.segments).__name__}")
    if len(role.segments) > MAX_SEGMENTS:
        raise SpecError(path, f"has {len(role.segments)} levels, at most {MAX_SEGMENTS}")
    outer = 0
    for n, segment in enumerate(role.segments):
        field = f"{path}[{n}]"
        if not isinstance(segment, Segment):
            raise SpecError(field, f"must be a segment, got {segment!r}")
        check_whole(segment.size, f"{field}.size")
        _check_name(segment.level, f"{field}.level")
        if not isinstance(segment.channel, bool):
            raise SpecError(f"{field}.channel", f"must be true or false, got {segment.channel!r}")
        if segment.size < 1:
            raise SpecError(f"{field}.size", f"must be at least 1, got {segment.size}")
        if n and outer % segment.size:
            raise SpecError(
                f"{field}.size", f"must divide the size of the segment around it, {outer}, got {segment.size}"
            )
        if n == 0:
            for name in ("min_count", "max_count"):
                if (count := getattr(role, name)) % segment.size:
                    raise SpecError(f"{field}.size", f"must divide {name} of the role, {count}, got {segment.size}")
        outer = segment.size
    levels = [segment.level for segment in role.segments]
    if len(set(levels)) != len(levels):
        raise SpecError(path, f"names one level twice: {', '.join(levels)}")
    if sum(segment.channel for segment in role.segments) > 1:
        raise SpecError(path, "asks for a channel at two levels: a seat is in one channel")


def _check_joint(joint: JointGang) -> None:
    if not isinstance(joint, JointGang):
        raise SpecError("joint", f"must be a JointGang, got {joint!r}")
    _check_name(joint.name, "joint.name")
    check_whole(joint.count, "joint.count")
    if not 2 <= joint.count <= MAX_JOINT:
        raise SpecError("joint.count", f"must be from 2 to {MAX_JOINT}, got {joint.count}")
