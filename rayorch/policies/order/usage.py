"""Decayed usage: within a queue, the owner who has used least lately goes first (Kueue's admission fair sharing).

What an owner holds counts as used for `usage_penalty_s` more, so that a start counts at once, and what goes before a
workload in its owner's own line counts as if it had started: owners who have used the same alternate, and one who
submits a thousand at a time gains nothing by it. Then priority, then age.
"""

from __future__ import annotations

from collections.abc import Mapping

from rayorch.core.history import AccountKey
from rayorch.core.ordering import Basis, OrderView, SortKey, based_on, in_words
from rayorch.core.types import GPU, LIVE, UNIT, State, Workload, WorkloadId
from rayorch.policies.order.fair_tree import used_by


def _words(workload: Workload, view: OrderView) -> str:
    spec = workload.spec
    hours = with_penalty(view, (spec.queue, spec.owner)) / 3600.0
    return f"by what {spec.owner or 'nobody'} has used in {spec.queue} lately ({hours:.2f} GPU-hours), then by priority"


@based_on(Basis.TURN)
@in_words(_words)
def key(workload: Workload, view: OrderView) -> SortKey:
    """The smallest key goes first."""
    return (view.once(_tags).get(workload.id, 0.0), -workload.spec.priority, workload.submitted_s)


def _tags(view: OrderView) -> Mapping[WorkloadId, float]:
    """For each that waits: what its owner will have used when its turn comes. O(waiting)."""
    lines: dict[AccountKey, list[Workload]] = {}
    for workload in view.work:
        if workload.state is State.PENDING:
            lines.setdefault((workload.spec.queue, workload.spec.owner), []).append(workload)
    tags: dict[WorkloadId, float] = {}
    for owner, line in lines.items():
        used = with_penalty(view, owner)
        line.sort(key=lambda w: (-w.spec.priority, w.submitted_s, w.id))
        for workload in line:
            tags[workload.id] = used
            used += workload.spec.least(GPU) / UNIT * view.knobs.usage_penalty_s
    return tags


def with_penalty(view: OrderView, owner: AccountKey) -> float:
    """What an owner has used, with the penalty for what it holds."""
    used = used_by(view, owner) if owner in view.history.accounts else 0.0
    return used + view.once(_held).get(owner, 0) / UNIT * view.knobs.usage_penalty_s


def _held(view: OrderView) -> Mapping[AccountKey, int]:
    """GPU units that each owner holds, by the allocations: seats are given back before their attempt has ended."""
    owners = {w.id: (w.spec.queue, w.spec.owner) for w in view.workloads if w.state in LIVE}
    held: dict[AccountKey, int] = {}
    for allocation in view.allocations:
        owner = owners.get(allocation.workload)
        if owner is not None:
            held[owner] = held.get(owner, 0) + allocation.held.gpu_units
    return held
