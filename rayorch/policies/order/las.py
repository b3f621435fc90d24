"""Least attained service in two dimensions, GPUs times seconds, by levels (Tiresias, Gu 2019).

Work starts on the top level and goes one down at each threshold of attained service: short work is not kept waiting by
long work, without anybody having said how long anything takes. Within a level: first come, first served. Where no
thresholds are set they are the median and the 80 % quantile of what finished work has attained in a long past (what
finished a month before counts half), as long as enough has finished; before that all is one level.

`promoting_key` also brings back to the top what has waited `las_promote` times as long as it has run; when it runs
then, only what it attains from there on counts. `time_key` counts seconds of work alone, whatever the number of GPUs;
so do its thresholds.

Where the profile evicts by order, work of a level makes room for work of a higher one, never for its own. So who is
demoted goes on while nobody above needs the room. The artifact puts it behind all that wait on its new level; and it
computes the next demotion by (limit - seconds) / GPUs, in mixed units, which is not done here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal

from rayorch.core.history import finished_quantiles
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
    return _level_words(workload, level(workload, view), limits, f"{served:.0f} GPU-seconds")


def _time_words(workload: Workload, view: OrderView) -> str:
    ran, limits = run_s(workload, view.now_s), view.once(time_thresholds)
    return _level_words(workload, _level_at(ran, limits), limits, f"{ran:.0f} seconds of work")


def _level_words(workload: Workload, at: int, limits: Sequence[float], so_far: str) -> str:
    where = f"level {at + 1} of {len(limits) + 1} ({so_far} so far)"
    return f"by priority ({workload.spec.priority}), then by {where}"


def _demoted_s(workload: Workload, view: OrderView) -> float | None:
    attained = attained_gpu_s(workload, view.now_s)
    return _reaches_s(workload, view, view.once(thresholds), attained, gpus_held(workload))


def _time_demoted_s(workload: Workload, view: OrderView) -> float | None:
    return _reaches_s(workload, view, view.once(time_thresholds), run_s(workload, view.now_s), 1.0)


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
@in_words(_time_words)
def time_key(workload: Workload, view: OrderView) -> SortKey:
    """The same by seconds of work instead of GPU-seconds (the one dimension of earlier least attained service)."""
    at = _level_at(run_s(workload, view.now_s), view.once(time_thresholds))
    return (-workload.spec.priority, at, workload.submitted_s)


@ranks(3, _demoted_s)
@based_on(Basis.HISTORY)
@in_words(_words)
def senior_key(workload: Workload, view: OrderView) -> SortKey:
    """The smallest key goes first; and of one level the older takes the room of the younger (Pollux' Tiresias)."""
    return (-workload.spec.priority, level(workload, view), workload.submitted_s)


def level(workload: Workload, view: OrderView) -> int:
    """0 is the top."""
    return _level_at(attained_gpu_s(workload, view.now_s), view.once(thresholds))


def _level_at(attained: float, limits: Sequence[float]) -> int:
    return bisect_right(limits, attained * (1 + HAIR))


def _reaches_s(
    workload: Workload, view: OrderView, limits: Sequence[float], attained: float, pace: float
) -> float | None:
    """When running work will have attained what takes it one level down."""
    at = _level_at(attained, limits)
    if at == len(limits) or pace <= 0 or held_since_s(workload) is None:
        return None
    return view.now_s + (limits[at] - attained) / pace


def _level_with_promotion(workload: Workload, view: OrderView) -> int:
    if held_since_s(workload) is None:
        return 0 if promoted(workload, view) else level(workload, view)
    since_s, started_s = workload.requeued_s, workload.started_s
    if since_s is None or started_s is None or not _waited_enough(workload.progress_s, started_s - since_s, view):
        return level(workload, view)
    return _level_at(attained_gpu_s(workload, view.now_s) - workload.attained_gpu_s, view.once(thresholds))


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
    return view.knobs.las_thresholds_gpu_s or _learned(view, "gpu_s")


def time_thresholds(view: OrderView) -> tuple[float, ...]:
    """The same in seconds of work."""
    return view.knobs.las_thresholds_gpu_s or _learned(view, "run_s")


def _learned(view: OrderView, measure: Literal["run_s", "gpu_s"]) -> tuple[float, ...]:
    return finished_quantiles(view.history.classes, measure, LEARNED_QUANTILES, MIN_SAMPLES)
