"""Least attained service in two dimensions, GPUs times seconds, by levels (Tiresias, Gu 2019).

Work starts on the top level and goes one down at each threshold of attained service: short work is not kept waiting by
long work, without anybody having said how long anything takes. Within a level: first come, first served. Where no
thresholds are set they are the median and the 80 % quantile of what finished work has attained, as long as enough has
finished; before that all is one level.

`promoting_key` also brings back to the top what has waited `las_promote` times as long as it has run.
"""

from __future__ import annotations

import math
from bisect import bisect_right

from rayorch.core.ordering import Basis, OrderView, SortKey, based_on, in_words
from rayorch.core.service import attained_gpu_s, run_s
from rayorch.core.types import Workload

LEARNED_QUANTILES = (0.5, 0.8)
MIN_SAMPLES = 20
"""So many must have finished before thresholds are learned from them."""


def _words(workload: Workload, view: OrderView) -> str:
    served, limits = attained_gpu_s(workload, view.now_s), view.once(thresholds)
    where = f"level {level(workload, view) + 1} of {len(limits) + 1} ({served:.0f} GPU-seconds so far)"
    return f"by priority ({workload.spec.priority}), then by {where}"


@based_on(Basis.HISTORY)
@in_words(_words)
def key(workload: Workload, view: OrderView) -> SortKey:
    """The smallest key goes first."""
    return (-workload.spec.priority, level(workload, view), workload.submitted_s)


@based_on(Basis.TURN)
@in_words(_words)
def promoting_key(workload: Workload, view: OrderView) -> SortKey:
    """The same with the rule against starvation."""
    return (-workload.spec.priority, 0 if promoted(workload, view) else level(workload, view), workload.submitted_s)


def level(workload: Workload, view: OrderView) -> int:
    """0 is the top."""
    return bisect_right(view.once(thresholds), attained_gpu_s(workload, view.now_s))


def promoted(workload: Workload, view: OrderView) -> bool:
    """Whether it has waited for so long since it last ran that it starts again at the top."""
    factor, ran_s = view.knobs.las_promote, run_s(workload, view.now_s)
    if factor <= 0 or ran_s <= 0 or workload.requeued_s is None:
        return False
    return view.now_s - workload.requeued_s >= factor * ran_s


def thresholds(view: OrderView) -> tuple[float, ...]:
    """Attained service, in GPU-seconds, at which work goes one level down; rising."""
    if view.knobs.las_thresholds_gpu_s:
        return view.knobs.las_thresholds_gpu_s
    classes = view.history.classes
    attained = sorted(s.gpu_s for name in classes if name.startswith("kind/") for s in classes[name].samples)
    if len(attained) < MIN_SAMPLES:
        return ()
    return tuple(attained[math.ceil(q * len(attained)) - 1] for q in LEARNED_QUANTILES)
