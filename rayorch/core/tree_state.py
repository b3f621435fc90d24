"""What the queue tree is, as a value: all of it for the journal's compaction, and what changed for its readers."""

from __future__ import annotations

from dataclasses import dataclass, field

from rayorch.core.arrays import ArrayState
from rayorch.core.asked import AskedClass, AskedState
from rayorch.core.budgets import BudgetUse
from rayorch.core.cron import Cron
from rayorch.core.events import NodeCordoned
from rayorch.core.history import History, HistoryChanges
from rayorch.core.timing import ReservationSpec
from rayorch.core.types import QueueSpec, Resources, Workload, WorkloadId


@dataclass(frozen=True, slots=True)
class TreeState:
    """All that the tree holds, for the journal's compaction. `version`: events applied since the journal began.

    `history`, `asked` None: written before there was one.
    """

    version: int
    queues: tuple[QueueSpec, ...] = ()
    workloads: tuple[Workload, ...] = ()
    cordons: tuple[NodeCordoned, ...] = ()
    budgets: tuple[BudgetUse, ...] = ()
    countables: Resources = Resources()
    history: History | None = None
    arrays: tuple[ArrayState, ...] = ()
    reservations: tuple[ReservationSpec, ...] = ()
    crons: tuple[Cron, ...] = ()
    asked: AskedState | None = None


@dataclass(frozen=True, slots=True)
class QueueChanges:
    """What changed for a reader whose copy is of an older version.

    `queues`: all of them, None where they are as the reader has them. `cordons`, `budgets` and `countables` are always
    complete. `workloads`: those that changed, ended ones
    included; with `full`, all of them, and the reader forgets what it had. `renewals`: pass it back with `version` next
    time. `forgotten`: those that are remembered no longer. `folded`: ended entries that are no workloads of their own
    any more; their array knows what became of them. `asked`: the typical classes, None where the reader knows them.
    """

    version: int
    full: bool
    queues: tuple[QueueSpec, ...] | None
    workloads: tuple[Workload, ...]
    cordons: tuple[NodeCordoned, ...]
    renewals: int = 0
    forgotten: tuple[WorkloadId, ...] = ()
    budgets: tuple[BudgetUse, ...] = ()
    countables: Resources = Resources()
    history: HistoryChanges = field(default_factory=HistoryChanges)
    folded: tuple[WorkloadId, ...] = ()
    reservations: tuple[ReservationSpec, ...] = ()
    asked: tuple[AskedClass, ...] | None = None
