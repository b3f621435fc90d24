"""What the controller knows of each attempt's runner, and what a runner is granted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from rayorch.core.grants import Grant, Seat
from rayorch.core.ranks import ranks
from rayorch.core.reports import SeatInUse
from rayorch.core.sharing import asks_of_ray
from rayorch.core.types import Allocation, Kind, Member, MemberPhase, Workload, WorkloadId

RunnerKey = tuple[WorkloadId, int]
"""A workload and its attempt."""


class RunnerPhase(StrEnum):
    """How far a runner has come."""

    STARTING = "starting"  # it was asked for; its work has not begun
    RUNNING = "running"  # its work has begun (Serve: the application is up)
    ENDED = "ended"  # its work is over and its processes are gone; it still answers with the exit code
    GONE = "gone"  # it was there and is not any more, without a goodbye

    @property
    def alive(self) -> bool:
        """Its work may be using the attempt's seats."""
        return self in (RunnerPhase.STARTING, RunnerPhase.RUNNING)


@dataclass(frozen=True, slots=True)
class RunnerView:
    """A runner as it answered last.

    `grant`: the one that it passes on now, numbered by it. `applied_version`: the newest grant beyond which no seat
    is used. `in_use`: the groups that Serve uses; None when it has not said. `exit_code`: None with ENDED means that
    it ended because its lease was over. `ended_s`: when its work ended. `revision`: how often the runner's own view has
    changed; 0 for a view that was made by another.
    """

    workload: WorkloadId
    attempt: int
    phase: RunnerPhase
    exit_code: int | None = None
    grant: Grant | None = None
    applied_version: int = 0
    in_use: tuple[SeatInUse, ...] | None = None
    message: str = ""
    ended_s: float | None = None
    revision: int = 0


def grant_for(workload: Workload, allocation: Allocation, lease_s: float) -> Grant:
    """What the attempt may use now; `version` is 0, the runner numbers what it is given.

    Seats are those that are committed *and* whose group exists. Serve makes its groups itself, so its seats are
    granted before. In order: the gang's group by bundle, then the surplus seats.
    """
    placed = {m.surplus for m in workload.placement}
    usable = [m for m in allocation.members if m.surplus in placed and _usable(workload.spec.kind, m)]
    leaving = any(m.surplus not in placed for m in allocation.members)
    rank = ranks(workload.spec, usable)
    seats = tuple(
        Seat(
            m.role,
            m.index,
            m.node,
            m.group_id,
            m.bundle_index,
            asks_of_ray(m.bundle, m.devices),
            m.surplus,
            m.devices if m.exact else (),
            rank[m.surplus, m.bundle_index],
            m.path,
            m.channel.number if m.channel is not None else None,
        )
        for m in sorted(usable, key=lambda m: (m.surplus, m.bundle_index, m.role, m.index))
    )
    return Grant(
        workload=workload.id,
        attempt=workload.attempt,
        version=0,
        seats=seats,
        stop=workload.stop,
        release_by_s=workload.release_by_s if leaving else None,
        lease_s=lease_s,
    )


def same_grant(kind: Kind, one: Grant | None, other: Grant) -> bool:
    """Whether two grants say the same, whatever their numbers.

    The end of a shrink alone (`release_by_s` back to None) is no news, and neither is the id of a group that Serve
    itself has made.
    """
    if one is None or (one.stop, one.lapsed) != (other.stop, other.lapsed):
        return False
    if kind is Kind.SERVE:
        plain = [tuple(replace(seat, group_id="") for seat in grant.seats) for grant in (one, other)]
        same = plain[0] == plain[1]
    else:
        same = one.seats == other.seats
    return same and (other.release_by_s is None or one.release_by_s == other.release_by_s)


def _usable(kind: Kind, member: Member) -> bool:
    if member.phase is MemberPhase.RELEASING and not member.group_id:
        return False
    return kind is Kind.SERVE or (bool(member.group_id) and member.phase is not MemberPhase.CREATING)
