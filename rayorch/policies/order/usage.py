"""Decayed usage: within a queue, the owner who has used least lately goes first (Kueue's admission fair sharing).

What an owner holds counts as used for `usage_penalty_s` more, so that a start counts at once, and what goes before a
workload in its owner's own line counts as if it had started: owners who have used the same alternate, and one who
submits a thousand at a time gains nothing by it. Then priority, then age.
"""

from __future__ import annotations

from collections.abc import Mapping

from rayorch.core.history import AccountKey
from rayorch.core.ordering import Basis, OrderView, SortKey, based_on
from rayorch.core.types import UNIT, State, Workload, WorkloadId
from rayorch.policies.order.fair_tree import used_by


@based_on(Basis.TURN)
def key(workload: Workload, view: OrderView) -> SortKey:
    """The smallest key goes first."""
    return (view.once(_tags).get(workload.id, 0.0), -workload.spec.priority, workload.submitted_s)


def _tags(view: OrderView) -> Mapping[WorkloadId, float]:
    """For each that waits: what its owner will have used when its turn comes. O(waiting)."""
    lines: dict[AccountKey, list[Workload]] = {}
    for workload in view.workloads:
        if workload.state is State.PENDING:
            lines.setdefault((workload.spec.queue, workload.spec.owner), []).append(workload)
    tags: dict[WorkloadId, float] = {}
    for owner, line in lines.items():
        used = with_penalty(view, owner)
        line.sort(key=lambda w: (-w.spec.priority, w.submitted_s, w.id))
        for workload in line:
            tags[workload.id] = used
            used += workload.spec.min_resources.gpu_units / UNIT * view.knobs.usage_penalty_s
    return tags


def with_penalty(view: OrderView, owner: AccountKey) -> float:
    """What an owner has used, with the penalty for what it holds."""
    account = view.history.accounts.get(owner)
    if account is None:
        return 0.0
    return used_by(view, owner) + account.gpu_units / UNIT * view.knobs.usage_penalty_s
