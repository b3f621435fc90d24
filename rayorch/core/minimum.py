"""Whether what an attempt has left is its minimum, and whether it is of any use without."""

from __future__ import annotations

from collections.abc import Mapping

from rayorch.core.types import Kind, WorkloadSpec


def minimums(spec: WorkloadSpec) -> tuple[Mapping[str, int], ...]:
    """How many members of each role make up the gang; several ways where a group needs only some of what is in it."""
    return tuple({r.name: r.min_count for r in spec.roles if r.name in way} for way in spec.needed)


def is_whole(spec: WorkloadSpec, have: Mapping[str, int]) -> bool:
    """Whether so many members per role make up the gang's minimum."""
    return any(all(have.get(role, 0) >= least for role, least in way.items()) for way in minimums(spec))


def is_stale(spec: WorkloadSpec, have: Mapping[str, int]) -> bool:
    """Whether what is left can't work, so that it is ended when it has stayed so for too long.

    That is less than the minimum. A Serve application that says nothing else goes on with fewer replicas, but not where
    none is left in a role that it needs.
    """
    if is_whole(spec, have):
        return False
    if spec.kind is not Kind.SERVE or spec.stale_grace_s is not None:
        return True
    return not any(all(have.get(role, 0) for role, least in way.items() if least) for way in minimums(spec))
