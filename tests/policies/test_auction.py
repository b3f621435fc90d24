"""The partial auction: worked numbers, that lying gains nothing, and whom it puts first."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayorch.core.ordering import OrderKnobs, OrderView
from rayorch.core.planner import plan
from rayorch.core.types import Workload
from rayorch.policies.default import DEFAULT
from rayorch.policies.order.auction import Bid, auction, divide, key
from tests.scenes import NOW, node, pending, queue, running, snapshot, started


def linear(name: str, slope: float = 1.0, most: int = 10**6) -> Bid:
    """An app to which every GPU is worth the same."""
    return Bid(name, lambda gpus: slope * gpus, most)


@pytest.mark.parametrize(("count", "kept"), [(2, 0.5), (3, 0.444444), (4, 0.421875), (10, 0.387420)])
def test_equal_linear_bidders_keep_what_is_published(count: int, kept: float) -> None:
    pool = count * (count - 1)
    won = auction([linear(f"a{n}") for n in range(count)], pool)
    assert {w.fair for w in won.values()} == {pool // count}
    assert all(w.kept == pytest.approx(kept, rel=1e-5) for w in won.values())
    assert all(w.kept >= 1 / 2.7182818285 for w in won.values())


def test_who_is_alone_pays_nothing_and_nobody_gets_more_than_it_asks_for() -> None:
    assert auction([linear("a", most=5)], 8)["a"].gpus == 5
    won = auction([linear("a", most=2), linear("b", most=2)], 8)
    assert {name: (w.fair, w.kept) for name, w in won.items()} == {"a": (2, 1.0), "b": (2, 1.0)}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.1, 10.0), min_size=2, max_size=5),
    st.floats(0.05, 20.0),
    st.integers(2, 40),
)
def test_stating_a_multiple_of_ones_value_gains_nothing(slopes: list[float], factor: float, pool: int) -> None:
    honest = [linear(f"a{n}", slope) for n, slope in enumerate(slopes)]
    lying = [linear("a0", slopes[0] * factor), *honest[1:]]
    assert auction(lying, pool)["a0"].gpus <= auction(honest, pool)["a0"].gpus


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 5.0), st.integers(0, 12)), min_size=1, max_size=5), st.integers(0, 40))
def test_a_division_uses_what_can_be_used_and_payments_only_take(asks: list[tuple[float, int]], pool: int) -> None:
    bids = [linear(f"a{n}", slope, most) for n, (slope, most) in enumerate(asks)]
    given_ = divide(bids, pool)
    assert sum(given_.values()) == min(pool, sum(most for _, most in asks))
    for name, won in auction(bids, pool).items():
        assert 0 <= won.kept <= 1 and won.gpus <= won.fair == given_[name]


def of(owner: str, id: str, gpus: int = 2, waited_s: float = 100.0, left_s: float = 100.0) -> Workload:
    """Work of an owner that has waited for so long."""
    return pending(id, gpu=gpus, submitted_s=NOW - waited_s, owner=owner, expected_s=left_s)


def view(work: list[Workload], fairness: float = 0.8) -> OrderView:
    """A cluster of one free node of 8 GPUs."""
    return OrderView(NOW, OrderKnobs(auction_fairness=fairness), {}, (node("n1"),), workloads=tuple(work))


def test_the_app_that_is_farthest_behind_goes_first() -> None:
    work = [of("late", "late", waited_s=900.0), of("new", "new", waited_s=10.0), of("new", "new2", waited_s=10.0)]
    seen = view(work)
    assert sorted(work, key=lambda w: key(w, seen))[0].id == "late"
    assert key(work[0], seen)[1] == 0 and key(work[1], seen)[1] == 1, "only one app of two bids"


def test_who_bids_against_others_pays_and_the_rest_goes_to_all() -> None:
    work = [of("a", f"a{n}", waited_s=500.0) for n in range(4)] + [of("b", f"b{n}", waited_s=500.0) for n in range(4)]
    seen = view(work, fairness=0.0)
    won = [w.id for w in work if key(w, seen)[1] == 0]
    assert won and len([id for id in won if id[0] == "a"]) == len([id for id in won if id[0] == "b"])
    assert len(won) < 4, "each keeps a part of its half"
    made = plan(snapshot([node("n1")], work), replace(DEFAULT, order=key))
    assert len(started(made)) == 4, "nothing stays idle"


def test_apps_of_whose_work_nothing_is_known_do_not_bid() -> None:
    unknown = pending("u", gpu=2, submitted_s=0.0, owner="u")
    seen = view([unknown, of("b", "b")], fairness=0.0)
    assert key(unknown, seen)[1:3] == (1, 0.0) and key(of("b", "b"), seen)[1] == 0


def test_what_is_held_lowers_rho() -> None:
    held, allocation = running("r", ["n1"], gpu=4, owner="rich", expected_s=2000.0, started_s=NOW)
    work = [held, of("rich", "more", waited_s=500.0), of("poor", "p", waited_s=400.0)]
    seen = replace(view(work), allocations=(allocation,), queues={queue("q").id: queue("q")})
    assert [w.id for w in sorted(work[1:], key=lambda w: key(w, seen))] == ["p", "more"]
