"""A guardrail for finish-time fairness: whoever would be treated worse than `rho_max` goes to the front.

    rho = shared / alone     (Themis, Mahajan 2020)

`shared`: from submission to the end, if it started now. `alone`: how long it would take with its 1/N of the cluster, N
the workloads that are there now (Themis: the average over its life). A gang larger than its part runs slower there in
proportion. Without a forecast of its remaining time there is no rho, and nothing is raised.

`key` puts it before priority and age, `las_key` before the levels of least attained service; never before another
priority.
"""

from __future__ import annotations

import math

from rayorch.core.ordering import Basis, OrderView, SortKey, based_on, in_words, ranks
from rayorch.core.service import run_s
from rayorch.core.types import GPU, UNIT, Workload
from rayorch.policies.order import las
from rayorch.policies.order.remaining import forecast


def _words(workload: Workload, view: OrderView) -> str:
    found = projected_rho(workload, view)
    known = "not known" if found is None else f"{found:.2f}"
    rule = f"whose finish-time fairness is above {view.knobs.rho_max:g} (it is {known})"
    return f"by priority ({workload.spec.priority}), then {rule}"


@ranks(2)
@based_on(Basis.TURN)
@in_words(_words)
def key(workload: Workload, view: OrderView) -> SortKey:
    """The smallest key goes first."""
    return (-workload.spec.priority, int(not wronged(workload, view)), workload.submitted_s)


@ranks(3)
@based_on(Basis.TURN)
@in_words(_words)
def las_key(workload: Workload, view: OrderView) -> SortKey:
    """The same over least attained service."""
    return (
        -workload.spec.priority,
        int(not wronged(workload, view)),
        las.level(workload, view),
        workload.submitted_s,
    )


def wronged(workload: Workload, view: OrderView) -> bool:
    """Whether it would end later than `rho_max` times as long after its submission as alone on its part."""
    found = projected_rho(workload, view)
    return found is not None and found > view.knobs.rho_max


def projected_rho(workload: Workload, view: OrderView) -> float | None:
    """Finish-time fairness if it started now; None where its remaining time is not known."""
    left = view.once(forecast).remaining(workload)
    if left is None:
        return None
    waited_s = max(0.0, view.now_s - workload.submitted_s)
    gpus = workload.spec.least(GPU) / UNIT
    whole_s = run_s(workload, view.now_s) + left[0]
    return rho(waited_s + left[0], whole_s, gpus, view.cluster.gpu_units / UNIT, max(1, len(view.work)))


def rho(shared_s: float, run_s: float, gpus: float, cluster_gpus: float, active: int) -> float:
    """The ratio for work that takes `run_s` on `gpus`, of a cluster that `active` workloads share."""
    alone_s = run_s * max(1.0, gpus / fair_part(cluster_gpus, active))
    return shared_s / alone_s if alone_s > 0 else math.inf


def fair_part(cluster_gpus: float, active: int) -> float:
    """What each of so many has of the cluster: whole GPUs, at least one."""
    return max(1.0, math.ceil(cluster_gpus / max(1, active)))


def mixed_rho(parts: tuple[tuple[float, float], ...]) -> float:
    """Over several GPU types: (devices, rho on them) weighted by devices (Sia, Jayaram Subramanya 2023, eq. 3)."""
    devices = sum(count for count, _ in parts)
    return sum(count * value for count, value in parts) / devices
