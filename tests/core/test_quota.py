"""What a queue may take: deserved, borrowed, lent, at every level of the tree."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rayorch.core.quota import Quota, Shortage
from rayorch.core.types import GPU, UNIT, QueueId, QueueSpec, Resources


def gpus(amount: int) -> Resources:
    return Resources.of({"GPU": amount})


def queue(path: str, deserved: int, borrow: int | None = None, lend: int | None = None, weight: int = 1) -> QueueSpec:
    return QueueSpec(
        QueueId(path),
        gpus(deserved),
        None if borrow is None else gpus(borrow),
        None if lend is None else gpus(lend),
        weight,
    )


def quota(*queues: QueueSpec, **used: int) -> Quota:
    return Quota.of(queues, {QueueId(name.replace("__", "/")): gpus(n) for name, n in used.items()})


def room(tree: Quota, path: str) -> int | None:
    units = tree.headroom(QueueId(path), GPU)
    return None if units is None else units // UNIT


def test_an_idle_sibling_lends_all_that_it_deserves() -> None:
    assert room(quota(queue("a", 4), queue("b", 4)), "a") == 8


def test_what_the_owner_uses_is_not_lent() -> None:
    assert room(quota(queue("a", 4), queue("b", 4), b=3), "a") == 5


def test_borrowing_stops_at_the_borrow_limit() -> None:
    assert room(quota(queue("a", 4, borrow=1), queue("b", 4)), "a") == 5
    assert room(quota(queue("a", 4, borrow=1), queue("b", 4), a=5), "a") == 0


def test_lending_stops_at_the_lend_limit() -> None:
    assert room(quota(queue("a", 4), queue("b", 4, lend=1)), "a") == 5


def test_what_is_lent_is_lent_once() -> None:
    tree = quota(queue("a", 1), queue("b", 1), queue("c", 4), a=5)
    assert room(tree, "b") == 1


def test_an_owner_is_never_refused_its_share_because_others_borrowed_it() -> None:
    assert room(quota(queue("a", 4), queue("b", 4), a=8), "b") == 4


def test_a_parent_bounds_its_children_together() -> None:
    tree = quota(queue("p", 6, borrow=0), queue("p/a", 4), queue("p/b", 4), queue("other", 10), p__a=4)
    assert room(tree, "p/b") == 2
    assert tree.shortages(QueueId("p/b"), gpus(3)) == (
        Shortage(QueueId("p"), GPU, 3 * UNIT, 2 * UNIT, 4 * UNIT, 6 * UNIT),
    )


def test_a_child_borrows_through_its_parent_from_the_parents_siblings() -> None:
    assert room(quota(queue("p", 4), queue("p/a", 4), queue("other", 3)), "p/a") == 7


def test_the_part_of_a_parent_that_is_no_childs_share_may_be_borrowed_once() -> None:
    tree = quota(queue("p", 8, borrow=0), queue("p/a", 2), queue("p/b", 2), p__b=2)
    assert room(tree, "p/a") == 6
    assert room(quota(queue("p", 8, borrow=0), queue("p/a", 2), queue("p/b", 2), p__b=6), "p/a") == 2


def test_an_unnamed_resource_is_not_limited() -> None:
    tree = quota(QueueSpec(QueueId("a"), Resources.of({"CPU": 4})))
    assert room(tree, "a") is None
    assert tree.fits(QueueId("a"), gpus(1000))


def test_a_queue_that_deserves_nothing_lives_on_what_it_borrows() -> None:
    assert room(quota(queue("a", 0, borrow=2), queue("b", 4)), "a") == 2
    assert room(quota(queue("a", 0, borrow=2), queue("b", 4), b=4), "a") == 0


def test_usage_counts_at_every_ancestor() -> None:
    tree = quota(queue("p", 8), queue("p/a", 4), p__a=3)
    tree.charge(QueueId("p/a"), gpus(1))
    assert tree.used(QueueId("p")) == gpus(4)
    tree.refund(QueueId("p/a"), gpus(4))
    assert tree.used(QueueId("p")) == Resources()


def test_a_copy_has_usage_of_its_own() -> None:
    tree = quota(queue("a", 4))
    copy = tree.copy()
    copy.charge(QueueId("a"), gpus(4))
    assert (room(tree, "a"), room(copy, "a")) == (4, 0)


def test_borrowing_is_seen_at_any_level() -> None:
    tree = quota(queue("p", 4), queue("p/a", 4), queue("p/b", 4), p__b=3)
    assert tree.borrows(QueueId("p/a"), gpus(2))
    assert not tree.borrows(QueueId("p/a"), gpus(1))


def test_weight_divides_only_what_is_borrowed() -> None:
    tree = quota(queue("a", 4, weight=2), queue("b", 4), queue("c", 8), a=8, b=8)
    assert tree.share(QueueId("a")) == 1.5
    assert tree.share(QueueId("b")) == 2.0
    assert quota(queue("a", 4, weight=2), a=2).share(QueueId("a")) == 0.5


def test_paths_part_at_siblings() -> None:
    tree = quota(queue("p", 4), queue("p/a", 2), queue("p/b", 2), queue("q", 4), queue("q/a", 4))
    assert tree.divergence(QueueId("p/a"), QueueId("p/b")) == ("p/a", "p/b")
    assert tree.divergence(QueueId("p/a"), QueueId("q/a")) == ("p", "q")
    assert tree.divergence(QueueId("p/a"), QueueId("p")) is None


limits = st.none() | st.integers(0, 6)
sizes = st.tuples(st.integers(0, 6), limits, limits)


@given(st.tuples(sizes, sizes, sizes, sizes), st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=12))
def test_nothing_within_headroom_exceeds_a_borrow_limit_or_takes_more_than_is_lent(
    shapes: tuple[tuple[int, int | None, int | None], ...], takes: list[tuple[int, int]]
) -> None:
    names = ["p", "p/a", "p/b", "q"]
    specs = [queue(name, d + 1, borrow, lend) for name, (d, borrow, lend) in zip(names, shapes, strict=True)]
    tree = Quota.of(specs, {})
    leaves = ["p/a", "p/b", "q"]
    for leaf, amount in takes:
        target = QueueId(leaves[leaf])
        if tree.fits(target, gpus(amount)):
            tree.charge(target, gpus(amount))
            for spec in specs:
                if spec.borrow_limit is not None:
                    most = spec.deserved.gpu_units + spec.borrow_limit.gpu_units
                    assert tree.used(spec.id).gpu_units <= most
        assert tree.headroom(target, GPU) is not None
    borrowed = {s.id: max(0, tree.used(s.id).gpu_units - s.deserved.gpu_units) for s in specs}
    for one, other in (("p", "q"), ("q", "p")):
        lender = next(s for s in specs if s.id == other)
        lend = lender.deserved.gpu_units if lender.lend_limit is None else lender.lend_limit.gpu_units
        assert borrowed[QueueId(one)] <= min(lend, lender.deserved.gpu_units)


@given(st.lists(st.tuples(st.sampled_from(["p/a", "p/b", "q"]), st.integers(1, 5)), max_size=8), st.integers(1, 6))
def test_fits_means_no_shortage_at_any_level(usage: list[tuple[str, int]], amount: int) -> None:
    tree = Quota.of([queue("p", 5), queue("p/a", 3), queue("p/b", 3), queue("q", 5)], {})
    for name, n in usage:
        tree.charge(QueueId(name), gpus(n))
    for name in ("p/a", "p/b", "q"):
        have = room(tree, name)
        assert have is not None
        assert tree.fits(QueueId(name), gpus(amount)) == (amount <= have)
