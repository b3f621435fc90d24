"""What the queue owner holds queues to: modes, limits per user, budgets, countables, deletion under running work."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayorch.core.codec import decode, encode
from rayorch.core.decisions import Resize, Start
from rayorch.core.errors import AdmissionError, RayorchError, SpecError, StalePlanError
from rayorch.core.events import AttemptEnded, QueueSet
from rayorch.core.lifecycle import Move
from rayorch.core.queues import QueueTree
from rayorch.core.snapshot import Versions
from rayorch.core.types import (
    Budget,
    Member,
    QueueId,
    QueueMode,
    QueueSpec,
    Resources,
    State,
    UserLimits,
    WorkloadId,
    WorkloadSpec,
    charge_of,
)
from tests.build import apply, gpus, queue, seats, tree, workload

V = Versions(1, 2, 3)
Q = QueueId("q")
HOUR = 3600.0


def begin(built: QueueTree, id: str, members: tuple[Member, ...], now_s: float = 5.0) -> None:
    attempt = built.workloads[WorkloadId(id)].attempt + 1
    apply(built, built.commit_start(Start(WorkloadId(id), attempt, members, "fits"), V, now_s))


def finish(built: QueueTree, id: str, move: Move = Move.SUCCEEDED, now_s: float = 50.0) -> None:
    attempt = built.workloads[WorkloadId(id)].attempt
    apply(built, built.end_attempt(AttemptEnded(WorkloadId(id), attempt, move, None, 0, "over", 0.0, now_s)))


def submit(built: QueueTree, *specs: WorkloadSpec) -> None:
    for spec in specs:
        apply(built, built.submit(spec, 1.0))


def set_queue(built: QueueTree, spec: QueueSpec, now_s: float = 10.0) -> None:
    apply(built, built.set_queue(spec, now_s))


def a_seat(**changes: object) -> tuple[Member, ...]:
    (member,) = seats("n1", 1)
    return (replace(member, **changes),)  # type: ignore[arg-type]


# ---------------------------------------------------------------- modes and deletion


@pytest.mark.parametrize("mode", [QueueMode.HOLD, QueueMode.DRAIN])
def test_a_closed_queue_or_one_above_it_starts_nothing_and_takes_submissions(mode: QueueMode) -> None:
    built = tree(queue("q", mode=mode), queue("q/a"))
    submit(built, workload("w", queue="q/a"))
    with pytest.raises(StalePlanError, match=f"q starts nothing: its mode is {mode.value}"):
        begin(built, "w", seats("n1", 1))
    apply(built, built.set_queue_mode(Q, QueueMode.OPEN, 9.0))
    begin(built, "w", seats("n1", 1))


def test_what_an_operator_held_stays_held_when_the_same_settings_are_applied_again() -> None:
    built = tree()
    set_queue(built, queue("q", 4))
    apply(built, built.set_queue_mode(Q, QueueMode.HOLD, 9.0))
    set_queue(built, queue("q", 5))
    assert (built.queues[Q].mode, built.queues[Q].deserved) == (QueueMode.HOLD, gpus(5))
    set_queue(built, queue("q", 5, mode=QueueMode.DRAIN))
    assert built.queues[Q].mode is QueueMode.DRAIN
    set_queue(built, queue("q", 5))
    assert built.queues[Q].mode is QueueMode.OPEN
    with pytest.raises(SpecError, match="mode"):
        built.set_queue_mode(Q, QueueMode.DELETING, 10.0)
    with pytest.raises(AdmissionError, match="does not exist"):
        built.set_queue_mode(QueueId("x"), QueueMode.HOLD, 10.0)


def test_nobody_sets_the_mode_that_deletion_sets() -> None:
    with pytest.raises(SpecError, match="mode"):
        tree(queue("q")).set_queue(queue("q", mode=QueueMode.DELETING), 1.0)


def test_a_queue_in_use_is_deleted_only_when_it_may_drain() -> None:
    built = tree(queue("q", 2))
    submit(built, workload("runs"), workload("waits"))
    begin(built, "runs", seats("n1", 1))
    with pytest.raises(AdmissionError, match="2 workloads that have not ended: runs"):
        built.delete_queue(Q, 6.0)
    apply(built, built.delete_queue(Q, 6.0, drain=True))
    assert built.workloads[WorkloadId("waits")].state is State.CANCELLED
    assert built.workloads[WorkloadId("runs")].state is State.RUNNING
    assert built.delete_queue(Q, 7.0, drain=True) == ()
    with pytest.raises(AdmissionError, match="is being deleted"):
        submit(built, workload("new"))
    finish(built, "runs")
    assert Q not in built.queues


def test_what_loses_its_seats_in_a_queue_that_goes_is_cancelled_and_not_requeued() -> None:
    built = tree(queue("q", 2))
    submit(built, workload("w"))
    begin(built, "w", seats("n1", 1))
    apply(built, built.delete_queue(Q, 6.0, drain=True))
    finish(built, "w", Move.REQUEUED)
    assert built.workloads[WorkloadId("w")].state is State.CANCELLED
    assert Q not in built.queues


def test_a_deleted_queue_lends_nothing_while_its_work_runs_on() -> None:
    """Its share is gone at once, and what still runs counts as borrowed from its siblings."""
    built = tree(queue("a", 4), queue("b", 4))
    submit(built, workload("w", members=3, queue="a"), workload("x", queue="b", members=4), workload("y", queue="b"))
    begin(built, "w", seats("n1", 3))
    apply(built, built.delete_queue(QueueId("a"), 6.0, drain=True))
    begin(built, "x", seats("n2", 4))  # its own share is never refused
    with pytest.raises(StalePlanError, match="queue b may take 0 more"):
        begin(built, "y", seats("n3", 1))
    finish(built, "w")
    with pytest.raises(StalePlanError, match="queue b may take 0 more"):
        begin(built, "y", seats("n3", 1))


def test_setting_a_queue_that_goes_brings_it_back() -> None:
    built = tree(queue("q", 2))
    submit(built, workload("w"))
    begin(built, "w", seats("n1", 1))
    apply(built, built.delete_queue(Q, 6.0, drain=True))
    set_queue(built, queue("q", 4))
    finish(built, "w")
    assert built.queues[Q].mode is QueueMode.OPEN


def test_a_share_that_is_lowered_under_running_work_lets_nothing_more_in_until_it_fits() -> None:
    built = tree(queue("q", 4, 0))
    submit(built, *(workload(f"w{n}", members=2) for n in range(3)))
    begin(built, "w0", seats("n1", 2))
    begin(built, "w1", seats("n1", 2))
    set_queue(built, queue("q", 2, 0))
    assert built.used(Q) == gpus(4)  # what runs is kept
    finish(built, "w0")
    with pytest.raises(StalePlanError, match="may take 0 more"):
        begin(built, "w2", seats("n1", 2))
    finish(built, "w1")
    begin(built, "w2", seats("n1", 2))


# ---------------------------------------------------------------- what is charged


def test_gpus_are_charged_once_more_under_their_model() -> None:
    spec = replace(queue("q", 8), hard_cap=Resources.of({"GPU:H100": 1}))
    built = tree(spec)
    submit(built, workload("old"), workload("one"), workload("two"))
    begin(built, "old", a_seat(model="A100"))
    begin(built, "one", a_seat(model="H100"))
    assert built.used(Q) == Resources.of({"GPU": 2, "GPU:A100": 1, "GPU:H100": 1})
    with pytest.raises(StalePlanError, match="needs 1 GPU:H100, queue q may take 0 more"):
        begin(built, "two", a_seat(model="H100"))
    begin(built, "two", a_seat(model="A100"))


def test_untyped_limits_count_gpus_of_every_model() -> None:
    """A limit of 4 GPUs holds for what is asked without a model and for what names one."""
    built = tree(queue("q", 4, 0))
    submit(built, workload("any"), workload("typed", members=4, accelerators=("H100",)))
    begin(built, "any", a_seat(model="A100"))
    with pytest.raises(StalePlanError, match="needs 4 GPU, queue q may take 3 more"):
        begin(built, "typed", tuple(replace(m, model="H100") for m in seats("n1", 4)))


def test_countables_are_drawn_from_the_cluster_and_from_every_queue_that_names_them() -> None:
    licence = Resources.of({"licence/x": 1})
    built = tree(replace(queue("a"), deserved=licence), queue("b"))
    apply(built, built.set_countables(Resources.of({"licence/x": 2}), 0.0))
    role = replace(workload("w").roles[0], countables=licence)
    for id, where in (("w1", "a"), ("w2", "a"), ("w3", "b"), ("w4", "b")):
        submit(built, replace(workload(id, queue=where), roles=(role,)))
    begin(built, "w1", a_seat(countables=licence))
    with pytest.raises(StalePlanError, match="needs 1 licence/x, queue a may take 0 more"):
        begin(built, "w2", a_seat(countables=licence))
    begin(built, "w3", a_seat(countables=licence))
    with pytest.raises(StalePlanError, match="needs 1 licence/x, the cluster has 0 left"):
        begin(built, "w4", a_seat(countables=licence))
    with pytest.raises(AdmissionError, match=r"w1.*names it and has not ended"):
        built.set_countables(Resources(), 9.0)


def test_a_countable_that_the_cluster_does_not_have_is_refused_at_the_door() -> None:
    role = replace(workload("w").roles[0], countables=Resources.of({"watts": 300}))
    with pytest.raises(AdmissionError, match=r"roles.worker.countables.watts.*the cluster has none"):
        tree(queue("q")).submit(replace(workload("w"), roles=(role,)), 1.0)
    with pytest.raises(SpecError, match="is something that nodes have"):
        tree(queue("q")).set_countables(Resources.of({"GPU": 8}), 1.0)


# ---------------------------------------------------------------- users


def test_each_user_has_limits_of_its_own_in_a_queue_and_below_it() -> None:
    limits = UserLimits(Resources.of({"GPU": 2}), max_running=2, max_pending=3)
    built = tree(queue("q", per_user=limits), queue("q/a"))
    submit(built, workload("w1", queue="q/a", owner="ann", members=2), workload("w2", owner="ann"))
    submit(built, workload("w3", owner="bob"), workload("w4", owner="ann"))
    with pytest.raises(AdmissionError, match="ann has 3 workloads waiting in queue 'q'"):
        submit(built, workload("w5", owner="ann"))
    submit(built, workload("w5", owner="bob"))
    begin(built, "w1", seats("n1", 2))
    with pytest.raises(StalePlanError, match="ann may take 0 more in queue q"):
        begin(built, "w2", seats("n1", 1))
    begin(built, "w3", seats("n1", 1))
    with pytest.raises(AdmissionError, match=r"owner.*needs 3 GPU, and each user may have 2"):
        submit(built, workload("large", members=3, owner="bob"))


def test_no_user_runs_more_workloads_than_allowed() -> None:
    built = tree(queue("q", per_user=UserLimits(max_running=1)))
    submit(built, workload("w1", owner="ann"), workload("w2", owner="ann"))
    begin(built, "w1", seats("n1", 1))
    with pytest.raises(StalePlanError, match="ann may start 0 more in queue q"):
        begin(built, "w2", seats("n1", 1))
    finish(built, "w1", Move.REQUEUED)
    begin(built, "w2", seats("n1", 1))


# ---------------------------------------------------------------- budgets


def test_a_budget_counts_what_runs_and_lets_nothing_start_once_it_is_spent() -> None:
    built = tree(queue("q", budget=Budget(2.0)))
    submit(built, workload("w1", members=2), workload("w2"), replace(workload("cpu"), roles=(cpu_role(),)))
    begin(built, "w1", seats("n1", 2), 0.0)
    finish(built, "w1", now_s=HOUR / 2)
    assert built.budgets[0].hours() == 1.0
    begin(built, "w2", seats("n1", 1), HOUR)
    finish(built, "w2", Move.REQUEUED, now_s=2 * HOUR)
    assert built.budgets[0].hours() == 2.0
    with pytest.raises(StalePlanError, match="queue q has spent its 2 GPU-hours"):
        begin(built, "w2", seats("n1", 1), 2 * HOUR)
    begin(built, "cpu", (replace(seats("n1", 1)[0], bundle=Resources.of({"CPU": 1})),), 2 * HOUR)
    set_queue(built, queue("q", budget=Budget(3.0)))
    begin(built, "w2", seats("n1", 1), 2 * HOUR)


def test_a_period_that_begins_anew_forgets_what_was_spent_before_it() -> None:
    built = tree(queue("q", budget=Budget(1.0, period_s=HOUR)))
    submit(built, workload("w1"), workload("w2"))
    begin(built, "w1", seats("n1", 1), HOUR / 2)
    finish(built, "w1", now_s=1.75 * HOUR)
    assert (built.budgets[0].hours(), built.budgets[0].since_s) == (0.75, HOUR)


def test_many_small_uses_add_up_to_exactly_what_one_large_one_is() -> None:
    built = tree(queue("q", budget=Budget(100.0)))
    small = workload("w", gpu=0.0004)
    submit(built, small)
    for n in range(1000):
        begin(built, "w", seats("n1", 1, gpu=0.0004), float(n))
        finish(built, "w", Move.REQUEUED, now_s=n + 0.3)
    assert built.budgets[0].spent == 4 * 300_000 * 1000


def cpu_role() -> object:
    return replace(workload("w").roles[0], bundle=Resources.of({"CPU": 1}))


# ---------------------------------------------------------------- exactness


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_charge_is_the_live_members_once_each_whatever_happens(data: st.DataObject) -> None:
    """Through starts, growth, shrinks, requeues, ends, lowered quotas and deletions; and a restart changes nothing."""
    built = tree(queue("p", 6), queue("p/a", 3), queue("p/b", 3, budget=Budget(1e6)), queue("r", 4))
    apply(built, built.set_countables(Resources.of({"x": 50}), 0.0))
    now_s = 0.0
    for step in range(data.draw(st.integers(1, 25))):
        now_s += 1.0
        ids = sorted(built.workloads)
        live = [id for id in ids if built.workloads[id].state is State.RUNNING]
        waiting = [id for id in ids if built.workloads[id].state is State.PENDING]
        try:
            match data.draw(st.sampled_from(("submit", "start", "start", "resize", "end", "quota", "delete"))):
                case "submit":
                    where = data.draw(st.sampled_from(sorted(built.queues)))
                    spec = workload(f"w{step}", 1, 3, queue=where, owner=data.draw(st.sampled_from("ab")))
                    apply(built, built.submit(spec, now_s))
                case "start" if waiting:
                    begin(built, data.draw(st.sampled_from(waiting)), members_of(data), now_s)
                case "resize" if live:
                    id = data.draw(st.sampled_from(live))
                    change = Resize(id, built.workloads[id].attempt, (), (), "other size")
                    apply(built, built.commit_resize(change, members_of(data), now_s))
                case "end" if live:
                    move = data.draw(st.sampled_from((Move.SUCCEEDED, Move.REQUEUED, Move.FAILED)))
                    finish(built, data.draw(st.sampled_from(live)), move, now_s)
                case "quota":
                    id = data.draw(st.sampled_from(sorted(built.queues)))
                    set_queue(built, replace(built.queues[id], deserved=gpus(data.draw(st.integers(0, 6)))), now_s)
                case "delete":
                    id = data.draw(st.sampled_from(sorted(built.queues)))
                    apply(built, built.delete_queue(id, now_s, drain=data.draw(st.booleans())))
        except RayorchError:
            pass
        if not built.queues:
            break
        check_charge(built)
    again = QueueTree.restore(decode(encode(built.dump())))  # type: ignore[arg-type]
    assert again.dump() == built.dump()
    check_charge(again)


def members_of(data: st.DataObject) -> tuple[Member, ...]:
    model = data.draw(st.sampled_from(("", "H100")))
    drawn = data.draw(st.sampled_from((Resources(), Resources.of({"x": 2}))))
    count = data.draw(st.integers(1, 3))
    return tuple(replace(m, model=model, countables=drawn) for m in seats("n1", count))


def check_charge(built: QueueTree) -> None:
    for id in built.queues:
        inside = [w for w in built.workloads.values() if w.spec.queue == id or w.spec.queue.startswith(f"{id}/")]
        assert built.used(id) == charge_of(m for w in inside for m in w.placement)
        assert built.pending(id) == sum(w.state is State.PENDING for w in inside)


def test_a_queue_that_is_set_at_replay_keeps_its_budget() -> None:
    built = tree(queue("q", budget=Budget(2.0)))
    submit(built, workload("w"))
    begin(built, "w", seats("n1", 1), 0.0)
    set_queue(built, queue("q", budget=Budget(5.0)), 100.0)
    again = QueueTree.restore(built.dump())
    apply(again, [QueueSet(queue("q", budget=Budget(6.0)), 200.0)])
    finish(again, "w", now_s=HOUR)
    assert again.budgets[0].hours() == 1.0
