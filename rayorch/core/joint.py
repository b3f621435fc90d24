"""Joint gangs: several submissions that start in one commit or not at all.

Those of one queue that name the same joint gang are its members. Before it has begun, at least `count` of them (the
most that one of them says) start together. After that a member that was requeued starts again with whoever of the
others waits too: those that run are not stopped for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rayorch.core.decisions import Start
from rayorch.core.errors import StalePlanError
from rayorch.core.types import QueueId, State, StopCause, Workload, WorkloadId, WorkloadSpec

JointKey = tuple[QueueId, str]
"""The queue and the name."""


def joint_key(spec: WorkloadSpec) -> JointKey | None:
    """Which joint gang it is a member of."""
    return (spec.queue, spec.joint.name) if spec.joint is not None else None


def has_begun(members: Iterable[Workload]) -> bool:
    """Whether some member has been started once, so that the others need not wait for anybody any more."""
    return any(workload.attempt > 0 for workload in members)


def least(workload: Workload, members: Iterable[Workload]) -> int:
    """How many must start together: where they don't say the same, the most that one of them says."""
    return max((one.spec.joint.count for one in (workload, *members) if one.spec.joint is not None), default=0)


def lacking(workload: Workload, members: Sequence[Workload]) -> int:
    """How many members more must be there before this one may start. `members`: all that have not ended."""
    if workload.spec.joint is None or has_begun(members):
        return 0
    return max(0, least(workload, members) - len(members))


def check_joint_start(workload: Workload, members: Sequence[Workload], starting: set[WorkloadId]) -> None:
    """StalePlanError unless enough of the workload's joint gang start with it. `starting`: all of this commit."""
    joint = workload.spec.joint
    if joint is None or has_begun(members):
        return
    count, needed = sum(member.id in starting for member in members), least(workload, members)
    if count < needed:
        raise StalePlanError(f"{workload.id} starts with {needed - 1} more of {joint.name}, not with {count - 1}")


def batches(starts: Sequence[Start]) -> list[list[int]]:
    """The starts, by their places, that must be committed together."""
    found: dict[tuple[WorkloadId, ...], list[int]] = {}
    for place, start in enumerate(starts):
        found.setdefault(tuple(sorted((start.workload, *start.partners))), []).append(place)
    return list(found.values())


class JointIndex:
    """The members of each joint gang that have not ended."""

    def __init__(self) -> None:
        self._members: dict[JointKey, set[WorkloadId]] = {}

    def put(self, workload: Workload) -> None:
        """A workload is new, or has changed."""
        key = joint_key(workload.spec)
        if key is None:
            return
        members = self._members.setdefault(key, set())
        if workload.state.terminal:
            members.discard(workload.id)
        else:
            members.add(workload.id)
        if not members:
            del self._members[key]

    def of(self, spec: WorkloadSpec) -> tuple[WorkloadId, ...]:
        """The members of the joint gang that the spec names."""
        key = joint_key(spec)
        return tuple(sorted(self._members.get(key, ()))) if key is not None else ()


def half_started(workload: Workload, partners: Iterable[Workload]) -> Workload | None:
    """The partner that was to start with this attempt and could not, so that the joint gang is not whole."""
    for other in partners:
        failed = other.state is State.PENDING and other.last_cause is StopCause.START_FAILED
        if failed and other.last_started_s is not None and other.last_started_s == workload.started_s:
            return other
    return None
