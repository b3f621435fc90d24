"""The bound on what moves can reach, on pods made by hand."""

from __future__ import annotations

from itertools import combinations_with_replacement

import pytest

from benchmarks.played.openb import Pod, Scene, node_of
from benchmarks.played.openb_ceiling import TWELFTHS, before_the_first_dropped, ceiling, weight
from rayorch.core.types import UNIT, Resources


def pod(gpu: float) -> Pod:
    """A share, or whole GPUs."""
    units = round(gpu * UNIT)
    whole = max(1, units // UNIT)
    return Pod("p", Resources.of({"GPU": gpu}), whole, units // whole, ())


def scene(gpus: int, *sizes: float) -> Scene:
    """Pods that arrive on nodes of one GPU."""
    nodes = tuple(node_of("", (f"n{i}", 8_000, 1_024, 1, "T4")) for i in range(gpus))
    return Scene(nodes, tuple(pod(size) for size in sizes), (), gpus * UNIT)


def test_what_fits_on_a_gpu_never_weighs_more_than_a_whole_one() -> None:
    sizes = [round(size * 100) for size, _ in TWELFTHS]
    assert weight(pod(1)) == UNIT
    for count in range(1, 100 // min(sizes) + 1):
        for held in combinations_with_replacement(sizes, count):
            if sum(held) <= 100:
                assert sum(weight(pod(size / 100)) for size in held) <= UNIT * (1 + 1e-9), held


def test_a_larger_share_never_weighs_less() -> None:
    weights = [weight(pod(size / 100)) for size in range(1, 101)]
    assert weights == sorted(weights)


@pytest.mark.parametrize("gpu", [1, 2, 8])
def test_whole_gpus_weigh_what_they_are(gpu: int) -> None:
    assert weight(pod(gpu)) == gpu * UNIT


def test_nobody_gets_more_than_came() -> None:
    assert ceiling(scene(4, 0.81, 1, 0.47), 3, (57,))[57] == pytest.approx(57, abs=0.01)


def test_those_that_are_certain_leave_their_gaps_and_others_may_be_left_out() -> None:
    sizes = (0.81, 0.81, 1, 0.38)  # three on three GPUs, and one that finds no room
    assert ceiling(scene(3, *sizes), 3)[100] == pytest.approx((0.81 * 2 + 1 + 0.38 - 4 / 12) / 3 * 100, abs=0.01)
    assert ceiling(scene(3, *sizes), 0)[100] == pytest.approx(100, abs=0.01)


def test_what_was_played_tells_who_is_certain() -> None:
    played = scene(1, 0.5, 0.4, 0.2, 0.1)
    units = [round(part * UNIT) for part in (0.5, 0.9, 0.9, 1.0)]
    assert before_the_first_dropped(played, units) == 2
    assert before_the_first_dropped(scene(1, 0.5, 0.4), units[:2]) == 2
