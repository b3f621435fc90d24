"""The frozen join of what waits, what exists and what is held: all that a plan may depend on."""

from __future__ import annotations

from dataclasses import dataclass, field

from rayorch.core.asked import AskedClass
from rayorch.core.budgets import BudgetUse
from rayorch.core.capacity import Capacity
from rayorch.core.history import History
from rayorch.core.timing import ReservationSpec
from rayorch.core.types import Allocation, NodeSpec, QueueSpec, Resources, Workload


@dataclass(frozen=True, slots=True)
class Versions:
    """How new each owner's part is; a decision carries the versions it was made on."""

    queues: int = 0
    inventory: int = 0
    allocations: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known at `now_s`. All tuples are sorted by id (or rows of tables, `rows.py`, in their place).

    `workloads`: those that have not ended. `synced`: the allocator has compared its books with the world since
    its last restart; until then nothing new is started. `what_if_budget`: how many trial placements the
    preemption stage may make. `capacity`: where nodes come from. `countables`: what the cluster has as a whole and no
    node has (licences, watts). `budgets`: what is spent of those that queues have. `reservations`: room held in
    advance. `history`: what was learned from the past. `asked`: what is typically asked for.
    """

    versions: Versions
    now_s: float
    queues: tuple[QueueSpec, ...]
    workloads: tuple[Workload, ...]
    nodes: tuple[NodeSpec, ...]
    allocations: tuple[Allocation, ...]
    synced: bool = True
    what_if_budget: int = 1000
    capacity: Capacity = Capacity()
    countables: Resources = Resources()
    reservations: tuple[ReservationSpec, ...] = ()
    budgets: tuple[BudgetUse, ...] = ()
    history: History = field(default_factory=History)
    asked: tuple[AskedClass, ...] = ()
