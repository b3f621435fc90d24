"""Fair shares by hand: deserved first, then the surplus by priority and weight, in whole GPUs."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rayorch.core.fair_share import UNLIMITED, fair_shares, managed
from rayorch.core.types import GPU, UNIT, QueueId, QueueSpec, Resources
from tests.scenes import gpus, queue


def shares(queues: list[QueueSpec], cluster: float, **asked: float) -> dict[str, float]:
    """GPUs of each queue; `asked` by queue, summed up the tree here."""
    sums = {QueueId(id): gpus(amount) for id, amount in asked.items()}
    for spec in sorted(queues, key=lambda s: -len(s.id)):
        if spec.parent is not None:
            sums[spec.parent] = sums.get(spec.parent, Resources()) + sums.get(spec.id, Resources())
    found = fair_shares(queues, gpus(cluster), sums)
    return {id: amounts[GPU] / UNIT for id, amounts in found.items()}


def test_deserved_first_and_the_rest_by_weight() -> None:
    queues = [queue("a", 2, weight=1), queue("b", 2, weight=3)]
    assert shares(queues, 12, a=12, b=12) == {"a": 4, "b": 8}


def test_nobody_gets_more_than_it_asks_for_and_what_it_leaves_is_divided_again() -> None:
    queues = [queue("a", 2), queue("b", 2), queue("c", 2)]
    assert shares(queues, 12, a=1, b=3, c=20) == {"a": 1, "b": 3, "c": 8}


def test_surplus_goes_to_the_higher_queue_priority_before_any_reaches_the_next() -> None:
    queues = [replace(queue("a", 1), surplus_priority=5), queue("b", 1, weight=100)]
    assert shares(queues, 8, a=6, b=6) == {"a": 6, "b": 2}


def test_whole_gpus_and_the_largest_remainder_gets_what_rounding_leaves() -> None:
    queues = [queue("a"), queue("b"), queue("c")]
    assert shares(queues, 8, a=8, b=8, c=8) == {"a": 3, "b": 3, "c": 2}
    assert shares([queue("a", weight=1), queue("b", weight=2)], 7, a=7, b=7) == {"a": 2, "b": 5}


def test_a_queue_without_weight_gets_no_surplus() -> None:
    assert shares([queue("a", 1, weight=0), queue("b", 1)], 8, a=8, b=8) == {"a": 1, "b": 7}


def test_a_cap_bounds_the_share_and_weights_may_differ_by_resource() -> None:
    queues = [replace(queue("a", 1), hard_cap=gpus(2)), replace(queue("b", 1), weights=((GPU, 0),))]
    assert shares(queues, 8, a=8, b=8) == {"a": 2, "b": 1}


def test_children_divide_what_their_parent_gets() -> None:
    queues = [queue("p", 4), queue("p/a", 1), queue("p/b", 1), queue("q", 4)]
    found = fair_shares(
        queues,
        gpus(8),
        {QueueId("p"): gpus(20), QueueId("p/a"): gpus(10), QueueId("p/b"): gpus(10), QueueId("q"): gpus(4)},
    )
    assert {id: amounts[GPU] / UNIT for id, amounts in found.items()} == {"p": 4, "p/a": 2, "p/b": 2, "q": 4}


def test_who_deserves_all_there_is_gets_what_it_asks_for() -> None:
    everything = QueueSpec(QueueId("a"), deserved=Resources.of_units({GPU: UNLIMITED}))
    assert shares([everything], 8, a=5) == {"a": 5}
    assert shares([everything], 8, a=50) == {"a": 8}


def test_gpus_and_whatever_some_queue_names_are_managed() -> None:
    named = QueueSpec(QueueId("a"), deserved=Resources.of({"CPU": 4}), hard_cap=Resources.of({"memory": 9}))
    assert managed([named, queue("b")]) == ("CPU", GPU, "memory")


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3), st.integers(0, 2), st.integers(0, 12)), max_size=6),
    st.integers(0, 24),
)
def test_shares_never_add_up_to_more_than_there_is_beyond_what_is_deserved(
    rows: list[tuple[int, int, int, int]], cluster: int
) -> None:
    """And nobody gets more than it asks for, nor less than both it deserves and asks for."""
    queues = [
        replace(queue(f"q{i}", deserved, weight=weight), surplus_priority=priority)
        for i, (deserved, weight, priority, _) in enumerate(rows)
    ]
    asked = {f"q{i}": row[3] for i, row in enumerate(rows)}
    found = shares(queues, cluster, **asked)
    due = {f"q{i}": min(row[0], row[3], cluster) for i, row in enumerate(rows)}
    assert sum(found.values()) <= max(cluster, sum(due.values()))
    for id, share in found.items():
        assert due[id] <= share <= asked[id]
    hungry = [i for i, row in enumerate(rows) if row[1] and found[f"q{i}"] < asked[f"q{i}"]]
    if hungry:
        assert sum(found.values()) >= min(cluster, sum(asked.values()))
