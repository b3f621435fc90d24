"""Least attained service in two dimensions, GPUs times seconds, by levels (Tiresias, Gu 2019).

Work starts on the top level and goes one down at each threshold of attained service: short work is not kept waiting by
long work, without anybody having said how long anything takes. Within a level: first come, first served. Where no
thresholds are set they are the median and the 80 % quantile of what finished work has attained, as long as enough has
finished; before that all is one level.

`promoting_key` also brings back to the top what has waited `las_promote` times as long as it has run; when it runs
then, only what it attains from there on counts. `time_key` counts seconds alone, whatever the number of GPUs.

Where the profile evicts by order, work of a level makes room for work of a higher one, never for its own. So who is
demoted goes on while nobody above needs the room. The artifact puts it behind all that wait on its new level; and it
computes the next demotion by (limit - seconds) / GPUs, in mixed units, which is not done here.
"""

from __future__ import annotations

import math
from bisect import bisect_right

from rayorch.core.ordering import Basis, OrderView, SortKey, based_on, in_words, ranks
from rayorch.core.service import attained_gpu_s, gpus_held, held_since_s, run_s
from rayorch.core.types import Workload

LEARNED_QUANTILES = (0.5, 0.8)
MIN_SAMPLES = 20
"""So many must have finished before thresholds are learned from them."""
HAIR = 1e-9
"""What comes this close to a threshold has reached it: the time at which it does so is rounded."""


def _words(workload: Workload, view: OrderView) -> str:
    served, limits = attained_gpu_s(workload, view.now_s), view.once(thresholds)
    where = f"level {level(workload, view) + 1} of {len(limits) + 1} ({served:.0f} GPU-seconds so far)"
    return f"by priority ({workload.spec.priority}), then by {where}"


def _demoted_s(workload: Workload, view: OrderView) -> float | None:
    return _reaches_s(workload, view, attained_gpu_s(workload, view.now_s), gpus_held(workload))


def _time_demoted_s(workload: Workload, view: OrderView) -> float | None:
    return _reaches_s(workload, view, run_s(workload, view.now_s), 1.0)


@ranks(2, _demoted_s)
@based_on(Basis.HISTORY)
@in_words(_words)
def key(workload: Workload, view: OrderView) -> SortKey:
    """The smallest key goes first."""
    return (-workload.spec.priority, level(workload, view), workload.submitted_s)


@ranks(2, _demoted_s)
@based_on(Basis.TURN)
@in_words(_words)
def promoting_key(workload: Workload, view: OrderView) -> SortKey:
    """The same with the rule against starvation."""
    return (-workload.spec.priority, _level_with_promotion(workload, view), workload.submitted_s)


@ranks(2, _time_demoted_s)
@based_on(Basis.HISTORY)
@in_words(_words)
def time_key(workload: Workload, view: OrderView) -> SortKey:
    """The same by seconds of work instead of GPU-seconds (the one dimension of earlier least attained service)."""
    at = _level_at(run_s(workload, view.now_s), view)
    return (-workload.spec.priority, at, workload.submitted_s)


@ranks(3, _demoted_s)
@based_on(Basis.HISTORY)
@in_words(_words)
def senior_key(workload: Workload, view: OrderView) -> SortKey:
    """The smallest key goes first; and of one level the older takes the room of the younger (Pollux' Tiresias)."""
    return (-workload.spec.priority, level(workload, view), workload.submitted_s)


def level(workload: Workload, view: OrderView) -> int:
    """0 is the top."""
    return _level_at(attained_gpu_s(workload, view.now_s), view)


def _level_at(attained: float, view: OrderView) -> int:
    return bisect_right(view.once(thresholds), attained * (1 + HAIR))


def _reaches_s(workload: Workload, view: OrderView, attained: float, pace: float) -> float | None:
    """When running work will have attained what takes it one level down."""
    limits = view.once(thresholds)
    at = bisect_right(limits, attained * (1 + HAIR))
    if at == len(limits) or pace <= 0 or held_since_s(workload) is None:
        return None
    return view.now_s + (limits[at] - attained) / pace


def _level_with_promotion(workload: Workload, view: OrderView) -> int:
    if held_since_s(workload) is None:
        return 0 if promoted(workload, view) else level(workload, view)
    since_s, started_s = workload.requeued_s, workload.started_s
    if since_s is None or started_s is None or not _waited_enough(workload.progress_s, started_s - since_s, view):
        return level(workload, view)
    return _level_at(attained_gpu_s(workload, view.now_s) - workload.attained_gpu_s, view)


def promoted(workload: Workload, view: OrderView) -> bool:
    """Whether it has waited for so long since it last ran that it starts again at the top."""
    if workload.requeued_s is None:
        return False
    return _waited_enough(run_s(workload, view.now_s), view.now_s - workload.requeued_s, view)


def _waited_enough(ran_s: float, waited_s: float, view: OrderView) -> bool:
    factor = view.knobs.las_promote
    return factor > 0 and ran_s > 0 and waited_s >= factor * ran_s


def thresholds(view: OrderView) -> tuple[float, ...]:
    """Attained service, in GPU-seconds, at which work goes one level down; rising."""
    if view.knobs.las_thresholds_gpu_s:
        return view.knobs.las_thresholds_gpu_s
    classes = view.history.classes
    attained = sorted(s.gpu_s for name in classes if name.startswith("kind/") for s in classes[name].samples)
    if len(attained) < MIN_SAMPLES:
        return ()
    return tuple(attained[math.ceil(q * len(attained)) - 1] for q in LEARNED_QUANTILES)
