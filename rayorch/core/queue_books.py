"""The queue owner's books: which queues there are, what each holds, who waits in it, and what is spent of its budget.

The tree tells them of every change of a workload (`put`) and of a queue (`set`, `drop`); all else is derived. What a
question costs does not depend on how many workloads there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rayorch.core.arrays import waiting_count
from rayorch.core.budgets import BudgetUse, begin, is_spent, settled
from rayorch.core.errors import AdmissionError, StalePlanError
from rayorch.core.quota import ATTEMPTS, LimitKind, Quota, QuotaTree, Shortage
from rayorch.core.types import (
    GPU,
    UNIT,
    QueueId,
    QueueMode,
    QueueSpec,
    Resources,
    Workload,
    WorkloadId,
    WorkloadSpec,
    charge_of,
    total,
)


class QueueBooks:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.specs: dict[QueueId, QueueSpec] = {}
        self.countables = Resources()
        self._budgets: dict[QueueId, BudgetUse] = {}
        self._deleting: set[QueueId] = set()
        self._alive: dict[QueueId, int] = {}  # workloads of the queue itself that have not ended
        self._pending: dict[QueueId, int] = {}
        self._pending_of: dict[tuple[QueueId, str], int] = {}
        self._holding: dict[WorkloadId, tuple[Workload, Resources]] = {}  # and what it is charged
        self._above: dict[QueueId, tuple[QueueId, ...]] = {}
        self._sorted: tuple[QueueSpec, ...] | None = None
        self._tree: QuotaTree | None = None
        self._quota: Quota | None = None
        self._idle: Quota | None = None

    # ------------------------------------------------------------ changes

    def restore(self, specs: Iterable[QueueSpec], countables: Resources) -> None:
        """Queues from a dump; workloads follow by `put`, then what was spent."""
        self.specs = {spec.id: spec for spec in specs}
        self._deleting = {id for id, spec in self.specs.items() if spec.mode is QueueMode.DELETING}
        self.countables = countables
        self._forget_quota()

    def restore_budgets(self, budgets: Iterable[BudgetUse]) -> None:
        """What was spent, from a dump."""
        self._budgets = {use.queue: use for use in budgets}

    def set(self, spec: QueueSpec, at_s: float) -> None:
        """A queue is new, or its settings are. Budgets go on unless their periods are others now."""
        before = self.specs.get(spec.id)
        (self._deleting.add if spec.mode is QueueMode.DELETING else self._deleting.discard)(spec.id)
        self.specs[spec.id] = spec
        self._forget_quota()
        old, new = before.budget if before is not None else None, spec.budget
        if new is None:
            self._budgets.pop(spec.id, None)
        elif old is None or (old.period_s, old.from_s) != (new.period_s, new.from_s):
            self._budgets[spec.id] = begin(spec.id, new, self.quota.used_of(spec.id, GPU), at_s)

    def drop(self, queue: QueueId) -> None:
        """A queue is gone."""
        self.specs.pop(queue, None)
        self._deleting.discard(queue)
        self._budgets.pop(queue, None)
        self._forget_quota()

    def set_countables(self, amounts: Resources) -> None:
        """What the cluster has as a whole."""
        self.countables = amounts
        self._forget_quota()

    def put(self, old: Workload | None, new: Workload, at_s: float) -> None:
        """A workload is new (`old` None), or has become another."""
        queue, owner = new.spec.queue, new.spec.owner
        self._count(queue, owner, old, new)
        before, after = old.placement if old is not None else (), new.placement
        if before == after:
            return
        quota, id = self.quota, new.spec.id  # while the change is not in `_holding` yet
        known, amount = self._holding.pop(id, None), charge_of(after)
        if known is None:
            held = amount
        elif after:
            held = amount - known[1]
        else:
            held = known[1].times(-1)
        self._spend(queue, held.gpu_units, at_s)
        quota.charge(queue, held, owner, bool(after) - bool(before))
        if after:
            self._holding[id] = (new, amount)

    def _count(self, queue: QueueId, owner: str, old: Workload | None, new: Workload) -> None:
        if old is not None and old.state is new.state and new.progress is old.progress:
            return
        alive = _alive(new) - _alive(old)
        if alive:
            self._alive[queue] = self._alive.get(queue, 0) + alive
        waits = waiting_count(new) - waiting_count(old)
        if not waits:
            return
        for above in self._and_above(queue):
            self._pending[above] = self._pending.get(above, 0) + waits
            key = (above, owner)
            left = self._pending_of.get(key, 0) + waits
            if left:
                self._pending_of[key] = left
            else:
                del self._pending_of[key]

    def _and_above(self, queue: QueueId) -> tuple[QueueId, ...]:
        """The ids of the queue and of all above it, whether or not they exist."""
        found = self._above.get(queue)
        if found is None:
            parent = QueueSpec(queue).parent
            found = self._above[queue] = (queue, *(self._and_above(parent) if parent is not None else ()))
        return found

    def _spend(self, queue: QueueId, gpu_units: int, at_s: float) -> None:
        for spec in self.quota.path(queue) if self._budgets and gpu_units else ():
            use = self._budgets.get(spec.id)
            if use is not None and spec.budget is not None:
                use = settled(use, spec.budget, at_s)
                self._budgets[spec.id] = replace(use, gpu_units=use.gpu_units + gpu_units)

    # ------------------------------------------------------------ what is

    @property
    def sorted(self) -> tuple[QueueSpec, ...]:
        """All queues by id; the same object until one is another."""
        if self._sorted is None:
            self._sorted = tuple(self.specs[id] for id in sorted(self.specs))
        return self._sorted

    @property
    def quota(self) -> Quota:
        """What live attempts hold, by queue. Built anew after queues have changed."""
        if self._quota is None:
            self._quota = Quota(self._queue_tree(), self.countables)
            for workload, amount in self._holding.values():
                self._quota.charge(workload.spec.queue, amount, workload.spec.owner, 1)
        return self._quota

    @property
    def idle(self) -> Quota:
        """The same with nothing in use."""
        if self._idle is None:
            self._idle = Quota(self._queue_tree(), self.countables)
        return self._idle

    @property
    def budgets(self) -> tuple[BudgetUse, ...]:
        """What is spent of each budget, by queue."""
        if not self._budgets:
            return ()
        return tuple(self._budgets[id] for id in sorted(self._budgets))

    def pending(self, queue: QueueId) -> int:
        """How many workloads wait in the queue and below it."""
        return self._pending.get(queue, 0)

    def going(self, queue: QueueId) -> bool:
        """Whether the queue is being deleted."""
        spec = self.specs.get(queue)
        return spec is not None and spec.mode is QueueMode.DELETING

    def emptied(self) -> list[QueueId]:
        """Queues that were being deleted and hold nothing any more, innermost first."""
        if not self._deleting:
            return []
        gone = [id for id in self._deleting if not self.alive(id)]
        return sorted(gone, reverse=True)

    def alive(self, queue: QueueId) -> int:
        """How many workloads of the queue itself have not ended."""
        return self._alive.get(queue, 0)

    def _queue_tree(self) -> QuotaTree:
        if self._tree is None:
            self._tree = QuotaTree(self.specs.values())
        return self._tree

    def _forget_quota(self) -> None:
        self._tree = self._quota = self._idle = self._sorted = None

    # ------------------------------------------------------------ checks

    def check_entry(self, spec: WorkloadSpec) -> None:
        """AdmissionError when the workload's queue, or one above it, takes it not at all, or no more for now."""
        queue = self.specs.get(spec.queue)
        if queue is None:
            names = ", ".join(sorted(self.specs)) or "none"
            raise AdmissionError("queue", f"queue {spec.queue!r} does not exist; there are: {names}")
        if not queue.min_priority <= spec.priority <= queue.max_priority:
            raise AdmissionError(
                "priority",
                f"queue {queue.id!r} takes {queue.min_priority} to {queue.max_priority}, got {spec.priority}",
            )
        more = spec.array.count if spec.array is not None else 1
        for above in self.idle.path(queue.id):
            if above.mode is QueueMode.DELETING:
                raise AdmissionError("queue", f"queue {above.id!r} is being deleted and takes nothing new")
            if above.max_pending is not None and self.pending(above.id) + more > above.max_pending:
                raise AdmissionError("queue", f"queue {above.id!r} is full: {above.max_pending} workloads wait in it")
            most = above.per_user.max_pending
            if most is not None and self._pending_of.get((above.id, spec.owner), 0) + more > most:
                raise AdmissionError(
                    "owner", f"{spec.owner or 'nobody'} has {most} workloads waiting in queue {above.id!r}, the most"
                )
        for role in spec.roles:
            for name, _ in role.countables:
                if not self.countables.units(name):
                    there = ", ".join(known for known, _ in self.countables) or "none"
                    raise AdmissionError(
                        f"roles.{role.name}.countables.{name}", f"the cluster has none; its countables are: {there}"
                    )

    def check_start(self, workload: Workload, more: Resources, attempts: int, now_s: float) -> None:
        """StalePlanError if the queue, or one above it, may not hold `more` now, starts nothing or has no budget left.

        `attempts`: 1 for a start, 0 for the growth of a running one, which may get back what it lost: only a drained
        queue lets nothing grow.
        """
        for above in self.quota.path(workload.spec.queue):
            if (above.mode is QueueMode.DRAIN and more) or (above.mode is not QueueMode.OPEN and attempts):
                raise StalePlanError(f"queue {above.id} starts nothing: its mode is {above.mode.value}")
            use = self._budgets.get(above.id)
            gpus = bool(attempts and more.gpu_units)
            if gpus and use is not None and above.budget is not None and is_spent(use, above.budget, now_s):
                raise StalePlanError(f"queue {above.id} has spent its {above.budget.gpu_hours:g} GPU-hours")
        for short in self.quota.shortages(workload.spec.queue, more, workload.spec.owner, attempts):
            raise StalePlanError(f"{workload.id} needs {short.need / UNIT:g} {short.resource}, {_may_take(short)}")

    def check_together(self, starts: Sequence[tuple[Workload, Resources]], now_s: float) -> None:
        """The same for starts in one queue that are committed in one: what they take in all, and of their owners."""
        owners: dict[str, list[tuple[Workload, Resources]]] = {}
        for workload, amount in starts:
            owners.setdefault(workload.spec.owner, []).append((workload, amount))
        for theirs in owners.values():
            self.check_start(theirs[0][0], total(amount for _, amount in theirs), len(theirs), now_s)
        first, whole = starts[0][0], total(amount for _, amount in starts)
        for short in self.quota.shortages(first.spec.queue, whole, first.spec.owner, 0):
            if short.kind is not LimitKind.USER:
                raise StalePlanError(f"{first.id} and its partners need {_amount(short)}, {_may_take(short)}")


def _amount(short: Shortage) -> str:
    return f"{short.need / UNIT:g} {short.resource}"


def _may_take(short: Shortage) -> str:
    match short.kind:
        case LimitKind.USER:
            name = "start" if short.resource == ATTEMPTS else "take"
            return f"{short.owner or 'nobody'} may {name} {short.have / UNIT:g} more in queue {short.queue}"
        case LimitKind.CLUSTER:
            return f"the cluster has {short.have / UNIT:g} left"
        case _:
            return f"queue {short.queue} may take {short.have / UNIT:g} more"


def _alive(workload: Workload | None) -> int:
    return int(workload is not None and not workload.state.terminal)
