"""Quota in plans: who may start by which limit, on GPUs of which model, and what the others are told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.core.budgets import GPU_HOUR, BudgetUse
from rayorch.core.decisions import Plan, Wait, WaitReason
from rayorch.core.planner import plan
from rayorch.core.snapshot import Snapshot
from rayorch.core.types import (
    Budget,
    Kind,
    QueueId,
    QueueMode,
    QueueSpec,
    Resources,
    Role,
    StopCause,
    UserLimits,
    WorkloadId,
    charge_of,
)
from rayorch.policies.default import DEFAULT
from tests.scenes import NOW, gpus, grown, node, pending, queue, running, snapshot, started, stopped

H100, A100 = "GPU:H100", "GPU:A100"


def of(seen: Snapshot) -> Plan:
    return plan(seen, DEFAULT)


def why(made: Plan, id: str) -> list[WaitReason]:
    return [wait.reason for wait in made.waits[WorkloadId(id)]]


def only(made: Plan, id: str) -> Wait:
    (wait,) = made.waits[WorkloadId(id)]
    return wait


def limited(path: str = "q", **fields: object) -> QueueSpec:
    return replace(queue(path), **fields)  # type: ignore[arg-type]


# ---------------------------------------------------------------- by model


def test_a_gang_of_any_model_goes_where_its_queue_has_room_for_all_of_it() -> None:
    nodes = [node("a", 4, model="A100"), node("h", 8, model="H100")]
    capped = limited(hard_cap=Resources.of({H100: 2}))
    made = of(snapshot(nodes, [pending("w", 4)], [capped]))
    assert started(made) == {"w": ["a"] * 4}
    made = of(snapshot(nodes[1:], [pending("w", 4)], [capped]))
    assert only(made, "w").unit == H100
    assert (
        only(made, "w").detail
        == "queue q holds 0 GPU:H100 of the 2 that it may hold in any case and may take 2 more; 4 are needed"
    )


def test_a_gang_that_names_models_takes_the_next_one_when_its_queue_has_no_more_of_the_first() -> None:
    nodes = [node("a", 4, model="A100"), node("h", 8, model="H100")]
    capped = limited(hard_cap=Resources.of({H100: 2}))
    made = of(snapshot(nodes, [pending("w", 4, accelerators=("H100", "A100"))], [capped]))
    assert started(made) == {"w": ["a"] * 4}


def test_starts_of_one_turn_use_up_a_models_limit_together() -> None:
    capped = limited(hard_cap=Resources.of({H100: 3}))
    work = [pending(f"w{n}", 1, accelerators=("H100",)) for n in range(5)]
    assert len(started(of(snapshot([node("h", 8, model="H100")], work, [capped])))) == 3


def test_a_share_of_a_model_is_taken_back_by_stopping_what_borrowed_that_model() -> None:
    nodes = [node("a", 4, model="A100"), node("h", 4, model="H100")]
    mine = limited("mine", deserved=Resources.of({H100: 4}))
    theirs = limited("theirs", deserved=Resources.of({H100: 1}))
    held = [
        on_model(running("x", ["a"] * 4, queue="theirs"), "A100"),
        on_model(running("y", ["h"] * 4, queue="theirs"), "H100"),
    ]
    work = [*held, pending("w", 4, queue="mine", accelerators=("H100",))]
    assert stopped(of(snapshot(nodes, work, [mine, theirs]))) == {"y": StopCause.RECLAIMED}


def on_model(held: tuple[object, object], model: str) -> tuple[object, object]:
    workload, allocation = held
    members = tuple(replace(m, model=model) for m in allocation.members)  # type: ignore[attr-defined]
    return (
        replace(workload, placement=members),  # type: ignore[type-var]
        replace(allocation, members=members),  # type: ignore[type-var]
    )


# ---------------------------------------------------------------- countables


def with_licence(id: str, **asked: object) -> object:
    role = Role("worker", gpus(1), 2, 2, countables=Resources.of({"licence": 1}))
    return pending(id, roles=(role,), **asked)  # type: ignore[arg-type]


def test_countables_are_handed_out_until_there_are_no_more_and_no_node_is_asked_for_them() -> None:
    seen = replace(
        snapshot([node("n", 8)], [with_licence("w1"), with_licence("w2"), pending("plain")]),
        countables=Resources.of({"licence": 3}),
    )
    made = of(seen)
    assert set(started(made)) == {"w1", "plain"}
    assert why(made, "w2") == [WaitReason.COUNTABLES]
    assert only(made, "w2").detail == "the cluster has 3 licence, of which 2 are in use; 2 are needed"
    (members,) = [d.members for d in made.decisions if getattr(d, "workload", "") == "w1" and hasattr(d, "members")]
    assert charge_of(members) == Resources.of({"GPU": 2, "licence": 2})


def test_equal_gangs_with_and_without_a_licence_are_told_apart() -> None:
    seen = snapshot([node("n", 2)], [with_licence("w1"), pending("plain", 2, submitted_s=5.0)])
    made = of(replace(seen, countables=Resources.of({"licence": 1})))
    assert set(started(made)) == {"plain"}


# ---------------------------------------------------------------- users


def test_one_who_has_reached_the_limit_keeps_nobody_else_waiting() -> None:
    each = limited(per_user=UserLimits(gpus(2), max_running=2))
    work = [
        *(pending(f"a{n}", owner="ann", submitted_s=float(n)) for n in range(3)),
        *(pending(f"b{n}", owner="bob", submitted_s=10.0 + n) for n in range(3)),
    ]
    made = of(snapshot([node("n", 8)], work, [each]))
    assert set(started(made)) == {"a0", "a1", "b0", "b1"}
    assert why(made, "a2") == [WaitReason.USER_LIMIT, WaitReason.USER_LIMIT]
    first, second = made.waits[WorkloadId("a2")]
    assert first.detail == "ann has 2 running workloads of the 2 that each user may have in queue q"
    assert second.detail == "ann has 2 GPU of the 2 that each user may have in queue q"


def test_one_at_the_limit_keeps_no_less_important_work_of_its_queue_from_reclaiming() -> None:
    mine = limited("mine", deserved=gpus(4), per_user=UserLimits(gpus(2)))
    work = [
        running("a", ["n"] * 2, owner="ann", queue="mine", priority=9),
        running("x", ["n"] * 2, queue="other"),
        pending("a2", 2, owner="ann", queue="mine", priority=9),
        pending("b", 2, owner="bob", queue="mine"),
    ]
    made = of(snapshot([node("n", 4)], work, [mine, queue("other", 0, 4)]))
    assert stopped(made) == {"x": StopCause.RECLAIMED}


def test_one_at_the_limit_evicts_nobody_of_others() -> None:
    each = limited(per_user=UserLimits(gpus(2)))
    work = [running("x", ["n"] * 2, owner="ann", priority=5), running("y", ["n"] * 2, owner="bob")]
    made = of(snapshot([node("n", 4)], [*work, pending("w", 2, owner="ann", priority=3)], [each]))
    assert not stopped(made)


def holding_licence(held: tuple[object, object]) -> tuple[object, object]:
    workload, allocation = held
    drawn = Resources.of({"licence": 1})
    members = tuple(replace(m, countables=drawn) for m in allocation.members)  # type: ignore[attr-defined]
    return replace(workload, placement=members), replace(allocation, members=members)  # type: ignore[type-var]


def test_what_lacks_a_licence_or_runs_into_its_owners_limit_preempts_less_important_work() -> None:
    role = Role("worker", gpus(1), 1, 1, countables=Resources.of({"licence": 1}))
    seen = snapshot([node("n", 8)], [holding_licence(running("low", ["n"])), pending("w", roles=(role,), priority=5)])
    assert stopped(of(replace(seen, countables=Resources.of({"licence": 1})))) == {"low": StopCause.PREEMPTED}
    each = limited(per_user=UserLimits(max_running=1))
    work = [running("own", ["n"], owner="ann"), running("other", ["n"], owner="bob")]
    made = of(snapshot([node("n", 8)], [*work, pending("w", owner="ann", priority=5)], [each]))
    assert stopped(made) == {"own": StopCause.PREEMPTED}


def test_a_share_of_licences_is_taken_back_from_who_borrowed_them() -> None:
    one = Resources.of({"licence": 1})
    tree = [limited("mine", deserved=one), limited("theirs", borrow_limit=one)]
    role = Role("worker", gpus(1), 1, 1, countables=one)
    work = [holding_licence(running("low", ["n"], queue="theirs")), pending("w", roles=(role,), queue="mine")]
    seen = replace(snapshot([node("n", 8)], work, tree), countables=one)
    assert stopped(of(seen)) == {"low": StopCause.RECLAIMED}


def test_of_two_that_borrow_the_queue_with_the_larger_surplus_priority_goes_first() -> None:
    tree = [
        queue("lender", 4),
        limited("p", borrow_limit=gpus(4), surplus_priority=1),
        limited("p/a", borrow_limit=gpus(4)),
        limited("q", borrow_limit=gpus(4)),
    ]
    work = [pending("w", 4, queue="p/a", submitted_s=9.0), pending("v", 4, queue="q", priority=9)]
    assert set(started(of(snapshot([node("n", 4)], work, tree)))) == {"w"}


# ---------------------------------------------------------------- modes


@pytest.mark.parametrize("mode", [QueueMode.HOLD, QueueMode.DELETING])
def test_a_held_queue_starts_nothing_and_grows_nothing_while_its_work_goes_on(mode: QueueMode) -> None:
    work = [running("r", ["n"], members=(1, 4), queue="q/a"), pending("w", queue="q/a")]
    made = of(snapshot([node("n", 8)], work, [limited("q", mode=mode), queue("q/a")]))
    assert (started(made), stopped(made), grown(made)) == ({}, {}, {})
    assert why(made, "w") == [WaitReason.QUEUE_CLOSED]
    assert "queue q is " in only(made, "w").detail


def test_what_runs_in_a_drained_queue_is_stopped_with_its_grace_preemptible_or_not() -> None:
    work = [running("r", ["n"] * 2, preemptible=False), running("other", ["n"], queue="o"), pending("w")]
    made = of(snapshot([node("n", 8)], work, [limited("q", mode=QueueMode.DRAIN), queue("o")]))
    assert stopped(made) == {"r": StopCause.DRAINED}
    assert started(made) == {}
    (order,) = [d.order for d in made.decisions if hasattr(d, "order")]
    assert (order.reason, order.deadline_s) == ("queue q is drained", NOW + 30.0)


def test_a_serve_application_in_a_held_queue_follows_its_demand() -> None:
    app = running("s", ["n"], members=(1, 4), kind=Kind.SERVE, demand=(8, 8))
    assert grown(of(snapshot([node("n", 8)], [app], [limited("q", mode=QueueMode.HOLD)])))
    assert not grown(of(snapshot([node("n", 8)], [app], [limited("q", mode=QueueMode.DELETING)])))


# ---------------------------------------------------------------- budgets


def spent(hours: float, budget: Budget, *work: object) -> Snapshot:
    queues = [limited("q", budget=budget), queue("q/a")]
    seen = snapshot([node("n", 8)], work, queues)
    return replace(seen, budgets=(BudgetUse(QueueId("q"), 0.0, NOW, round(hours * GPU_HOUR)),))


def test_when_a_budget_is_spent_gpus_wait_for_the_next_period_and_cpu_work_goes_on() -> None:
    daily = Budget(10.0, period_s=86_400.0)
    cpu = pending("cpu", queue="q/a", roles=(Role("w", Resources.of({"CPU": 1}), 1, 1),))
    made = of(spent(10.0, daily, pending("w", queue="q/a"), cpu))
    assert set(started(made)) == {"cpu"}
    wait = only(made, "w")
    assert (wait.reason, wait.need, wait.have, wait.unit) == (WaitReason.BUDGET, 10.0, 10.0, "GPU-hours")
    assert wait.detail == "queue q has used 10.00 of its 10 GPU-hours; the next period begins in 85400 s"
    assert made.estimates[WorkloadId("w")] == 86_400.0
    assert set(started(of(spent(9.99, daily, pending("w", queue="q/a"))))) == {"w"}


@pytest.mark.parametrize("drain", [False, True])
def test_what_runs_when_a_budget_is_spent_stays_or_is_drained_as_the_budget_says(drain: bool) -> None:
    made = of(spent(10.0, Budget(10.0, drain=drain), running("r", ["n"], members=(1, 4), queue="q/a")))
    assert stopped(made) == ({"r": StopCause.DRAINED} if drain else {})
    assert grown(made) == {}


# ---------------------------------------------------------------- caps and guarantees


def test_a_hard_cap_holds_also_for_a_queue_without_a_share() -> None:
    made = of(snapshot([node("n", 8)], [pending("w", 5)], [limited(hard_cap=gpus(4))]))
    assert (
        only(made, "w").detail
        == "queue q holds 0 GPU of the 4 that it may hold in any case and may take 4 more; 5 are needed"
    )


def test_a_guaranteed_share_is_not_lent_to_siblings_nor_through_the_parent() -> None:
    tree = [
        queue("p", 4),
        limited("p/a", deserved=gpus(4), guaranteed=gpus(3)),
        queue("o", 4),
    ]
    made = of(snapshot([node("n", 8)], [pending("w", 6, queue="o")], tree))
    assert only(made, "w").have == 5


# ---------------------------------------------------------------- bug cases of other engines


def test_a_queue_whose_limit_counts_both_gets_its_room_back_when_its_larger_gang_goes() -> None:
    """Two queues deserve 5 and may hold 10 of 10: when A's 6 of 6 are gone, a gang of 6 starts, not none."""
    both = [limited(q, deserved=gpus(5), hard_cap=gpus(10)) for q in ("a", "b")]
    work = [pending("a2", 6, queue="a"), pending("b1", 6, queue="b")]
    assert len(started(of(snapshot([node("n", 10)], work, both)))) == 1


def test_a_slot_that_comes_free_is_given_once() -> None:
    """Limit 2, four jobs of one: when one of the running ones stops, one of the waiting ones starts, not both."""
    work = [running("j1", ["n"]), pending("j3"), pending("j4")]
    assert len(started(of(snapshot([node("n", 8)], work, [queue("q", 2, 0)])))) == 1


def test_only_the_difference_of_a_gang_that_grows_is_charged() -> None:
    """A gang of 2 + 1 within 5 grows by 2; counted anew as a whole it would not fit."""
    grows = running("w", ["n"] * 3, members=(3, 5))
    made = of(snapshot([node("n", 8)], [grows], [queue("q", 5, 0)]))
    assert grown(made) == {"w": ["n", "n"]}


def test_each_resource_of_a_gang_is_counted_once() -> None:
    asks = pending("w", roles=(Role("w", Resources.of({"GPU": 2, "CPU": 4}), 1, 1),))
    tight = limited(deserved=Resources.of({"GPU": 2, "CPU": 4}))
    assert set(started(of(snapshot([node("n", 8)], [asks], [tight])))) == {"w"}
    short = of(snapshot([node("n", 8)], [asks], [limited(deserved=Resources.of({"GPU": 1, "CPU": 3}))]))
    assert [(w.need, w.have, w.unit) for w in short.waits[WorkloadId("w")]] == [(4, 3, "CPU"), (2, 1, "GPU")]
