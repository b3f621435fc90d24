"""What keeps all of a queue waiting whatever is free: it is held, drained or deleted, or its budget is spent.

Found once per queue and turn. Stage 2 stops what runs where the queue says so.
"""

from __future__ import annotations

from collections.abc import Mapping

from rayorch.core.budgets import BudgetUse, is_spent, next_period_s, settled
from rayorch.core.decisions import Wait, WaitReason
from rayorch.core.explain import UNBLOCKS
from rayorch.core.planning.draft import Draft
from rayorch.core.types import QueueId, QueueMode, QueueSpec

MODES: Mapping[QueueMode, str] = {
    QueueMode.HOLD: "is held: nothing of it starts, what runs goes on",
    QueueMode.DRAIN: "is drained: nothing of it starts, what runs is stopped and waits",
    QueueMode.DELETING: "is being deleted: it takes nothing new and goes when its last workload has ended",
}


def queue_gate(draft: Draft, queue: QueueId, gpus: bool) -> tuple[Wait, ...]:
    """Why nothing of the queue may start or grow now; empty: it may. `gpus`: of what uses any, which spends budgets."""
    key = (queue, gpus)
    found = draft.queue_gates.get(key)
    if found is None:
        above = draft.now.quota.path(queue)
        waits = [wait for spec in above if (wait := _mode_wait(spec)) is not None]
        if gpus and draft.facts.budgets:
            waits += [wait for spec in above if (wait := _budget_wait(draft, spec)) is not None]
        found = draft.queue_gates[key] = tuple(waits)
    return found


def reopens_s(draft: Draft, queue: QueueId) -> float | None:
    """When spent budgets on the path have all begun anew; None: none is spent, or one never does."""
    latest: float | None = None
    for spec in draft.now.quota.path(queue):
        if _spent(draft, spec) is None or spec.budget is None:
            continue
        again_s = next_period_s(spec.budget, draft.facts.now_s)
        if again_s is None:
            return None
        latest = again_s if latest is None else max(latest, again_s)
    return latest


def growth_closed(draft: Draft, queue: QueueId, gpus: bool) -> bool:
    """Whether what runs in the queue may follow its demand no further: it is on its way out, or its budget is spent.

    A held queue's work goes on as it would.
    """
    return any(wait.reason is WaitReason.BUDGET for wait in queue_gate(draft, queue, gpus)) or any(
        spec.mode in (QueueMode.DRAIN, QueueMode.DELETING) for spec in draft.now.quota.path(queue)
    )


def drained_by(draft: Draft, queue: QueueId, gpus: bool) -> str:
    """Why what runs in the queue must stop; empty: it may go on."""
    for spec in draft.now.quota.path(queue):
        if spec.mode is QueueMode.DRAIN:
            return f"queue {spec.id} is drained"
        if gpus and spec.budget is not None and spec.budget.drain and _spent(draft, spec) is not None:
            return f"queue {spec.id} has spent its {spec.budget.gpu_hours:g} GPU-hours"
    return ""


def _mode_wait(spec: QueueSpec) -> Wait | None:
    if spec.mode is QueueMode.OPEN:
        return None
    detail = f"queue {spec.id} {MODES[spec.mode]}"
    return Wait(WaitReason.QUEUE_CLOSED, detail, unblocks=UNBLOCKS[WaitReason.QUEUE_CLOSED])


def _budget_wait(draft: Draft, spec: QueueSpec) -> Wait | None:
    use, budget = _spent(draft, spec), spec.budget
    if use is None or budget is None:
        return None
    again_s = next_period_s(budget, draft.facts.now_s)
    more = "" if again_s is None else f"; the next period begins in {again_s - draft.facts.now_s:.0f} s"
    detail = f"queue {spec.id} has used {use.hours():.2f} of its {budget.gpu_hours:g} GPU-hours{more}"
    ends = UNBLOCKS[WaitReason.BUDGET]
    return Wait(WaitReason.BUDGET, detail, True, budget.gpu_hours, use.hours(), "GPU-hours", unblocks=ends)


def _spent(draft: Draft, spec: QueueSpec) -> BudgetUse | None:
    """What is used of a budget of which nothing is left; None where something is, or there is no budget."""
    use = draft.facts.budgets.get(spec.id)
    if use is None or spec.budget is None or not is_spent(use, spec.budget, draft.facts.now_s):
        return None
    return settled(use, spec.budget, draft.facts.now_s)
