"""What an attempt may use right now, as its runner passes it on to Train, Serve or a job's hooks.

A grant is a copy: the allocator owns the seats, the queue owner the stop order and the lease. Its `version`
grows by one with every change, so a reader asks "anything newer than version n?".
"""

from __future__ import annotations

from dataclasses import dataclass

from rayorch.core.types import Resources, StopOrder, WorkloadId


@dataclass(frozen=True, slots=True)
class Seat:
    """One member's place: a bundle of a placement group that is held for it.

    `group_id` is the hex id of the group; for Serve it is empty until Serve's controller has made the
    replica's group on `node_id`. `devices`: the GPUs of the node that the group has, or has to have, by name; empty
    where they can't be chosen. `rank`: along the topology, among the seats of its role; `path`: the domains of its node
    ("z1/r3"). `channel`: the NVLink channel of its segment, where it asked for one.
    """

    role: str
    index: int
    node_id: str
    group_id: str
    bundle_index: int
    resources: Resources
    surplus: int = 0
    devices: tuple[int, ...] = ()
    rank: int = 0
    path: str = ""
    channel: int | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """The seats of one attempt, and whether it must stop.

    `seats`: those that may be used; a shrink shows here first, the groups go when the runner has reported
    that they are no longer used. `release_by_s`: by when a shrink must have been obeyed (None: no shrink
    is under way); after it, seats outside the grant are taken away. `lapsed`: the lease is over and whoever
    reads this must end itself at once.
    """

    workload: WorkloadId
    attempt: int
    version: int
    seats: tuple[Seat, ...]
    stop: StopOrder | None = None
    release_by_s: float | None = None
    lease_s: float = 10.0
    lapsed: bool = False
