"""The order policies within a queue, one by one; worked numbers are of the papers and systems that they are after."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayorch.core.history import Account, AccountKey, History, Sample, ServiceClass, classes_of
from rayorch.core.history_book import HistoryBook
from rayorch.core.ordering import Basis, OrderKnobs, OrderView, basis_of, order_words
from rayorch.core.policy import OrderPolicy
from rayorch.core.types import QueueId, QueueSpec, State, Workload
from rayorch.policies.order import (
    ageing,
    deadline,
    fair_tree,
    fifo,
    finish_time,
    gandiva,
    gittins,
    las,
    multifactor,
    priority,
    remaining,
    smallest,
    usage,
)
from tests.scenes import NOW, gpus, node, pending, queue, running

HOUR = 3600.0
POLICIES = (
    ageing.key,
    deadline.key,
    fair_tree.key,
    fifo.key,
    finish_time.key,
    gandiva.key,
    gandiva.owner_key,
    finish_time.las_key,
    gittins.artifact_key,
    gittins.key,
    las.key,
    las.promoting_key,
    las.time_key,
    multifactor.key,
    priority.key,
    remaining.gpu_key,
    remaining.key,
    smallest.key,
    usage.key,
)


def _view(
    knobs: OrderKnobs | None = None,
    work: Iterable[Workload] = (),
    history: History | None = None,
    queues: Iterable[QueueSpec] = (),
    gpu: int = 8,
) -> OrderView:
    specs = {spec.id: spec for spec in (*queues, queue("q"))}
    return OrderView(NOW, knobs or OrderKnobs(), specs, (node("n1", gpu),), history or History(), tuple(work))


def _order(policy: OrderPolicy, view: OrderView, work: Iterable[Workload] = ()) -> list[str]:
    return [w.id for w in sorted(work or view.workloads, key=lambda w: (policy(w, view), w.id))]


def _finished(spec_of: Workload, services: Iterable[float], which: int = 3) -> History:
    """Finished work of a class: the `which`th of the workload's, from the finest."""
    name = classes_of(spec_of.spec)[which]
    return History(classes={name: ServiceClass(name, 0.0, tuple(Sample(s, s) for s in services))})


@pytest.mark.parametrize(
    "policy", POLICIES, ids=lambda policy: f"{policy.__module__.rpartition('.')[2]}.{policy.__name__}"
)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_every_policys_keys_are_ordered_and_hold_as_long_as_it_says(policy: OrderPolicy, data: st.DataObject) -> None:
    work = [
        replace(
            pending(f"w{n}", data.draw(st.integers(1, 4)), submitted_s=data.draw(st.floats(0, NOW)), owner="ab"[n % 2]),
            attained_gpu_s=data.draw(st.floats(0, 1e5)),
            progress_s=data.draw(st.floats(0, 1e4)),
            requeued_s=data.draw(st.none() | st.floats(0, NOW)),
        )
        for n in range(4)
    ]
    step = data.draw(st.integers(1, 996))
    history = _finished(work[0], [1.0 + n * step % 997 for n in range(200)])
    first = _view(work=work, history=history)
    keys = [policy(w, first) for w in work]
    sorted(keys)
    assert all(not isinstance(part, float) or part == part for key in keys for part in key), "no key holds a NaN"
    account = Account(QueueId("q"), "a", NOW, gpu_s=1e6)
    used = replace(first.history, accounts={account.key: account})
    later = OrderView(NOW + HOUR, first.knobs, first.queues, (), used)
    if basis_of(policy) is Basis.HISTORY:
        assert [policy(w, later) for w in work] == keys
    if basis_of(policy) is Basis.WORKLOAD:
        assert [policy(w, replace(later, history=History())) for w in work] == keys


# ---------------------------------------------------------------- priority and age


def test_fifo_knows_no_priority() -> None:
    work = [pending("a", submitted_s=2.0, priority=9), pending("b", submitted_s=1.0)]
    assert _order(fifo.key, _view(), work) == ["b", "a"]


def test_waiting_raises_a_priority_by_so_many_points_an_hour() -> None:
    work = [pending("old", submitted_s=0.0), pending("new", submitted_s=5 * HOUR, priority=10)]
    assert _order(ageing.key, _view(OrderKnobs(points_per_hour=1.9)), work) == ["new", "old"]
    assert _order(ageing.key, _view(OrderKnobs(points_per_hour=2.1)), work) == ["old", "new"]


def test_whoever_asked_to_begin_later_has_not_waited_yet() -> None:
    work = [pending("later", submitted_s=0.0, begin_s=9 * HOUR), pending("now", submitted_s=HOUR)]
    assert _order(ageing.key, _view(), work) == ["now", "later"]


# ---------------------------------------------------------------- Slurm


def test_slurms_priority_is_the_weighted_sum_of_its_factors() -> None:
    knobs = OrderKnobs(
        age_max_s=1000.0,
        weight_age=1000,
        weight_size=100,
        weight_queue=50,
        weight_priority=10,
        weight_resources=(("CPU", 7.0), ("GPU", 3.0)),
    )
    queues = [replace(queue("q"), surplus_priority=1), replace(queue("top"), surplus_priority=4)]
    work = pending("a", 2, gpu=1, cpu=8, submitted_s=NOW - 250, priority=50)
    view = replace(_view(knobs), queues={spec.id: spec for spec in queues})
    assert dict(multifactor.factors(work, view)) == pytest.approx(
        {"age": 250.0, "size": 25.0, "queue": 12.5, "priority": 5.0, "CPU": 7.0 * 16 / 64, "GPU": 3.0 * 2 / 8}
    )
    assert multifactor.key(work, view)[0] == pytest.approx(-(250 + 25 + 12.5 + 5 + 1.75 + 0.75))


def test_the_age_factor_is_full_at_its_maximum_and_all_weights_are_zero_by_default() -> None:
    work = pending("a", submitted_s=NOW - 5000)
    assert multifactor.factors(work, _view(OrderKnobs(age_max_s=1000.0, weight_age=10))) == (("age", 10.0),)
    assert multifactor.factors(work, _view()) == ()


@pytest.mark.parametrize(("favor_small", "first"), [(False, "large"), (True, "small")])
def test_the_size_factor_favours_large_or_small_work(favor_small: bool, first: str) -> None:
    work = [pending("small", 1), pending("large", 8)]
    knobs = OrderKnobs(weight_size=1.0, favor_small=favor_small)
    assert _order(multifactor.key, _view(knobs), work)[0] == first


def _usage(**used: float) -> dict[AccountKey, float]:
    """`a__x=3`: owner x has used 3 in queue a; `a_b__x`: in queue a/b."""
    return {(QueueId(k.split("__")[0].replace("_", "/")), k.split("__")[1]): v for k, v in used.items()}


def test_fair_tree_ranks_no_owner_before_one_below_a_better_sibling() -> None:
    """LF of a is (1/2)/(1/4) = 2, of b (1/2)/(3/4) = 2/3: all owners of a come before all of b."""
    usage = _usage(a__greedy=9.0, a__idle=1.0, b__x=20.0, b__y=10.0)
    factors = fair_tree.ranked(usage, {QueueId("a"): 1, QueueId("b"): 1})
    assert {owner: f for (_, owner), f in factors.items()} == {"idle": 1.0, "greedy": 0.75, "y": 0.5, "x": 0.25}


def test_fair_tree_weighs_shares_level_by_level() -> None:
    """b has three shares of four and has used three quarters: LF 1, as a has; a/c has used less of a than a/d."""
    usage = _usage(a_c__x=1.0, a_d__y=3.0, b__z=12.0)
    weights = {QueueId("a"): 1, QueueId("a/c"): 1, QueueId("a/d"): 1, QueueId("b"): 3}
    factors = fair_tree.ranked(usage, weights)
    # a and b tie, so their children are one list: c (LF 2) before z (LF 1, the only one of b) before d (LF 2/3).
    assert {owner: round(f, 6) for (_, owner), f in factors.items()} == {"x": 1.0, "z": 0.666667, "y": 0.333333}


def test_fair_tree_gives_equals_the_same_rank_and_the_next_one_what_is_left() -> None:
    """As sshare shows it: all who have used nothing share the first rank, and the next has one less for each."""
    factors = fair_tree.ranked(_usage(a__new=0.0, a__fresh=0.0, a__used=5.0, a__more=9.0), {QueueId("a"): 1})
    assert [factors[QueueId("a"), owner] for owner in ("new", "fresh", "used", "more")] == [1.0, 1.0, 0.5, 0.25]


OWNERS = st.tuples(st.sampled_from(["a", "a/b", "a/c", "d", "d/e"]).map(QueueId), st.sampled_from("xyz"))


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(OWNERS, st.floats(0, 1e6), min_size=1, max_size=8))
def test_fair_tree_depends_on_proportions_only_and_ranks_everybody(usage: dict[AccountKey, float]) -> None:
    weights = {QueueId(q): n for n, q in enumerate(["a", "a/b", "a/c", "d", "d/e"], start=1)}
    factors = fair_tree.ranked(usage, weights)
    assert factors.keys() == usage.keys() and max(factors.values()) == 1.0 and min(factors.values()) > 0
    if any(0 < amount < 1e-300 for amount in usage.values()):
        return  # below that doubling is not exact
    doubled = fair_tree.ranked({key: amount * 2 for key, amount in usage.items()}, weights)
    assert doubled == factors


def test_an_owner_who_waits_for_the_first_time_comes_first_by_fair_tree() -> None:
    account = Account(QueueId("q"), "greedy", NOW, gpu_s=100.0)
    work = [pending("a", owner="greedy", submitted_s=1.0), pending("b", owner="new", submitted_s=2.0)]
    history = History(accounts={account.key: account})
    assert _order(fair_tree.key, _view(work=work, history=history)) == ["b", "a"]
    knobs = OrderKnobs(weight_fair_share=100.0)
    assert _order(multifactor.key, _view(knobs, work, history)) == ["b", "a"]
    assert _order(multifactor.key, _view(work=work, history=history)) == ["a", "b"], "without the weight: by age"


# ---------------------------------------------------------------- usage


def test_owners_who_have_used_the_same_alternate_however_many_they_submit() -> None:
    work = [pending(f"a{n}", owner="ann", submitted_s=1.0) for n in range(4)]
    work += [pending(f"b{n}", owner="bob", submitted_s=2.0) for n in range(2)]
    assert _order(usage.key, _view(work=work)) == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_who_has_used_more_lately_comes_later_and_what_is_held_counts_at_once() -> None:
    account = Account(QueueId("q"), "ann", NOW, gpu_s=1000.0)
    held, seats = running("r", ["n1", "n1"], owner="bob")
    work = [pending("a", owner="ann", submitted_s=1.0), pending("b", owner="bob", submitted_s=2.0)]
    for penalty_s, order in ((499.0, ["b", "a"]), (501.0, ["a", "b"])):
        view = _view(OrderKnobs(usage_penalty_s=penalty_s), [*work, held], History(accounts={account.key: account}))
        assert _order(usage.key, replace(view, allocations=(seats,)), work) == order
        assert _order(usage.key, view, work) == ["b", "a"], "its seats have been given back already"


def test_cpu_seconds_count_by_their_weight() -> None:
    accounts = [Account(QueueId("q"), "ann", NOW, cpu_s=1000.0), Account(QueueId("q"), "bob", NOW, gpu_s=10.0)]
    work = [pending("a", owner="ann", submitted_s=1.0), pending("b", owner="bob", submitted_s=2.0)]
    history = History(accounts={account.key: account for account in accounts})
    assert _order(usage.key, _view(work=work, history=history)) == ["a", "b"]
    assert _order(usage.key, _view(OrderKnobs(usage_cpu_weight=0.1), work, history)) == ["b", "a"]


# ---------------------------------------------------------------- attained service


def _attained(id: str, gpu_s: float, **changes: object) -> Workload:
    return replace(pending(id), attained_gpu_s=gpu_s, **changes)  # type: ignore[arg-type]


def test_work_goes_a_level_down_at_each_threshold_of_gpu_seconds() -> None:
    """Threshold 3250: 8 GPUs for 500 s are beyond it, 1 GPU for 3000 s is not, 4 GPUs are at 812.5 s."""
    view = _view(OrderKnobs(las_thresholds_gpu_s=(3250.0,)))
    levels = [las.level(_attained("w", served), view) for served in (8 * 500, 1 * 3000, 4 * 812.4, 4 * 812.5)]
    assert levels == [1, 0, 0, 1]


def test_what_has_attained_less_goes_first_and_within_a_level_the_oldest() -> None:
    work = [
        replace(_attained("long", 9000.0), submitted_s=1.0),
        replace(_attained("short", 10.0), submitted_s=2.0),
        replace(_attained("new", 0.0), submitted_s=3.0),
    ]
    view = _view(OrderKnobs(las_thresholds_gpu_s=(3250.0, 7200.0)))
    assert _order(las.key, view, work) == ["short", "new", "long"]


def test_thresholds_are_learned_when_enough_has_finished() -> None:
    work = pending("w")
    assert las.thresholds(_view(history=_finished(work, [100.0 * n for n in range(1, 20)]))) == ()
    assert las.thresholds(_view(history=_finished(work, [100.0 * n for n in range(1, 21)]))) == (1000.0, 1600.0)


def test_thresholds_by_time_are_learned_from_time() -> None:
    name = classes_of(pending("w").spec)[3]
    samples = tuple(Sample(float(n), 8.0 * n) for n in range(1, 21))
    view = _view(history=History(classes={name: ServiceClass(name, 0.0, samples)}))
    assert (las.thresholds(view), las.time_thresholds(view)) == ((80.0, 128.0), (10.0, 16.0))
    ran = replace(pending("w"), progress_s=12.0, attained_gpu_s=50.0)
    assert (las.key(ran, view)[1], las.time_key(ran, view)[1]) == (0, 1)
    assert "level 2 of 3 (12 seconds of work so far)" in order_words(las.time_key, ran, view)


def test_a_burst_of_work_that_is_all_alike_does_not_become_the_thresholds() -> None:
    """300 of about 700 GPU-seconds after 2,000 jobs of 100 to 100,000: by thresholds of their own they take turns."""
    book = HistoryBook()
    for n in range(2300):
        gpu_s = 10.0 ** (2 + n * 7 % 2000 / 2000 * 3) if n < 2000 else 700.0 + n % 7
        done = Workload(pending("w").spec, State.SUCCEEDED, 0.0, progress_s=gpu_s, attained_gpu_s=gpu_s)
        book.succeeded(done, float(n), n + 1)
    found = las.thresholds(_view(history=book.state()))
    assert found == pytest.approx((10 ** (2 + 3 * 850 / 2000), 10 ** (2 + 3 * 1540 / 2000)), rel=1 / 30)


def test_what_has_waited_long_enough_for_what_it_ran_is_back_at_the_top() -> None:
    view = _view(OrderKnobs(las_thresholds_gpu_s=(10.0,), las_promote=2.0))
    starved = _attained("s", 100.0, progress_s=40.0, requeued_s=NOW - 80.0)
    recent = _attained("r", 100.0, progress_s=41.0, requeued_s=NOW - 80.0)
    assert (las.promoted(starved, view), las.promoted(recent, view)) == (True, False)
    assert las.promoting_key(starved, view)[1] == 0 and las.promoting_key(recent, view)[1] == 1
    assert not las.promoted(starved, _view(OrderKnobs(las_thresholds_gpu_s=(10.0,))))


def test_what_was_brought_back_to_the_top_counts_from_there_while_it_runs() -> None:
    view = _view(OrderKnobs(las_thresholds_gpu_s=(100.0,), las_promote=2.0))
    workload, _ = running("w", ["n1"], gpu=8, started_s=NOW - 10)
    again = replace(workload, attained_gpu_s=320.0, progress_s=40.0, requeued_s=NOW - 95.0)
    assert las.promoting_key(again, view)[1] == 0 and las.key(again, view)[1] == 1
    too_soon = replace(again, requeued_s=NOW - 85.0)  # it waited for 75 s only
    assert las.promoting_key(too_soon, view)[1] == 1
    assert las.promoting_key(again, replace(view, now_s=NOW + 3))[1] == 1, "104 GPU-seconds since then"


# ---------------------------------------------------------------- Gittins

SERVICE = np.array([100.0, 200.0, 400.0, 800.0, 1600.0])


@pytest.mark.parametrize(("attained", "expected"), [(0, 0.6 / 340), (100, 0.5 / 350), (400, 0.5 / 450), (800, 0.0)])
def test_the_gittins_index_with_a_fixed_quantum(attained: float, expected: float) -> None:
    assert gittins.index(SERVICE, attained, 500.0) == pytest.approx(expected)


@pytest.mark.parametrize(("attained", "expected"), [(0, 0.6 / 340), (100, 0.5 / 400), (400, 0.5 / 650), (1600, 0.0)])
def test_the_artifacts_index_takes_the_mean_of_whole_services(attained: float, expected: float) -> None:
    assert gittins.artifact_index(SERVICE, attained, 500.0) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("attained", "expected"), [(0, 0.00222222), (100, 0.0025), (200, 0.00166667), (400, 0.00125), (800, 0.00125)]
)
def test_the_gittins_index_with_the_best_quantum(attained: float, expected: float) -> None:
    assert gittins.index(SERVICE, attained) == pytest.approx(expected, rel=1e-5)


@given(st.lists(st.integers(1, 50).map(float), min_size=1, max_size=20), st.integers(0, 50).map(float))
def test_no_quantum_is_better_than_the_best(services: list[float], attained: float) -> None:
    samples = np.sort(np.array(services))
    best = gittins.index(samples, attained)
    quanta = [n / 2 for n in range(1, 110)]
    tried = max(gittins.index(samples, attained, quantum) for quantum in quanta)
    assert best == pytest.approx(tried) or best > tried


def test_gittins_orders_by_rank_which_may_rise_with_age() -> None:
    history = _finished(pending("w"), [*SERVICE] * 40)
    work = [_attained(f"at{served}", float(served)) for served in (800, 400, 200, 100, 0)]
    ordered = _order(gittins.key, _view(history=history), work)
    assert ordered[:3] == ["at100", "at0", "at200"] and set(ordered[3:]) == {"at400", "at800"}
    fixed = _order(gittins.key, _view(OrderKnobs(gittins_delta_gpu_s=500.0), history=history), work)
    assert fixed[-1] == "at800", "of what is left there, nothing is done within 500"


def test_with_too_few_samples_gittins_is_first_come_first_served() -> None:
    history = _finished(pending("w"), SERVICE)
    work = [replace(_attained("a", 100.0), submitted_s=2.0), replace(_attained("b", 800.0), submitted_s=1.0)]
    assert _order(gittins.key, _view(history=history), work) == ["b", "a"]


# ---------------------------------------------------------------- remaining time, deadlines, finish-time fairness


def test_shortest_remaining_time_goes_by_steps_left_and_the_unknown_come_last() -> None:
    nearly = replace(pending("nearly", total_steps=100), step=90, progress_s=900.0)  # 100 s left
    half = replace(pending("half", total_steps=100), step=50, progress_s=50.0)  # 50 s left
    work = [nearly, half, pending("unknown"), pending("expects", expected_s=75.0)]
    assert _order(remaining.key, _view(), work) == ["half", "expects", "nearly", "unknown"]


def test_earliest_deadline_first_and_what_can_not_make_it_keeps_nobody_waiting() -> None:
    work = [
        pending("none", submitted_s=0.0),
        pending("soon", deadline_s=NOW + 100, expected_s=50.0),
        pending("later", deadline_s=NOW + 200),
        pending("hopeless", deadline_s=NOW + 60, expected_s=90.0),
        pending("over", deadline_s=NOW - 1),
        pending("important", priority=1),
    ]
    assert _order(deadline.key, _view(), work) == ["important", "soon", "later", "none", "over", "hopeless"]


def test_finish_time_fairness_of_the_paper() -> None:
    """4 GPU-hours on 8 GPUs that 4 share: 2 h alone. After 1 h of waiting, 2 GPUs for 2 h: 3 h. So rho is 1.5."""
    assert finish_time.rho(3 * HOUR, 2 * HOUR, gpus=2, cluster_gpus=8, active=4) == 1.5
    assert finish_time.rho(3 * HOUR, 1 * HOUR, gpus=4, cluster_gpus=8, active=4) == 1.5, "a gang larger than its part"
    assert finish_time.mixed_rho(((16, 0.8), (48, 1.2))) == pytest.approx(1.1)


@pytest.mark.parametrize(("rho_max", "first"), [(2.0, "wronged"), (3.0, "older")])
def test_whoever_is_treated_too_badly_goes_to_the_front_of_its_priority(rho_max: float, first: str) -> None:
    """It has waited 300 s for 200 s of work: (300 + 200) / 200 = 2.5; the older one's work is long."""
    work = [
        pending("older", submitted_s=NOW - 400, expected_s=4000.0),
        pending("wronged", submitted_s=NOW - 300, expected_s=200.0),
        pending("important", submitted_s=NOW, priority=1),
    ]
    view = _view(OrderKnobs(rho_max=rho_max), work, gpu=3)
    assert _order(finish_time.key, view)[:2] == ["important", first]
    assert _order(finish_time.las_key, view)[:2] == ["important", first]


def test_without_a_forecast_nobody_is_raised() -> None:
    work = [pending("a", submitted_s=0.0), pending("b", submitted_s=1.0)]
    assert finish_time.projected_rho(work[0], _view(work=work)) is None
    assert _order(finish_time.key, _view(work=work)) == ["a", "b"]


def test_the_cluster_of_these_views_is_what_they_say() -> None:
    assert _view(gpu=3).cluster == gpus(3, CPU=64)


# ---------------------------------------------------------------- in words


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (priority.key, "by priority (5), then by age"),
        (fifo.key, "by age alone"),
        (ageing.key, "by 5.5 points: priority 5, and 0.2 h of waiting"),
        (multifactor.key, "by 7.5 points: age 2.5, fair share 5.0, then by age"),
        (fair_tree.key, "by the fair-share factor of ann: 1.000, then by age"),
        (usage.key, "by what ann has used in q lately (0.50 GPU-hours), then by priority"),
        (las.key, "by priority (5), then by level 2 of 2 (90 GPU-seconds so far)"),
        (las.promoting_key, "by priority (5), then by level 2 of 2 (90 GPU-seconds so far)"),
        (gittins.key, "by priority (5), then by how soon it may be done (nothing is known of its kind yet)"),
        (gandiva.key, "by priority (5), then by turns of 600 s (it has waited for 900 s since it last ran)"),
        (remaining.key, "by priority (5), then by the time that is left (200 s)"),
        (deadline.key, "by priority (5), then by deadline (in 150 s, which it would miss)"),
        (finish_time.key, "by priority (5), then whose finish-time fairness is above 2 (it is 5.50)"),
    ],
    ids=lambda value: f"{value.__module__.rpartition('.')[2]}.{value.__name__}" if callable(value) else "",
)
def test_every_order_says_what_a_place_comes_from(policy: OrderPolicy, words: str) -> None:
    knobs = OrderKnobs(
        points_per_hour=2.0,
        age_max_s=3600.0,
        weight_age=10.0,
        weight_fair_share=5.0,
        las_thresholds_gpu_s=(50.0,),
    )
    settings = {"priority": 5, "owner": "ann", "expected_s": 200.0, "deadline_s": NOW + 150}
    work = replace(pending("w", submitted_s=NOW - 900, **settings), attained_gpu_s=90.0)
    account = Account(QueueId("q"), "ann", NOW, gpu_s=1800.0)
    view = _view(knobs, [work], History(accounts={account.key: account}))
    assert order_words(policy, work, view) == words


def test_a_policy_of_ones_own_need_not_have_words() -> None:
    assert order_words(lambda workload, view: (), pending("w"), _view()) == ""
