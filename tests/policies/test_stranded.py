"""Shares that count what a queue strands: by hand, in sum, and in who goes first."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayorch.core.ordering import OrderView
from rayorch.core.planner import plan
from rayorch.core.types import UNIT, QueueId
from rayorch.policies.default import DEFAULT
from rayorch.policies.queue_order import stranded
from tests.scenes import NOW, node, pending, queue, running, snapshot, started


def view(*work: object) -> OrderView:
    """What a turn sees of these on two nodes of 8 GPUs."""
    return OrderView.of(snapshot([node("n1"), node("n2")], work, [queue("a", 8), queue("b", 8)]), DEFAULT.ordering)


def test_who_breaks_a_node_pays_for_what_it_strands_and_who_fills_the_gap_is_credited() -> None:
    first = running("a1", ["n1"], queue="a", started_s=1.0)
    second = running("b1", ["n1"], queue="b", started_s=2.0)
    # Seats of 1 GPU twice, of 8 once: two thirds of what is asked for can use a gap.
    seen = view(first, second, pending("large", gpu=8, queue="b"))
    assert stranded.caused(seen) == pytest.approx({QueueId("a"): 7 / 3 * UNIT, QueueId("b"): -1 / 3 * UNIT})
    assert stranded.stranded(seen) == pytest.approx({QueueId("a"): 7 / 3 * UNIT, QueueId("b"): 0.0})


def test_nothing_is_stranded_where_all_ask_for_the_same() -> None:
    seen = view(running("a1", ["n1"], queue="a"), pending("more", queue="b"))
    assert stranded.stranded(seen) == {QueueId("a"): 0.0}
    assert stranded.stranded(view(pending("p", gpu=0, cpu=4))) == {}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 4), st.sampled_from(["n1", "n2"])), max_size=6))
def test_all_charges_add_up_to_what_is_fragmented(seats: list[tuple[str, int, str]]) -> None:
    free, work = {"n1": 8, "n2": 8}, list[object]()
    for number, (where, gpus, on) in enumerate(seats):
        if gpus <= free[on]:
            free[on] -= gpus
            work.append(running(f"w{number}", [on], gpu=gpus, queue=where, started_s=float(number)))
    seen = view(*work, *(pending(f"p{n}", gpu=8, queue="b") for n in range(20)))
    shapes = stranded.shapes_of(seen)
    now = sum(shapes.of("", 640_000, tuple([UNIT] * left + [0] * (8 - left))) for left in free.values())
    assert sum(stranded.caused(seen).values()) == pytest.approx(now / shapes.total, abs=1e-6)


def test_of_two_queues_that_hold_as_much_the_one_goes_first_that_fills_gaps() -> None:
    breaks = [running(f"a{n}", [f"n{n}"], gpu=2, queue="a", started_s=float(n)) for n in (1, 2)]
    fills = [running("b1", ["n3"], gpu=4, queue="b", started_s=1.0)]
    waits = [pending("pa", gpu=2, queue="a", submitted_s=1.0), pending("pb", gpu=2, queue="b", submitted_s=2.0)]
    large = [pending(f"l{n}", gpu=8, queue="b", submitted_s=NOW - 1) for n in range(8)]
    nodes = [node("n1"), node("n2"), node("n3", 6)]
    made = snapshot(nodes, [*breaks, *fills, *waits, *large], [queue("a", 11), queue("b", 11)])
    assert next(iter(started(plan(made, DEFAULT)))) == "pa"
    assert next(iter(started(plan(made, replace(DEFAULT, queue_order=stranded.key))))) == "pb"
