"""The orders across queues, one by one and through the planner; worked numbers are of the papers and systems."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayorch.core.history import Account, History
from rayorch.core.ordering import OrderKnobs
from rayorch.core.planner import plan
from rayorch.core.policy import Profile, QueueOrderPolicy
from rayorch.core.types import QueueId, QueueSpec, Resources, Role, Workload
from rayorch.policies.default import DEFAULT
from rayorch.policies.order import priority
from rayorch.policies.queue_order import cohort, deserved, drf, fair, plain, proportion, share, used
from rayorch.policies.queue_order.proportion import Part, water_fill
from tests.scenes import NOW, gpus, node, pending, queue, running, snapshot, spec, started


def _profile(queue_order: QueueOrderPolicy, **knobs: object) -> Profile:
    return replace(DEFAULT, queue_order=queue_order, ordering=OrderKnobs(**knobs))  # type: ignore[arg-type]


def _asks(where: str, count: int, **amounts: float) -> list[Workload]:
    """Workloads of one member each in the queue of that name."""
    role = (Role("task", Resources.of(amounts), 1, 1),)
    return [replace(pending(f"{where}{n}"), spec=spec(f"{where}{n}", queue=where, roles=role)) for n in range(count)]


def _turns(policy: Profile, work: Iterable[object], queues: Iterable[QueueSpec], **total: float) -> str:
    """The queues of what starts on one node of that size, in order, by their last letters."""
    machine = replace(node("n1", 0), total=Resources.of(total), devices=())
    if total.get("GPU"):
        machine = replace(node("n1", int(total["GPU"])), total=Resources.of(total))
    decided = plan(snapshot([machine], work, queues), policy)
    by_id = {
        w.id: w for item in work for w in (item if isinstance(item, tuple) else (item,)) if isinstance(w, Workload)
    }
    return "".join(by_id[id].spec.queue[-1] for id in started(decided))  # type: ignore[index]


# ---------------------------------------------------------------- DRF


def test_drf_of_the_paper() -> None:
    """9 CPUs, 18 of memory; A's tasks take (1, 4), B's (3, 1): three of A and two of B, 2/3 of each one's dominant."""
    work = [*_asks("A", 6, CPU=1, memory=4), *_asks("B", 6, CPU=3, memory=1)]
    assert _turns(_profile(drf.key), work, [queue("A"), queue("B")], CPU=9, memory=18) == "ABABA"


def test_drf_with_weights_passes_over_what_does_not_fit() -> None:
    work = [*_asks("A", 6, CPU=1, memory=4), *_asks("B", 6, CPU=3, memory=1)]
    assert _turns(_profile(drf.key), work, [queue("A", weight=2), queue("B")], CPU=9, memory=18) == "ABAAA"


def test_drf_at_scale() -> None:
    work = [*_asks("A", 30, CPU=2, memory=300), *_asks("B", 30, CPU=6, memory=100)]
    turns = _turns(_profile(drf.key), work, [queue("A"), queue("B")], CPU=100, memory=10_000)
    assert (turns.count("A"), turns.count("B")) == (20, 10)


def test_drf_compares_siblings_where_paths_part() -> None:
    """x and y share what their parent has; z alone gets as much as both."""
    queues = [queue("p"), queue("p/x"), queue("p/y"), queue("z")]
    work = [*_asks("p/x", 4, CPU=1), *_asks("p/y", 4, CPU=1), *_asks("z", 4, CPU=1)]
    work = [replace(w, spec=replace(w.spec, id=w.id.replace("/", "-"))) for w in work]
    turns = _turns(_profile(drf.key), work, queues, CPU=8)
    assert turns == "xzyzxzyz"


def test_resources_that_nobody_is_short_of_can_be_left_out() -> None:
    work = [*_asks("A", 4, CPU=4, memory=1), *_asks("B", 4, CPU=1, memory=2)]
    queues = [queue("A"), queue("B")]
    assert _turns(_profile(drf.key, fair_resources=("CPU",)), work, queues, CPU=9, memory=100) == "ABBBB"
    assert _turns(_profile(drf.key, fair_resources=("memory",)), work, queues, CPU=9, memory=100) == "ABA"


# ---------------------------------------------------------------- Kueue


@pytest.mark.parametrize(
    ("asked", "weight", "expected"), [(4, 1, 125.0), (4, 2, 62.5), (4, 0, math.inf), (0, 1, 0.0), (0, 0, 0.0)]
)
def test_kueues_weighted_share(asked: int, weight: float, expected: float) -> None:
    """Of a share of 8, 8 are used; 4 more, where 32 can be lent, are 125 thousandths."""
    assert share.weighted_share(gpus(8 + asked), gpus(8), gpus(32), weight) == expected


def test_kueues_fair_sharing_gives_the_surplus_to_who_borrows_least() -> None:
    """All deserve nothing of the four GPUs that `idle` lends; with FIFO the first to submit would take them all."""
    queues = [queue("idle", 4), queue("A", 0, borrow=4), queue("B", 0, borrow=4), queue("C", 0, borrow=4, weight=2)]
    work = [*_asks("A", 4, GPU=1), *_asks("B", 4, GPU=1), *_asks("C", 4, GPU=1)]
    turns = _turns(_profile(share.key), work, queues, GPU=4, CPU=8)
    assert {name: turns.count(name) for name in "ABC"} == {"A": 1, "B": 1, "C": 2}
    assert _turns(_profile(cohort.key), work, queues, GPU=4, CPU=8) == "AAAA"


def test_within_its_own_share_no_queue_is_behind_another() -> None:
    queues = [queue("A", 3), queue("B", 1)]
    work = [*_asks("A", 3, GPU=1), *_asks("B", 1, GPU=1)]
    assert _turns(_profile(share.key), work, queues, GPU=4, CPU=8) == "AAAB"


@pytest.mark.parametrize("policy", [deserved.key, cohort.key], ids=["deserved", "cohort"])
def test_borrowers_come_last_whatever_their_priority(policy: QueueOrderPolicy) -> None:
    queues = [queue("A", 0, borrow=4), queue("B", 4)]
    work = [replace(w, spec=replace(w.spec, priority=9)) for w in _asks("A", 1, GPU=1)] + _asks("B", 1, GPU=1)
    assert _turns(_profile(policy), work, queues, GPU=4, CPU=8) == "BA"


# ---------------------------------------------------------------- Volcano, YuniKorn, Slurm


def test_water_filling_of_volcano() -> None:
    """64 GPUs, weights 1, 2, 1, requests 8, 64, 64."""
    assert water_fill(64, [Part(8, 1), Part(64, 2), Part(64, 1)]) == pytest.approx([8, 37.3333333, 18.6666667])


@given(st.floats(0, 1000), st.lists(st.tuples(st.integers(0, 300), st.integers(1, 5)), max_size=6))
def test_water_filling_gives_nobody_more_than_it_asks_and_leaves_nothing_that_is_wanted(
    amount: float, asks: list[tuple[int, int]]
) -> None:
    parts = [Part(asked, weight) for asked, weight in asks]
    given_ = water_fill(amount, parts)
    assert all(0 <= got <= part.asked + 1e-9 for got, part in zip(given_, parts, strict=True))
    assert sum(given_) == pytest.approx(min(amount, sum(part.asked for part in parts)))
    level = max((got / part.weight for got, part in zip(given_, parts, strict=True)), default=0)
    hungry = [got / part.weight for got, part in zip(given_, parts, strict=True) if got < part.asked - 1e-6]
    assert all(height == pytest.approx(level) for height in hungry), "who is not satisfied has as much as anybody"


def test_volcanos_proportion_fills_queues_evenly_towards_what_they_are_due() -> None:
    queues = [queue("A"), queue("B", weight=2), queue("C")]
    work = [*_asks("A", 1, GPU=1), *_asks("B", 9, GPU=1), *_asks("C", 9, GPU=1)]
    turns = _turns(_profile(proportion.key), work, queues, GPU=8, CPU=8)
    assert {name: turns.count(name) for name in "ABC"} == {"A": 1, "B": 5, "C": 2}


def test_a_volcano_queue_of_higher_priority_goes_before_all_others() -> None:
    queues = [queue("A"), replace(queue("B"), surplus_priority=1)]
    work = [*_asks("A", 2, GPU=1), *_asks("B", 2, GPU=1)]
    assert _turns(_profile(proportion.key), work, queues, GPU=3, CPU=8) == "BBA"


def test_yunikorn_goes_by_priority_and_then_by_the_part_of_what_is_deserved() -> None:
    queues = [queue("A", 2), queue("B", 4)]
    work = [*_asks("A", 4, GPU=1), *_asks("B", 4, GPU=1)]
    assert _turns(_profile(fair.key), work, queues, GPU=6, CPU=8) == "ABBABB"
    urgent = [replace(w, spec=replace(w.spec, priority=1)) if w.id == "B3" else w for w in work]
    assert _turns(_profile(fair.key), urgent, queues, GPU=3, CPU=8)[0] == "B"


def test_with_no_order_of_queues_their_heads_are_compared_by_their_own_keys() -> None:
    work = [*_asks("A", 2, GPU=1), *_asks("B", 2, GPU=1)]
    work = [replace(w, submitted_s=float(["A0", "B0", "A1", "B1"].index(w.id))) for w in work]
    assert _turns(_profile(plain.key), work, [queue("A", 2), queue("B", 2)], GPU=4, CPU=8) == "ABAB"


# ---------------------------------------------------------------- decayed usage


def test_who_has_used_least_for_its_weight_lately_goes_first() -> None:
    accounts = [Account(QueueId("A"), "ann", NOW, gpu_s=900.0), Account(QueueId("B"), "bob", NOW, gpu_s=1000.0)]
    work = [*_asks("A", 1, GPU=1), *_asks("B", 1, GPU=1)]
    history = History(accounts={account.key: account for account in accounts})
    for weight, first in ((1, "A"), (2, "B")):
        seen = replace(snapshot([node("n1", 1)], work, [queue("A"), queue("B", weight=weight)]), history=history)
        assert [id[0] for id in started(plan(seen, _profile(used.key)))] == [first]


def test_what_this_plan_gives_counts_as_used() -> None:
    work = [*_asks("A", 3, GPU=1), *_asks("B", 3, GPU=1)]
    assert _turns(_profile(used.key), work, [queue("A"), queue("B")], GPU=4, CPU=8) == "ABAB"


# ---------------------------------------------------------------- what holds for all

ALL = (cohort.key, deserved.key, drf.key, fair.key, plain.key, proportion.key, share.key, used.key)


@pytest.mark.parametrize("policy", ALL, ids=lambda policy: policy.__module__.rpartition(".")[2])
def test_every_order_of_queues_is_work_conserving_and_keeps_quota(policy: QueueOrderPolicy) -> None:
    queues = [queue("p", 6), queue("p/x", 4, borrow=2), queue("p/y", 2, borrow=1), queue("z", 2, borrow=6, weight=3)]
    held = running("old", ["n1"], queue="p/x")
    work = [
        held,
        *(pending(f"x{n}", queue="p/x") for n in range(6)),
        *(pending(f"y{n}", queue="p/y") for n in range(6)),
    ]
    work += [pending(f"z{n}", queue="z") for n in range(6)]
    began = started(plan(snapshot([node("n1", 8)], work, queues), _profile(policy)))
    assert len(began) == 7, "the node is full"
    assert sum(id[0] == "y" for id in began) <= 3


def test_a_heads_own_key_decides_between_equal_queues() -> None:
    work = [replace(w, submitted_s=2.0) for w in _asks("A", 1, GPU=1)]
    work += [replace(w, submitted_s=1.0) for w in _asks("B", 1, GPU=1)]
    assert DEFAULT.order is priority.key
    assert _turns(_profile(deserved.key), work, [queue("A", 1), queue("B", 1)], GPU=1, CPU=8) == "B"


# ---------------------------------------------------------------- what the paper proves of DRF

DEMANDS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)).filter(any), min_size=2, max_size=4)


def _tasks(demands: list[tuple[int, int]], cpus: int, memory: int, scale: int = 1) -> list[int]:
    """How many tasks of each queue start, all having more than enough of them."""
    work = []
    for n, (cpu, mem) in enumerate(demands):
        amounts = {name: units * scale for name, units in (("CPU", cpu), ("memory", mem)) if units}
        work += _asks("ABCD"[n], 45, **amounts)
    queues = [queue("ABCD"[n]) for n in range(len(demands))]
    turns = _turns(_profile(drf.key), work, queues, CPU=cpus * scale, memory=memory * scale)
    return [turns.count("ABCD"[n]) for n in range(len(demands))]


@settings(max_examples=25, deadline=None)
@given(DEMANDS, st.integers(12, 40), st.integers(12, 40))
def test_drf_wastes_nothing_and_gives_each_its_part_but_for_one_task(
    demands: list[tuple[int, int]], cpus: int, memory: int
) -> None:
    counts = _tasks(demands, cpus, memory)
    used = [sum(n * d[r] for n, d in zip(counts, demands, strict=True)) for r in (0, 1)]
    free = (cpus - used[0], memory - used[1])
    assert min(free) >= 0
    assert not any(d[0] <= free[0] and d[1] <= free[1] for d in demands), "Pareto: nobody's next task fits"
    one = [max(d[0] / cpus, d[1] / memory) for d in demands]  # the dominant share of one task
    for count, task in zip(counts, one, strict=True):
        least = (1 - max(one)) / len(demands) - max(one)
        assert count * task >= least - 1e-9, "sharing incentive: an equal part, but for one task of each kind"


@settings(max_examples=10, deadline=None)
@given(DEMANDS, st.integers(12, 40), st.integers(12, 40))
def test_drf_depends_on_proportions_only(demands: list[tuple[int, int]], cpus: int, memory: int) -> None:
    assert _tasks(demands, cpus, memory, scale=3) == _tasks(demands, cpus, memory)
