"""Evictions by the profile's order: whoever ranks behind makes room, and nobody is stopped in vain."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayorch.core.eviction import EvictionKnobs
from rayorch.core.ordering import OrderKnobs, OrderView, SortKey, rank_changes_s, rank_of, ranks
from rayorch.core.planner import plan
from rayorch.core.policy import BackfillKnobs, OrderPolicy, Profile
from rayorch.core.types import Allocation, StopCause, Workload, WorkloadId
from rayorch.policies.default import DEFAULT
from rayorch.policies.order import fifo, las, remaining, smallest
from tests.scenes import NOW, changes, node, pending, queue, running, snapshot, started, stopped

LIMITS = OrderKnobs(las_thresholds_gpu_s=(1000.0, 5000.0))


def by_order(order: OrderPolicy, knobs: OrderKnobs = LIMITS, **eviction: float) -> Profile:
    """The default with another order, which evicts by it."""
    rules = replace(EvictionKnobs(by_order=True, consolidate=False), **eviction)  # type: ignore[arg-type]
    return replace(DEFAULT, order=order, ordering=knobs, eviction=rules, backfill=BackfillKnobs(hold=False))


Running = tuple[Workload, Allocation]


def at_level(id: str, gpus: int, served_gpu_s: float, started_s: float = NOW, on: str = "n1") -> Running:
    """It runs and has had so much service by former attempts."""
    workload, allocation = running(id, [on], gpu=gpus, started_s=started_s)
    return replace(workload, attained_gpu_s=served_gpu_s), allocation


def test_work_of_a_level_makes_room_for_work_of_a_higher_one() -> None:
    work = [at_level("long", 8, 2000.0), pending("new", gpu=4)]
    made = plan(snapshot([node("n1")], work), by_order(las.key))
    assert stopped(made) == {"long": StopCause.PREEMPTED}
    (stop,) = [d for d in changes(made) if hasattr(d, "order")]
    assert stop.order.reason == "preempted for new, which goes before it by order"
    assert stopped(plan(snapshot([node("n1")], work), replace(by_order(las.key), eviction=EvictionKnobs()))) == {}


def test_nobody_makes_room_for_its_own_level_or_for_a_lower_one() -> None:
    for served in (10.0, 2000.0):
        work = [at_level("runs", 8, served), replace(pending("waits", gpu=4), attained_gpu_s=2000.0)]
        assert changes(plan(snapshot([node("n1")], work), by_order(las.key))) == []


def test_those_that_rank_last_go_first_and_no_more_of_them_than_it_takes() -> None:
    work = [at_level("middle", 4, 2000.0), at_level("low", 4, 9000.0), pending("new", gpu=4)]
    assert stopped(plan(snapshot([node("n1")], work), by_order(las.key))) == {"low": StopCause.PREEMPTED}
    both = [*work[:2], pending("new", gpu=8)]
    assert set(stopped(plan(snapshot([node("n1")], both), by_order(las.key)))) == {"low", "middle"}


def test_of_equal_rank_the_one_goes_whose_stop_loses_least() -> None:
    work = [
        at_level("old", 4, 2000.0, started_s=NOW - 300),
        at_level("new", 4, 2000.0, started_s=NOW - 10),
        pending("waits", gpu=4),
    ]
    assert set(stopped(plan(snapshot([node("n1")], work), by_order(las.key)))) == {"new"}


def test_an_eviction_that_would_lose_more_than_it_is_worth_is_not_made() -> None:
    work = [at_level("long", 8, 2000.0, started_s=NOW - 500), pending("new", gpu=4)]  # (500 + 30) * 8 would be lost
    assert stopped(plan(snapshot([node("n1")], work), by_order(las.key, order_worth_s=1059.0))) == {}
    assert set(stopped(plan(snapshot([node("n1")], work), by_order(las.key, order_worth_s=1061.0)))) == {"long"}


def test_a_gang_that_needs_a_whole_node_stops_only_who_is_there() -> None:
    work = [
        at_level("a", 4, 2000.0),
        at_level("b", 4, 9000.0, on="n2"),
        at_level("c", 4, 2000.0, on="n2"),
        pending("new", gpu=8),
    ]
    made = plan(snapshot([node("n1"), node("n2")], work), by_order(las.key))
    assert set(stopped(made)) == {"a"}, "n1 has four free GPUs"


def test_across_queues_the_order_stops_nobody() -> None:
    work = [at_level("long", 8, 2000.0), pending("new", gpu=4, queue="other")]
    made = plan(snapshot([node("n1")], work, [queue("q"), queue("other")]), by_order(las.key))
    assert changes(made) == []


def test_nobody_takes_room_back_from_the_one_it_made_room_for_unless_the_order_bounds_that() -> None:
    @ranks(2, takes_back=True)
    def bounded(workload: Workload, view: OrderView) -> SortKey:
        return las.key(workload, view)

    back = replace(pending("back", gpu=4), yielded_to=WorkloadId("runs"), requeued_s=NOW - 100)
    work = [at_level("runs", 8, 2000.0), back]
    assert stopped(plan(snapshot([node("n1")], work), by_order(las.key))) == {}
    assert set(stopped(plan(snapshot([node("n1")], work), by_order(bounded)))) == {"runs"}


def test_a_rank_may_be_another_thing_than_the_beginning_of_the_key() -> None:
    @ranks(1, rank=las.key)
    def oldest(workload: Workload, view: OrderView) -> SortKey:
        return (workload.submitted_s,)

    work = pending("w", submitted_s=5.0)
    view = OrderView(NOW, LIMITS)
    assert rank_of(oldest, work, view) == (las.key(work, view), (5.0,))


def test_an_order_that_ranks_nobody_stops_nobody() -> None:
    work = [at_level("long", 8, 2000.0), pending("new", gpu=4)]
    assert rank_of(fifo.key, pending("x"), OrderView(NOW)) is None
    assert changes(plan(snapshot([node("n1")], work), by_order(fifo.key))) == []


def test_without_held_nodes_whoever_fits_starts() -> None:
    large, small = pending("large", 2, submitted_s=1.0, gpu=4), pending("small", 2, gpu=1, submitted_s=2.0)
    work = [running("r", ["n1"], gpu=6), large, small]
    held = replace(by_order(fifo.key), backfill=BackfillKnobs())
    assert set(started(plan(snapshot([node("n1")], work), by_order(fifo.key)))) == {"small"}
    assert set(started(plan(snapshot([node("n1")], work), held))) == set()


def test_work_says_when_it_will_be_demoted() -> None:
    work, _ = at_level("w", 4, 800.0, started_s=NOW - 25)  # 900 GPU-seconds by now, 4 more each second
    view = OrderView(NOW, LIMITS)
    assert rank_changes_s(las.key, work, view) == pytest.approx(NOW + 25)
    assert las.level(work, replace(view, now_s=NOW + 24.9)) == 0 and las.level(work, replace(view, now_s=NOW + 25)) == 1
    assert rank_changes_s(las.key, work, replace(view, now_s=NOW + 25)) == pytest.approx(NOW + 1025)
    assert rank_changes_s(las.key, pending("p"), view) is None and rank_changes_s(fifo.key, work, view) is None


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from([0.0, 2000.0, 9000.0])), min_size=1, max_size=6),
    st.tuples(st.integers(1, 8), st.sampled_from([0.0, 2000.0, 9000.0])),
)
def test_what_is_left_running_is_what_a_walk_in_one_order_leaves(
    runs: list[tuple[int, float]], waiting: tuple[int, float]
) -> None:
    """One claim, seats of one GPU anywhere: the outcome is that of the walk over all that runs and the claim."""
    seats, there = ["n1"] * 8 + ["n2"] * 8, list[Running]()
    for number, (size, served) in enumerate(runs):
        if size <= len(seats):
            on, seats = seats[:size], seats[size:]
            workload, allocation = running(f"r{number}", on, size, gpu=1, started_s=NOW)
            there.append((replace(workload, attained_gpu_s=served), allocation))
    size, served = waiting
    claim = replace(pending("claim", size, gpu=1), attained_gpu_s=served)
    made = plan(snapshot([node("n1"), node("n2")], [*there, claim]), by_order(las.key))
    view = OrderView(NOW, LIMITS)
    ahead = [w for w, _ in there if las.level(w, view) <= las.level(claim, view)]
    behind = [w for w, _ in there if las.level(w, view) > las.level(claim, view)]
    behind.sort(key=lambda w: (las.level(w, view), -len(w.placement), w.id))  # the larger one's stop loses more
    left = 16 - sum(len(w.placement) for w in ahead) - size
    fits, gone = left >= 0, set[str]()
    for workload in behind:
        if len(workload.placement) <= left:
            left -= len(workload.placement)
        else:
            gone.add(workload.id)
    assert set(stopped(made)) == (gone if fits else set())
    assert ("claim" in started(made) or bool(gone)) is fits or not fits


@pytest.mark.parametrize(("order", "victim"), [(remaining.key, "b"), (remaining.gpu_key, "a"), (smallest.key, "a")])
def test_other_orders_rank_by_time_left_by_service_left_and_by_size(order: OrderPolicy, victim: str) -> None:
    work = [
        running("a", ["n1"], gpu=6, started_s=NOW, expected_s=100.0),
        running("b", ["n1"], gpu=2, started_s=NOW, expected_s=200.0),
        pending("c", gpu=1, expected_s=50.0),
    ]
    assert set(stopped(plan(snapshot([node("n1")], work), by_order(order)))) == {victim}
