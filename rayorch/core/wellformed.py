"""The types of what comes through an actor's door. Any process of the cluster can call it, with any object, and what
is accepted stays in the journal and is read by everyone afterwards.
"""

from __future__ import annotations

import math
import re

from rayorch.core.errors import SpecError
from rayorch.core.payload import Payload
from rayorch.core.types import Kind, QueueSpec, Resources, Role, TopologyRequest, WorkloadSpec

MAX_SECONDS = 10 * 365 * 86400.0
MAX_TEXT = 1024 * 1024
"""Characters of one text; the payload holds the most."""

MAX_ACCELERATORS = 16
"""Models that one workload may name: a place is looked for once for each."""

_LABEL_VALUE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?\Z")
_NO_TEXT = re.compile("[\0\ud800-\udfff]")


def check_types(spec: WorkloadSpec) -> None:
    """SpecError with the path of the first field of a workload that holds something else than it says."""
    if not isinstance(spec, WorkloadSpec):
        raise SpecError("", f"must be a WorkloadSpec, got {type(spec).__name__}")
    for field in ("id", "name", "queue", "owner", "payload"):
        check_text(getattr(spec, field), field)
    if not isinstance(spec.kind, Kind):
        raise SpecError("kind", f"must be a Kind, got {spec.kind!r}")
    for field in ("priority", "max_retries"):
        check_whole(getattr(spec, field), field)
    for field in ("grace_s", "min_runtime_s"):
        check_seconds(getattr(spec, field), field)
    for field in ("preemptible", "resizable"):
        if not isinstance(getattr(spec, field), bool):
            raise SpecError(field, f"must be true or false, got {getattr(spec, field)!r}")
    check_topology(spec.topology, "topology")
    check_accelerators(spec.accelerators, "accelerators")
    if not isinstance(spec.any_model, bool):
        raise SpecError("any_model", f"must be true or false, got {spec.any_model!r}")
    if not isinstance(spec.roles, tuple):
        raise SpecError("roles", f"must be a tuple of roles, got {type(spec.roles).__name__}")
    for n, role in enumerate(spec.roles):
        _check_role_types(role, f"roles[{n}]")
    Payload.of_text(spec.payload)  # whoever lists workloads reads it


def check_topology(topology: TopologyRequest, field: str) -> None:
    """SpecError unless it is one whose levels are text."""
    if not isinstance(topology, TopologyRequest):
        raise SpecError(field, f"must be a TopologyRequest, got {topology!r}")
    for name in ("required", "preferred"):
        level = getattr(topology, name)
        if level is not None:
            check_text(level, f"{field}.{name}")
    if not isinstance(topology.balanced, bool):
        raise SpecError(f"{field}.balanced", f"must be true or false, got {topology.balanced!r}")


def check_accelerators(models: tuple[str, ...], field: str) -> None:
    """SpecError unless it is a short tuple of different names, each of which can be the value of a node's label."""
    if not isinstance(models, tuple):
        raise SpecError(field, f"must be a tuple of models, got {type(models).__name__}")
    if len(models) > MAX_ACCELERATORS:
        raise SpecError(field, f"names {len(models)} models, at most {MAX_ACCELERATORS}")
    for n, model in enumerate(models):
        check_text(model, f"{field}[{n}]")
        if not _LABEL_VALUE.match(model):
            raise SpecError(f"{field}[{n}]", f"must be a model's name as nodes are labelled with, got {model!r}")
        if model in models[:n]:
            raise SpecError(f"{field}[{n}]", f"names {model} a second time")


def check_queue_types(spec: QueueSpec) -> None:
    """The same for a queue."""
    if not isinstance(spec, QueueSpec):
        raise SpecError("", f"must be a QueueSpec, got {type(spec).__name__}")
    check_text(spec.id, "id")
    if any(part in (".", "..") or not part.isprintable() for part in spec.id.split("/")):
        raise SpecError("id", f"must be a path of names such as research/nlp, got {spec.id!r}")
    for field in ("weight", "min_priority", "max_priority"):
        check_whole(getattr(spec, field), field)
    if spec.max_pending is not None:
        check_whole(spec.max_pending, "max_pending")
    if spec.strict is not None and not isinstance(spec.strict, bool):
        raise SpecError("strict", f"must be true, false or nothing, got {spec.strict!r}")


def check_text(value: object, field: str) -> None:
    """SpecError unless it is text that a file, a command and a JSON answer can hold."""
    if not isinstance(value, str):
        raise SpecError(field, f"must be text, got {value!r}")
    if len(value) > MAX_TEXT:
        raise SpecError(field, f"has {len(value)} characters, at most {MAX_TEXT}")
    if _NO_TEXT.search(value):
        raise SpecError(field, "holds a NUL or half a character (surrogate)")


def check_seconds(value: object, field: str) -> None:
    """SpecError unless it is a finite length of time of at most ten years."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SpecError(field, f"must be a number of seconds, got {value!r}")
    if not (0 <= value <= MAX_SECONDS):
        raise SpecError(field, f"must be a finite number of seconds from 0 to ten years, got {value!r}")


def check_moment(value: object, field: str) -> None:
    """SpecError unless it is a time since the epoch."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SpecError(field, f"must be a time in seconds, got {value!r}")


def check_whole(value: object, field: str) -> None:
    """SpecError unless it is a whole number that every reader of JSON keeps exactly."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**53:
        raise SpecError(field, f"must be a whole number below 2**53, got {value!r}")


def _check_role_types(role: Role, field: str) -> None:
    if not isinstance(role, Role):
        raise SpecError(field, f"must be a role, got {role!r}")
    check_text(role.name, f"{field}.name")
    check_whole(role.min_count, f"{field}.min_count")
    check_whole(role.max_count, f"{field}.max_count")
    check_resources(role.bundle, f"{field}.bundle")


def check_resources(amount: object, field: str) -> None:
    """Sorted by name, each name once, no zero: everything that adds amounts up counts on it."""
    if not isinstance(amount, Resources) or not isinstance(amount.items, tuple):
        raise SpecError(field, f"must be Resources, got {amount!r}")
    for item in amount.items:
        if not (isinstance(item, tuple) and len(item) == 2):
            raise SpecError(field, f"must hold (name, units) pairs, got {item!r}")
        check_text(item[0], field)
        if isinstance(item[1], bool) or not isinstance(item[1], int):
            raise SpecError(f"{field}.{item[0]}", f"must be whole units, got {item[1]!r}")
    if Resources.of_units(dict(amount.items)) != amount:
        raise SpecError(field, f"must name each resource once, in order and with some of it, got {amount.items!r}")
