"""Slurm's multifactor priority: a weighted sum of factors from 0 to 1; all weights are 0 unless a profile sets them.

    age         time in the queue, full at `age_max_s`             `weight_age`
    fair share  the owner's factor in the Fair Tree                `weight_fair_share`
    size        the gang's part of the cluster, or (`favor_small`) what is left beside it     `weight_size`
    queue       its `surplus_priority` over the largest one (Slurm's partition factor)        `weight_queue`
    priority    the workload's priority over `priority_max` (Slurm's quality of service)      `weight_priority`
    resources   the part of the cluster that it asks of each resource (Slurm's TRES)          `weight_resources`

Slurm's association and site factors have no counterpart here; instead of `nice` there is the priority, which may be
negative and then counts against the workload. After slurm.schedmd.com/priority_multifactor.html.
"""

from __future__ import annotations

from rayorch.core.ordering import Basis, OrderView, SortKey, based_on, in_words
from rayorch.core.service import eligible_s
from rayorch.core.types import CPU, GPU, Resources, Workload, WorkloadSpec
from rayorch.policies.order import fair_tree


def _words(workload: Workload, view: OrderView) -> str:
    found = factors(workload, view)
    parts = ", ".join(f"{name} {points:.1f}" for name, points in found)
    return f"by {sum(points for _, points in found):.1f} points{': ' + parts if parts else ''}, then by age"


@based_on(Basis.TURN)
@in_words(_words)
def key(workload: Workload, view: OrderView) -> SortKey:
    """The smallest key goes first."""
    return (-sum(points for _, points in factors(workload, view)), workload.submitted_s)


def factors(workload: Workload, view: OrderView) -> tuple[tuple[str, float], ...]:
    """What each factor contributes to the priority, as `sprio` shows it; factors without weight are left out."""
    knobs, spec = view.knobs, workload.spec
    found: list[tuple[str, float]] = []
    if knobs.weight_age:
        found.append(("age", knobs.weight_age * age(workload, view)))
    if knobs.weight_fair_share:
        found.append(("fair share", knobs.weight_fair_share * fair_tree.factor(workload, view)))
    if knobs.weight_size:
        part = _largest_part(spec, view.cluster)
        found.append(("size", knobs.weight_size * (1.0 - part if knobs.favor_small else part)))
    if knobs.weight_queue:
        found.append(("queue", knobs.weight_queue * view.once(_queue_factors).get(spec.queue, 0.0)))
    if knobs.weight_priority and knobs.priority_max > 0:
        found.append(("priority", knobs.weight_priority * min(1.0, spec.priority / knobs.priority_max)))
    for name, weight in knobs.weight_resources:
        found.append((name, weight * _part(spec, view.cluster, name)))
    return tuple(found)


def age(workload: Workload, view: OrderView) -> float:
    """How long it has been eligible to run, over `age_max_s`, at most 1."""
    waited_s = view.now_s - eligible_s(workload)
    return max(0.0, min(1.0, waited_s / view.knobs.age_max_s)) if view.knobs.age_max_s > 0 else 1.0


def _largest_part(spec: WorkloadSpec, cluster: Resources) -> float:
    return _part(spec, cluster, GPU if spec.least(GPU) else CPU)


def _part(spec: WorkloadSpec, cluster: Resources, name: str) -> float:
    whole = cluster.units(name)
    return min(1.0, spec.least(name) / whole) if whole else 0.0


def _queue_factors(view: OrderView) -> dict[str, float]:
    largest = max((spec.surplus_priority for spec in view.queues.values()), default=0)
    if largest <= 0:
        return {}
    return {id: max(0, spec.surplus_priority) / largest for id, spec in view.queues.items()}
