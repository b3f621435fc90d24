"""The door: what can't be right is refused with the field named, and so is what this cluster can never hold."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from rayorch.core.device_checks import check_member_devices
from rayorch.core.errors import AdmissionError, SpecError
from rayorch.core.gang_checks import check_gang
from rayorch.core.queue_rules import check_amount, check_limits, check_quota_ever, check_role_names
from rayorch.core.quota import Quota
from rayorch.core.sharing import MODES, RESERVED, device_need
from rayorch.core.timing_checks import check_own_times, check_timing
from rayorch.core.types import (
    GPU,
    MAX_UNITS,
    MODEL_LABEL,
    UNIT,
    QueueSpec,
    Resources,
    Role,
    TopologyRequest,
    WorkloadSpec,
    total,
)
from rayorch.core.wellformed import check_queue_types, check_text, check_types, check_whole

MAX_MEMBERS = 100_000
"""No role may have more members; larger counts are a slip of the pen."""

MAX_ID_LENGTH = 128
"""Bytes: an id is the name of a folder (of its logs), and a file system allows 255."""

_INSTANCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z")


@dataclass(frozen=True, slots=True)
class NodeShape:
    """`max_count` nodes of this size and these labels (topology levels among them) can exist at once.

    `device_mib`: memory of its largest device [MiB], 0 where it is not known.
    """

    total: Resources
    max_count: int
    labels: tuple[tuple[str, str], ...] = ()
    device_mib: int = 0

    def value(self, level: str) -> str | None:
        """The label's value, None when the shape does not have it."""
        return dict(self.labels).get(level)

    def may_be(self, model: str) -> bool:
        """Whether such nodes can have GPUs of the model: where nothing is said of it, as of a pool, they can."""
        return self.total.gpu_units > 0 and self.value(MODEL_LABEL) in (None, model)


def most_gpus(shapes: tuple[NodeShape, ...]) -> float | None:
    """How many GPUs there can be at once, None where it is not known."""
    return sum(shape.total.gpu_units * shape.max_count for shape in shapes) / UNIT if shapes else None


# ---------------------------------------------------------------- what can't be right


def check_workload(spec: WorkloadSpec) -> None:
    """Raise SpecError with the path of the first field that can't be right on any cluster."""
    check_types(spec)
    _check_id("id", spec.id)
    if not spec.roles:
        raise SpecError("roles", "a workload needs at least one role")
    names = [role.name for role in spec.roles]
    if len(set(names)) != len(names):
        raise SpecError("roles", f"two roles have the same name: {sorted(names)}")
    for role in spec.roles:
        _check_role(role)
    if sum(role.min_count for role in spec.roles) == 0:
        raise SpecError("roles", "the gang has no members: the minimum of every role is zero")
    if any(units > MAX_UNITS for _, units in spec.max_resources):
        raise SpecError("roles", "the gang's resources add up to more than can be counted")
    if spec.max_retries < 0:
        raise SpecError("max_retries", f"must not be negative, got {spec.max_retries}")
    check_timing(spec)
    check_gang(spec)


def check_own(spec: WorkloadSpec) -> None:
    """The same of one whose shape has passed (`door.py`): what is its own is looked at, in the same order."""
    for field in ("id", "name", "owner"):
        check_text(getattr(spec, field), field)
    check_whole(spec.priority, "priority")
    _check_id("id", spec.id)
    check_own_times(spec)


def check_instance(name: str) -> None:
    """SpecError unless the name can be a part of actors', groups' and folders' names, where a slash ends it.

    With a slash in it, an instance would take the groups and runners of `a/b` for those of a workload `b` of `a`.
    """
    if not _INSTANCE.match(name):
        raise SpecError("instance", f"must be 1 to 63 letters, digits, '-', '_' and '.', got {name!r}")


def check_queue(spec: QueueSpec) -> None:
    """Raise SpecError with the path of the first field of a queue that can't be right."""
    check_queue_types(spec)
    if not spec.id or any(not part or part != part.strip() for part in spec.id.split("/")):
        raise SpecError("id", f"must be a path of names such as research/nlp, got {spec.id!r}")
    if len(spec.id) > MAX_ID_LENGTH:
        raise SpecError("id", f"is longer than {MAX_ID_LENGTH} characters")
    if spec.weight < 1:
        raise SpecError("weight", f"must be at least 1, got {spec.weight}")
    if spec.min_priority > spec.max_priority:
        raise SpecError("max_priority", f"must be at least min_priority {spec.min_priority}, got {spec.max_priority}")
    if spec.max_pending is not None and spec.max_pending < 0:
        raise SpecError("max_pending", f"must not be negative, got {spec.max_pending}")
    check_limits(spec)


def _check_id(field: str, value: str) -> None:
    if not value or len(value.encode(errors="replace")) > MAX_ID_LENGTH or value != value.strip():
        raise SpecError(field, f"must have 1 to {MAX_ID_LENGTH} bytes without space around them, got {value!r}")
    if value in (".", ".."):
        raise SpecError(field, f"must be able to name a folder, got {value!r}")
    # The id is one part of the placement group's and the runner's names, whose parts are separated by slashes.
    if "/" in value or any(not c.isprintable() for c in value):
        raise SpecError(field, f"must not contain a slash or a control character, got {value!r}")


def _check_role(role: Role) -> None:
    path = f"roles.{role.name}"
    if not role.name:
        raise SpecError("roles", "a role needs a name")
    if role.min_count < 0:
        raise SpecError(f"{path}.min_count", f"must not be negative, got {role.min_count}")
    if role.max_count < max(role.min_count, 1):
        raise SpecError(f"{path}.max_count", f"must be at least {max(role.min_count, 1)}, got {role.max_count}")
    if role.max_count > MAX_MEMBERS:
        raise SpecError(f"{path}.max_count", f"must be at most {MAX_MEMBERS}, got {role.max_count}")
    if not role.bundle:
        raise SpecError(f"{path}.bundle", "asks for nothing")
    check_amount(role.bundle, f"{path}.bundle")
    check_member_devices(role.bundle, f"{path}.bundle")
    check_role_names(role, path)


# ---------------------------------------------------------------- what this cluster can never hold


def check_fits_ever(spec: WorkloadSpec, idle: Quota, shapes: tuple[NodeShape, ...]) -> None:
    """Raise AdmissionError when no state of this cluster could hold the gang's minimum.

    `idle`: the queues with nothing in use. `shapes` empty: the cluster is unknown, all fits.
    """
    check_quota_ever(spec, idle)
    if not shapes:
        return
    whole, parts = spec, _always_needed(spec)
    spec = replace(spec, roles=parts, groups=())
    for role in spec.roles:
        if role.min_count and not any(_times_in(role.bundle, shape) for shape in shapes):
            raise AdmissionError(
                f"roles.{role.name}.bundle", f"no node could ever hold {_words(role.bundle)}; {_largest(shapes)}"
            )
    refusal = _no_domain(spec, shapes)
    if refusal is not None:
        raise refusal
    for field, part in _parts(whole, parts):
        if (refusal := _no_domain(part, shapes)) is not None:
            raise AdmissionError(field, refusal.message)
    if any(role.bundle.gpu_units for role in spec.roles):
        _check_accelerators(spec, shapes)


def _always_needed(spec: WorkloadSpec) -> tuple[Role, ...]:
    """The roles without which the gang does not start in any way."""
    first, *further = spec.needed
    needed = first.intersection(*further)
    return tuple(role for role in spec.roles if role.name in needed)


def _parts(spec: WorkloadSpec, needed: tuple[Role, ...]) -> Iterator[tuple[str, WorkloadSpec]]:
    """(field, it alone as a gang) of every group and segment that must lie in one domain."""
    above = _groups_above(spec)
    for n, group in enumerate(spec.groups):
        roles = tuple(role for role in needed if group.name in above[role.name])
        if group.topology.required is not None and roles:
            yield f"groups[{n}].topology.required", replace(spec, roles=roles, groups=(), topology=group.topology)
    for role in needed:
        for n, segment in enumerate(role.segments if role.min_count else ()):
            one = (replace(role, min_count=segment.size, max_count=segment.size),)
            topology = TopologyRequest(required=segment.level)
            yield f"roles.{role.name}.segments[{n}].level", replace(spec, roles=one, groups=(), topology=topology)


def _groups_above(spec: WorkloadSpec) -> dict[str, set[str]]:
    """The groups that each role lies in, from its own outwards."""
    parents = {group.name: group.parent for group in spec.groups}
    above: dict[str, set[str]] = {}
    for role in spec.roles:
        found, at = above.setdefault(role.name, set()), role.group
        while at:
            found.add(at)
            at = parents.get(at, "")
    return above


def _no_domain(spec: WorkloadSpec, shapes: tuple[NodeShape, ...], model: str = "") -> AdmissionError | None:
    """Why no domain of the required level could ever hold the gang on GPUs of the model (empty: any); None: one can."""
    level = spec.topology.required
    if level is None:
        reason = gang_exceeds(spec, shapes, model)
        return AdmissionError("roles", reason) if reason else None
    reasons = {domain: gang_exceeds(spec, inside, model) for domain, inside in _domains(shapes, level).items()}
    if not reasons:
        return AdmissionError("topology.required", f"no node has a value of the level {level!r}")
    if all(reasons.values()):
        domain, reason = sorted(reasons.items())[0]
        return AdmissionError("topology.required", f"no {level} could ever hold the gang; {level} {domain}: {reason}")
    return None


def _check_accelerators(spec: WorkloadSpec, shapes: tuple[NodeShape, ...]) -> None:
    """Raise AdmissionError when the gang could run here, but on GPUs of none of the models that it names."""
    reasons: list[str] = []
    for model in spec.accelerators:
        if not any(shape.may_be(model) and shape.max_count for shape in shapes):
            reasons.append(f"no node has {model}")
        elif (refusal := _no_domain(spec, shapes, model)) is not None:
            reasons.append(f"{model}: {refusal.message}")
        else:
            return
    if reasons:
        known = sorted({name for shape in shapes if shape.total.gpu_units and (name := shape.value(MODEL_LABEL))})
        there = f"GPUs here are {', '.join(known)}" if known else "the models of the GPUs here are not known"
        raise AdmissionError("accelerators", f"{'; '.join(reasons)}; {there}")


def gang_exceeds(spec: WorkloadSpec, shapes: tuple[NodeShape, ...], model: str = "") -> str:
    """Why nodes of these shapes, all free, could not hold the gang's minimum; empty when they could.

    A necessary test: each role on its own in whole bundles per node, and all roles in sum. With a `model`, GPUs of
    others don't count.
    """
    right = tuple(shape for shape in shapes if shape.may_be(model)) if model else shapes
    for role in spec.roles:
        able = right if role.bundle.gpu_units else shapes
        room = sum(shape.max_count * _times_in(role.bundle, shape) for shape in able)
        if room < role.min_count:
            return f"role {role.name} needs {role.min_count} members, there is room for {room}"
    have = total(shape.total.times(shape.max_count) for shape in shapes)
    gpus = total(shape.total.times(shape.max_count) for shape in right)
    have = Resources.of_units({**dict(have.items), GPU: gpus.gpu_units})
    for name, units in spec.min_resources:
        if name not in RESERVED and units > have.units(name):
            return f"needs {units / UNIT:g} {name} in all, there can be {have.units(name) / UNIT:g}"
    return ""


def _times_in(bundle: Resources, shape: NodeShape) -> int:
    """How many bundles fit one such node; a part of a GPU fits a device, not a sum."""
    need, room = device_need(bundle), shape.total
    counts = [room.units(name) // n for name, n in need.rest if name not in MODES]
    devices = room.gpu_units // UNIT
    if need.units:
        counts.append(devices * (UNIT // need.units) if need.units < UNIT else room.gpu_units // need.units)
    if need.shares and devices < need.shares:
        counts.append(0)
    elif need.share_mib and shape.device_mib:
        counts.append(devices * (shape.device_mib * UNIT // need.share_mib) // need.shares)
    elif need.share_units:
        counts.append(devices * (UNIT // need.share_units) // need.shares)
    return min(counts, default=MAX_MEMBERS)


def _domains(shapes: tuple[NodeShape, ...], level: str) -> Mapping[str, tuple[NodeShape, ...]]:
    if level == "node":
        return {f"node of {_words(s.total)}": (replace(s, max_count=1),) for s in shapes if s.max_count}
    found: dict[str, list[NodeShape]] = {}
    for shape in shapes:
        value = shape.value(level)
        if value is not None:
            found.setdefault(value, []).append(shape)
    return {value: tuple(inside) for value, inside in found.items()}


def _words(amount: Resources) -> str:
    return ", ".join(f"{units / UNIT:g} {name}" for name, units in amount)


def _largest(shapes: tuple[NodeShape, ...]) -> str:
    return "nodes have at most " + "; ".join(sorted({_words(shape.total) for shape in shapes})[:4])
