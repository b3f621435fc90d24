"""The Gittins index: who is most likely to finish soon, for the service it takes, by what finished before.

    G(a) = max over Δ of  P(S - a <= Δ | S > a) / E[min(S - a, Δ) | S > a]

for work that has attained a, with S the service of finished work of its class (the finest that has enough of it). The
largest goes first. Unlike least attained service it may go up with a: work that is about to outlive most of its kind
is soon done. After Tiresias (Gu 2019), with the definition. `artifact_key` is as its artifact has it, to compare with:
E over S instead of S - a, one Δ (`gittins_delta_gpu_s`; 3,250), within the levels of least attained service.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rayorch.core.history import History, classes_of
from rayorch.core.ordering import Basis, OrderView, SortKey, based_on, in_words, ranks
from rayorch.core.service import attained_gpu_s
from rayorch.core.types import Workload
from rayorch.policies.order import las

MIN_SAMPLES = 200
"""Of a class with fewer the index says too little; then the next coarser one is asked."""

ARTIFACT_DELTA_GPU_S = 3250.0
"""The artifact's only quantum."""

Samples = NDArray[np.float64]
"""(samples,): service of finished work [GPU-seconds], rising."""
IndexOf = Callable[[Samples, float, float], float]
"""(samples, attained, delta) -> index."""


def _words(workload: Workload, view: OrderView) -> str:
    index_ = _index_of(workload, view)
    known = f"index {index_:.2g} per GPU-second" if index_ else "nothing is known of its kind yet"
    return f"by priority ({workload.spec.priority}), then by how soon it may be done ({known})"


@ranks(2)
@based_on(Basis.HISTORY)
@in_words(_words)
def key(workload: Workload, view: OrderView) -> SortKey:
    """The smallest key goes first. Where no class has enough samples all are equal: first come, first served."""
    return (-workload.spec.priority, -_index_of(workload, view), workload.submitted_s)


@ranks(4)
@based_on(Basis.HISTORY)
@in_words(_words)
def artifact_key(workload: Workload, view: OrderView) -> SortKey:
    """The artifact's: by level, then by its index; of equals the oldest, who takes the room of younger ones."""
    return (
        -workload.spec.priority,
        las.level(workload, view),
        -_index_of(workload, view, artifact_index),
        workload.submitted_s,
    )


def _index_of(workload: Workload, view: OrderView, of: IndexOf | None = None) -> float:
    tables, known = view.once(_tables)
    attained = attained_gpu_s(workload, view.now_s)
    of = of or index
    for name in classes_of(workload.spec):
        samples = tables.get(name)
        if samples is None:
            continue
        at = (of.__name__, name, attained)
        if at not in known:
            known[at] = of(samples, attained, view.knobs.gittins_delta_gpu_s)
        return known[at]
    return 0.0


def _tables(view: OrderView) -> tuple[dict[str, Samples], dict[tuple[str, str, float], float]]:
    """The samples of each class that has enough, and room for the indices that were worked out."""
    return _enough(view.history), {}


def _enough(history: History) -> dict[str, Samples]:
    return {
        name: np.sort(np.array([sample.gpu_s for sample in entry.samples]))
        for name, entry in history.classes.items()
        if len(entry.samples) >= MIN_SAMPLES
    }


def index(samples: Samples, attained: float, delta: float = 0.0) -> float:
    """The Gittins index [1/GPU-second] at an attained service; `delta` 0: the best quantum.

    0 where nothing took longer: it is the last to be waited for. O(samples).
    """
    left = samples[samples > attained] - attained
    if not len(left):
        return 0.0
    if delta > 0:
        return float(np.mean(left <= delta) / np.mean(np.minimum(left, delta)))
    # The best quantum is one of the remaining services: between two of them P stays and E grows.
    n = len(left)
    finished = np.searchsorted(left, left, side="right")
    served = np.concatenate(([0.0], np.cumsum(left)))[finished] + left * (n - finished)
    return float(np.max(finished / served))


def artifact_index(samples: Samples, attained: float, delta: float) -> float:
    """P(S - a <= Δ | S > a) over the mean, of those with S > a, of S where S - a <= Δ and of Δ otherwise."""
    delta = delta or ARTIFACT_DELTA_GPU_S
    above = samples[samples > attained]
    if not len(above):
        return 0.0
    soon = above - attained <= delta
    return float(np.mean(soon) / np.mean(np.where(soon, above, delta)))
