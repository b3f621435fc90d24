"""Elastic: a gang that may grow takes all that it can use; whoever needs the room more gets it back by a shrink."""

from __future__ import annotations

from rayorch.core.types import Workload


def size(workload: Workload, now_s: float) -> int:
    """How many members of its elastic role the gang would use; 0 when it has none."""
    role = workload.spec.elastic_role
    return role.max_count if role is not None else 0
