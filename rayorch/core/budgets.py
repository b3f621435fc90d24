"""GPU-hour budgets: how much of one is spent, exactly, and when the next begins.

What is used is counted in GPU units times microseconds, as integers, so that many small amounts add up to what one
large one does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rayorch.core.types import UNIT, Budget, QueueId

TICKS = 1_000_000
"""Ticks of a second."""

GPU_HOUR = UNIT * TICKS * 3600
"""One GPU for an hour, as it is counted here."""


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """What a queue and those below it have used of its budget: `spent` until `at_s`, and `gpu_units` in use since then.

    `since_s`: when the period began, or the budget was set.
    """

    queue: QueueId
    since_s: float
    at_s: float
    spent: int = 0
    gpu_units: int = 0

    def hours(self) -> float:
        """GPU-hours spent until `at_s`."""
        return self.spent / GPU_HOUR


def begin(queue: QueueId, budget: Budget, gpu_units: int, now_s: float) -> BudgetUse:
    """A budget that has just been set: what was used before does not count."""
    return BudgetUse(queue, max(now_s, budget.from_s), max(now_s, budget.from_s), 0, gpu_units)


def settled(use: BudgetUse, budget: Budget, now_s: float) -> BudgetUse:
    """The same at a later moment; a period that has ended since is forgotten. A clock set back adds nothing."""
    if now_s <= use.at_s:
        return use
    start_s = _period_start_s(budget, now_s)
    if start_s is not None and start_s > use.since_s:
        use = replace(use, since_s=start_s, at_s=max(start_s, use.at_s), spent=0)
    ticks = round(now_s * TICKS) - round(use.at_s * TICKS)
    return replace(use, at_s=now_s, spent=use.spent + use.gpu_units * ticks)


def is_spent(use: BudgetUse, budget: Budget, now_s: float) -> bool:
    """Whether nothing of the budget is left."""
    return settled(use, budget, now_s).spent >= round(budget.gpu_hours * GPU_HOUR)


def next_period_s(budget: Budget, now_s: float) -> float | None:
    """When a new period begins, None: never."""
    start_s = _period_start_s(budget, now_s)
    return None if start_s is None or budget.period_s is None else start_s + budget.period_s


def spent_at_s(use: BudgetUse, budget: Budget, now_s: float) -> float | None:
    """When nothing is left at what is in use now; None: not before the period ends, or never."""
    now = settled(use, budget, now_s)
    left = round(budget.gpu_hours * GPU_HOUR) - now.spent
    if left <= 0:
        return now_s
    if not now.gpu_units:
        return None
    end_s = now_s + left / (now.gpu_units * TICKS)
    renewed_s = next_period_s(budget, now_s)
    return None if renewed_s is not None and end_s >= renewed_s else end_s


def burn(use: BudgetUse, budget: Budget, now_s: float) -> float | None:
    """How fast it is spent: 1 spends it evenly over its period, 2 in half of it; None: it has no period."""
    if budget.period_s is None or budget.gpu_hours <= 0:
        return None
    now = settled(use, budget, now_s)
    passed_s = now_s - now.since_s
    if passed_s <= 0:
        return None
    return (now.hours() / budget.gpu_hours) / (passed_s / budget.period_s)


def _period_start_s(budget: Budget, now_s: float) -> float | None:
    """When the period that `now_s` lies in began; None: it has no periods, or the first has not begun."""
    if budget.period_s is None or now_s < budget.from_s:
        return None
    return budget.from_s + (now_s - budget.from_s) // budget.period_s * budget.period_s
