"""Weights that fall with what was used lately: numbers of the formula, and what stays the same."""

from __future__ import annotations

import math

import pytest

from rayorch.core.history import Account, History
from rayorch.core.types import QueueId
from rayorch.core.usage_weights import SCALE, used_below, weighted_by_usage
from tests.scenes import NOW, queue

LIFE_S = 1000.0


def _history(half_life_s: float = LIFE_S, **gpu_s: float) -> History:
    """What was used up to now in each queue; `p_x` is p/x."""
    accounts = [Account(QueueId(name.replace("_", "/")), "u", NOW, gpu_s=used) for name, used in gpu_s.items()]
    return History(half_life_s, {account.key: account for account in accounts})


def _weights(k: float, history: History, *queues: object, gpus: float = 10.0) -> dict[str, float]:
    found = weighted_by_usage(queues, history, NOW, gpus, k)  # type: ignore[arg-type]
    return {spec.id: spec.weight / SCALE for spec in found}


def test_who_used_less_than_its_part_weighs_more_and_who_used_more_less() -> None:
    """10 GPUs in use for ever count as 10 × 1000 / ln 2; A used a quarter of that, B half, of parts 1/4 and 3/4."""
    whole = 10.0 * LIFE_S / math.log(2)
    history = _history(A=whole / 4, B=whole / 2)
    weights = _weights(2.0, history, queue("A", weight=1), queue("B", weight=3))
    assert weights == pytest.approx({"A": 0.25, "B": 0.75 + 2 * 0.25})


def test_no_weight_is_negative_and_k_zero_changes_nothing() -> None:
    history = _history(A=1e9)
    assert _weights(1.0, history, queue("A"), queue("B")) == pytest.approx({"A": 0.0, "B": 1.0})
    queues = (queue("A", weight=7), queue("B"))
    assert weighted_by_usage(queues, history, NOW, 10.0, 0.0) == queues


def test_siblings_are_compared_and_a_queue_has_used_what_those_below_it_have() -> None:
    history = _history(p_x=30.0, p_y=10.0, z=60.0)
    assert used_below(history, NOW) == {"p": 40.0, "p/x": 30.0, "p/y": 10.0, "z": 60.0}
    weights = _weights(
        1.0, _history(0.0, p_x=30.0, p_y=10.0, z=60.0), queue("p"), queue("p/x"), queue("p/y"), queue("z")
    )
    assert weights == pytest.approx({"p": 0.6, "z": 0.4, "p/x": 0.7, "p/y": 0.9}), "without decay: parts of all usage"


def test_nothing_used_yet_leaves_the_proportions() -> None:
    weights = _weights(3.0, History(), queue("A", weight=1), queue("B", weight=3), gpus=0.0)
    assert weights["B"] == pytest.approx(3 * weights["A"])
