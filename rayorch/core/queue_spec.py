"""A node of the queue tree: its share, its limits, whether its work may start, and what it may spend."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rayorch.core.ids import QueueId
from rayorch.core.resources import Resources


class QueueMode(StrEnum):
    """Whether a queue's work may start, and whether what runs may stay."""

    OPEN = "open"
    HOLD = "hold"  # nothing of it starts; what runs goes on
    DRAIN = "drain"  # nothing of it starts; what runs is stopped and requeued
    DELETING = "deleting"  # it takes nothing new, shares nothing any more and goes when its last workload has ended


@dataclass(frozen=True, slots=True)
class UserLimits:
    """What each owner may hold in a queue and below it, and how many workloads may run and wait; None: no limit."""

    resources: Resources = Resources()  # a resource that is not named is not limited
    max_running: int | None = None
    max_pending: int | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """GPU-hours that a queue and those below it may use in each period; what runs when it is spent is drained or stays.

    `period_s` None: once and for all. `from_s`: when the first period begins. `drain`: stop what runs when it is spent.
    """

    gpu_hours: float
    period_s: float | None = None
    from_s: float = 0.0
    drain: bool = False


@dataclass(frozen=True, slots=True)
class CellShare:
    """So many whole domains of a level ("node": whole nodes) of one GPU model; empty: the only one that there is.

    `gpus_each`: how many GPUs each of them has, where domains of the level differ; 0: the size that most are of.
    """

    level: str
    count: int
    model: str = ""
    gpus_each: int = 0


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A node of the queue tree; `id` is its path, its parent is the path without the last part.

    `deserved`: the share the queue can always get back. `borrow_limit`: most it may hold beyond deserved
    (None: no limit). `lend_limit`: most of its deserved share that others may use (None: all of it).
    A resource that neither of these nor `hard_cap` names is not limited by this queue. "GPU:H100" is the part of "GPU"
    that is of that model; a queue may name both.
    `guaranteed`: the part of `deserved` that is never lent. `hard_cap`: the most that it may hold in any case.
    `surplus_priority`: of those that borrow, the larger goes first; `weight` divides among equals,
    `weights` where it differs for a resource.
    `fence`: nobody outside its subtree preempts in it or is preempted for it; reclaim of what is borrowed goes on.
    `min_runtime_s`: how long an attempt in it runs before it may be evicted, where its own is not longer.
    `strict`: its first workload that can't start keeps those behind it waiting; None: as the profile says.
    `denied`: resources of which it may hold none.
    `cells`: whole nodes or domains that its work, and that below it, can always have (docs/cells.md).
    `declared`: the mode that it was last set up with. An operator's `mode` stays until that is another one.
    """

    id: QueueId
    deserved: Resources = Resources()
    borrow_limit: Resources | None = None
    lend_limit: Resources | None = None
    weight: int = 1
    weights: tuple[tuple[str, int], ...] = ()
    min_priority: int = -1_000_000
    max_priority: int = 1_000_000
    max_pending: int | None = None
    guaranteed: Resources = Resources()
    hard_cap: Resources | None = None
    surplus_priority: int = 0
    per_user: UserLimits = UserLimits()
    mode: QueueMode = QueueMode.OPEN
    budget: Budget | None = None
    fence: bool = False
    min_runtime_s: float = 0.0
    strict: bool | None = None
    denied: tuple[str, ...] = ()
    declared: QueueMode = QueueMode.OPEN
    cells: tuple[CellShare, ...] = ()

    @property
    def parent(self) -> QueueId | None:
        """The path of the parent queue, None for a top-level queue."""
        head, slash, _ = self.id.rpartition("/")
        return QueueId(head) if slash else None
