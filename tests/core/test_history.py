"""Who used how much, how long finished work took, and what that says of work that runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayorch.core import history, history_book
from rayorch.core.codec import decode_as, encode
from rayorch.core.decisions import Start, Stop
from rayorch.core.errors import SpecError
from rayorch.core.events import AttemptEnded, AttemptReady, Event, HalfLifeSet, QueueDeleted, Resized
from rayorch.core.forecast import EXPECTED_SLACK, STEP_SLACK, Forecast
from rayorch.core.history import (
    HALF_LIFE_S,
    Account,
    History,
    HistoryChanges,
    Sample,
    ServiceClass,
    classes_of,
    finished_quantiles,
)
from rayorch.core.history_book import HistoryBook
from rayorch.core.lifecycle import Move
from rayorch.core.queues import QueueTree, TreeState
from rayorch.core.reports import CheckpointCommitted
from rayorch.core.service import attained_gpu_s, run_s
from rayorch.core.snapshot import Versions
from rayorch.core.types import Kind, QueueId, Resources, State, StopCause, StopOrder, Workload, WorkloadId, WorkloadSpec
from tests.build import apply, gpus, queue, seats, tree, workload

Q = QueueId("q")
A = WorkloadId("a")
KEY = (Q, "ann")


def _start(owner: QueueTree, id: str, at_s: float, members: int = 1) -> tuple[Event, ...]:
    wid = WorkloadId(id)
    attempt = owner.workloads[wid].attempt + 1
    return apply(owner, owner.commit_start(Start(wid, attempt, seats("n1", members), ""), Versions(), at_s))


def _end(owner: QueueTree, id: str, at_s: float, move: Move = Move.SUCCEEDED, cause: StopCause | None = None) -> None:
    wid = WorkloadId(id)
    attempt = owner.workloads[wid].attempt
    apply(owner, owner.end_attempt(AttemptEnded(wid, attempt, move, cause, 0, "", at_s, at_s)))


def _used(owner: QueueTree, at_s: float, key: tuple[QueueId, str] = KEY) -> float:
    history = owner.dump().history
    assert history is not None
    return history.accounts[key].used(at_s, history.half_life_s)[0]


# ---------------------------------------------------------------- usage


def test_what_was_used_counts_half_after_a_half_life() -> None:
    account = Account(Q, "ann", at_s=100.0, gpu_s=80.0, cpu_s=8.0)
    assert account.used(150.0, 50.0) == pytest.approx((40.0, 4.0))
    assert account.used(200.0, 50.0) == pytest.approx((20.0, 2.0))
    assert account.used(200.0, 0.0) == (80.0, 8.0)


def test_what_is_held_for_ever_comes_to_a_bound() -> None:
    """A constant rate r has used r × half-life / ln 2 in the end: what a full cluster's usage is measured by."""
    account = Account(Q, "ann", at_s=0.0, gpu_units=20_000)
    assert account.used(1e9, 50.0)[0] == pytest.approx(2 * 50.0 / 0.6931471805599453)


@given(st.lists(st.tuples(st.floats(0, 500), st.integers(0, 8)), max_size=12), st.sampled_from([0.0, 30.0, 1e4]))
def test_an_account_is_the_decayed_integral_of_what_was_held(
    steps: list[tuple[float, int]], half_life_s: float
) -> None:
    book = HistoryBook()
    book.set_half_life(half_life_s, 0.0, 1)
    now_s, held, pieces = 0.0, 0, []
    for version, (lasts_s, gpu) in enumerate(steps, start=2):
        book.held(Q, "ann", gpus(gpu) - gpus(held), now_s, version)
        pieces.append((now_s, now_s + lasts_s, gpu))
        now_s, held = now_s + lasts_s, gpu

    def integral(at_s: float) -> float:
        if not half_life_s:
            return sum((end - begin) * gpu for begin, end, gpu in pieces)
        rate = 0.6931471805599453 / half_life_s
        weigh = [(2 ** (-(at_s - e) / half_life_s) - 2 ** (-(at_s - b) / half_life_s)) / rate for b, e, _ in pieces]
        return sum(w * gpu for w, (_, _, gpu) in zip(weigh, pieces, strict=True))

    account = book.state().accounts.get(KEY, Account(Q, "ann", 0.0))
    assert account.used(now_s, half_life_s)[0] == pytest.approx(integral(now_s), abs=1e-6)


def test_the_tree_charges_an_owner_from_commit_to_end_as_it_grows_and_shrinks() -> None:
    owner = tree(queue("q"), waiting=[workload("a", 1, 4, owner="ann")])
    apply(owner, owner.set_half_life(0.0, 0.0))
    _start(owner, "a", 10.0)
    assert _used(owner, 20.0) == pytest.approx(10.0)
    apply(owner, [Resized(A, 1, seats("n1", 3), None, None, "", 20.0)])
    _end(owner, "a", 30.0)
    assert _used(owner, 1000.0) == pytest.approx(10.0 + 3 * 10.0)


def test_a_queue_that_is_deleted_takes_its_usage_with_it() -> None:
    owner = tree(queue("q"), waiting=[workload("a", owner="ann")])
    _start(owner, "a", 0.0)
    _end(owner, "a", 10.0)
    apply(owner, [QueueDeleted(Q, 20.0)])
    history = owner.dump().history
    assert history is not None and history.accounts == {}


def test_a_new_half_life_counts_from_when_it_was_set() -> None:
    owner = tree(queue("q"), waiting=[workload("a", owner="ann")])
    _start(owner, "a", 0.0)
    _end(owner, "a", 100.0)
    before = _used(owner, 200.0)
    apply(owner, owner.set_half_life(50.0, 200.0))
    assert _used(owner, 200.0) == before and _used(owner, 250.0) == pytest.approx(before / 2)
    assert owner.set_half_life(50.0, 300.0) == ()
    with pytest.raises(SpecError):
        owner.set_half_life(float("nan"), 0.0)


def test_a_clock_that_was_set_back_takes_nothing_away() -> None:
    book = HistoryBook()
    book.held(Q, "ann", gpus(1), 100.0, 1)
    book.held(Q, "ann", gpus(1), 50.0, 2)
    assert book.state().accounts[KEY].at_s == 100.0
    assert book.state().accounts[KEY].used(50.0, HALF_LIFE_S) == (0.0, 0.0)


# ---------------------------------------------------------------- restarts and readers


def _busy() -> QueueTree:
    owner = tree(queue("q"), waiting=[workload(id, 1, 4, owner=o) for id, o in (("a", "ann"), ("b", "bob"))])
    apply(owner, [HalfLifeSet(100.0, 5.0)])
    _start(owner, "a", 10.0)
    apply(owner, [AttemptReady(A, 1, 12.0)])
    _start(owner, "b", 20.0, 3)
    _end(owner, "a", 40.0)
    return owner


def test_the_history_survives_the_journals_snapshot_exactly() -> None:
    owner = _busy()
    again = QueueTree.restore(decode_as(TreeState, encode(owner.dump())))
    assert again.dump() == owner.dump()
    for one in (owner, again):
        _end(one, "b", 77.7)
    assert again.dump() == owner.dump()


def test_a_journal_of_before_there_was_a_history_knows_what_is_held() -> None:
    owner = QueueTree.restore(replace(_busy().dump(), history=None))
    history = owner.dump().history
    assert history is not None and history.accounts[Q, "bob"].gpu_units == 30_000
    _end(owner, "b", 50.0)
    history = owner.dump().history
    assert history is not None and history.accounts[Q, "bob"].gpu_units == 0


OPERATIONS = st.one_of(
    st.tuples(st.just("held"), st.sampled_from("xyz"), st.sampled_from(["ann", "bob"]), st.integers(-2, 3)),
    st.tuples(st.just("succeeded"), st.sampled_from("xyz"), st.sampled_from(["ann", "bob"]), st.integers(1, 3)),
    st.tuples(st.just("deleted"), st.sampled_from("xyz"), st.just(""), st.just(0)),
    st.tuples(st.just("half life"), st.just(""), st.just(""), st.integers(1, 3)),
    st.tuples(st.just("read"), st.just(""), st.just(""), st.just(0)),
)


@given(st.lists(OPERATIONS, max_size=30))
def test_a_reader_that_asks_for_news_has_the_same_as_one_that_asks_for_everything(
    operations: list[tuple[str, str, str, int]],
) -> None:
    book, copy, near, seen = HistoryBook(), History(), History(), 0
    for version, (what, where, who, amount) in enumerate(operations, start=1):
        match what:
            case "held":
                book.held(QueueId(where), who, Resources.of_units({"GPU": amount}), float(version), version)
            case "succeeded":
                done = Workload(
                    workload(where, owner=who), state=State.SUCCEEDED, submitted_s=0.0, progress_s=float(amount)
                )
                book.succeeded(done, float(version), version)
            case "deleted":
                book.queue_deleted(QueueId(where), version)
            case "half life":
                book.set_half_life(float(amount), float(version), version)
            case _:
                near = near.changed(book.changes_since(seen, near=True))
                copy, seen = copy.changed(book.changes_since(seen)), version
    near = near.changed(book.changes_since(seen, near=True))
    copy = copy.changed(book.changes_since(seen))
    assert copy == near == book.state()
    assert copy.changed(book.changes_since(len(operations))) is copy
    used = copy.changed(HistoryChanges(copy.half_life_s, (Account(QueueId("new"), "u", 0.0, 1.0),)))
    assert used != copy and used.classes is copy.classes


def test_accounts_and_classes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_book, "MAX_ACCOUNTS", 10)
    monkeypatch.setattr(history_book, "MAX_CLASSES", 20)
    monkeypatch.setattr(history, "MAX_SAMPLES", 3)
    book, copy, seen = HistoryBook(), History(), 0
    book.held(Q, "busy", gpus(1), 0.0, 1)
    for n in range(100):
        book.held(Q, f"user{n}", gpus(1), float(n), n + 2)
        book.held(Q, f"user{n}", Resources() - gpus(1), float(n + 1), n + 2)
        done = Workload(workload(f"w{chr(97 + n % 26)}{chr(97 + n // 26)}"), State.SUCCEEDED, 0.0, progress_s=1.0)
        book.succeeded(done, float(n), n + 2)
        if n % 7 in (0, 1, 4):
            copy, seen = copy.changed(book.changes_since(seen)), n + 2
            assert copy == book.state()
    state = book.state()
    assert len(state.accounts) <= 11 and (Q, "busy") in state.accounts and (Q, "user99") in state.accounts
    assert len(state.classes) <= 21 and f"kind/{Kind.TRAIN}" in state.classes
    assert max(len(entry.samples) for entry in state.classes.values()) == 3


# ---------------------------------------------------------------- the long past

DAY_S = 24 * 3600.0
KIND_TRAIN = f"kind/{Kind.TRAIN}"


def _done(n: int, gpu_s: float, run_s: float) -> Workload:
    return Workload(workload(f"w{n}"), State.SUCCEEDED, 0.0, progress_s=run_s, attained_gpu_s=gpu_s)


@given(st.lists(st.tuples(st.floats(0, 40 * DAY_S), st.floats(1, 1e6), st.booleans()), max_size=40), st.integers(0, 40))
def test_a_reader_and_a_restarted_owner_know_the_same_long_past(
    steps: list[tuple[float, float, bool]], restart: int
) -> None:
    book, copy, seen, now_s = HistoryBook(), History(), 0, 0.0
    for version, (elapsed_s, gpu_s, reads) in enumerate(steps, start=1):
        now_s += elapsed_s
        at_s = now_s if version % 5 else now_s / 2  # now and then a clock is set back
        book.succeeded(_done(version, gpu_s, gpu_s / 2), at_s, version)
        if version == restart:
            again = HistoryBook(decode_as(History, encode(book.state())), version)
            assert again.state() == book.state()
            book = again
        if reads:
            copy, seen = copy.changed(book.changes_since(seen)), version
    assert copy.changed(book.changes_since(seen)) == book.state()


def test_the_long_past_outlasts_the_newest_samples_and_is_halved_by_the_month() -> None:
    """1,000 long jobs in one month, then 300 short ones: the samples know the short ones alone, the past knows both."""
    book = HistoryBook()
    for n in range(1000):
        book.succeeded(_done(n, 10_000.0, 1000.0), float(n), n + 1)
    for n in range(300):
        book.succeeded(_done(n, 100.0, 10.0), 31 * DAY_S + n, n + 1001)
    classes = book.state().classes
    past = classes[KIND_TRAIN].past
    assert past is not None and (past.gpu_s.total, past.run_s.total, past.period) == (800.0, 800.0, 1)
    assert {sample.gpu_s for sample in classes[KIND_TRAIN].samples} == {100.0}
    found = finished_quantiles(classes, "gpu_s", (0.37, 0.5), 20)
    assert found == pytest.approx((100.0, 10_000.0), rel=1 / 32)
    assert finished_quantiles(classes, "run_s", (0.37, 0.5), 20) == pytest.approx((10.0, 1000.0), rel=1 / 32)
    assert finished_quantiles(classes, "gpu_s", (0.5,), 300) == ()
    assert all((entry.past is not None) == (name == KIND_TRAIN) for name, entry in classes.items())


def test_work_of_another_kind_that_ended_long_ago_counts_less() -> None:
    book = HistoryBook()
    for n in range(400):
        other = Workload(workload(f"b{n}", kind=Kind.JOB), State.SUCCEEDED, 0.0, progress_s=10.0, attained_gpu_s=10.0)
        book.succeeded(other, 0.0, n + 1)
    for n in range(300):
        book.succeeded(_done(n, 1000.0, 1000.0), 32 * DAY_S, n + 401)
    found = finished_quantiles(book.state().classes, "gpu_s", (0.4, 0.41), 20)
    assert found == pytest.approx((10.0, 1000.0), rel=1 / 32), "400 jobs of another kind count 200 against 300"


def test_a_journal_of_before_there_was_a_long_past_begins_one_with_what_it_knows() -> None:
    samples = tuple(Sample(10.0, 10.0 * n) for n in range(1, 31))
    book = HistoryBook(History(classes={KIND_TRAIN: ServiceClass(KIND_TRAIN, 5.0, samples)}))
    book.succeeded(_done(0, 310.0, 10.0), 6.0, 1)
    past = book.state().classes[KIND_TRAIN].past
    assert past is not None and past.gpu_s.total == 31


# ---------------------------------------------------------------- service


def test_attained_service_counts_all_attempts_and_progress_what_was_saved() -> None:
    owner = tree(queue("q"), waiting=[workload("a", 2, owner="ann")])
    _start(owner, "a", 0.0, 2)
    apply(owner, [AttemptReady(A, 1, 10.0)])
    apply(owner, owner.report(A, 1, CheckpointCommitted(step=5, uri="u", at_s=40.0), 40.0))
    order = StopOrder(StopCause.PREEMPTED, "", 50.0, 60.0)
    apply(owner, owner.commit_stop(Stop(A, 1, order), 50.0))
    _end(owner, "a", 60.0, Move.REQUEUED, StopCause.PREEMPTED)
    waiting = owner.workloads[A]
    assert (attained_gpu_s(waiting, 1e6), run_s(waiting, 1e6)) == (120.0, 30.0)
    _start(owner, "a", 100.0, 2)
    apply(owner, [AttemptReady(A, 2, 105.0)])
    running = owner.workloads[A]
    assert (attained_gpu_s(running, 110.0), run_s(running, 110.0)) == (140.0, 35.0)
    _end(owner, "a", 125.0)
    done = owner.workloads[A]
    assert (done.attained_gpu_s, done.progress_s) == (170.0, 50.0)
    history = owner.dump().history
    assert history is not None
    assert {entry.samples for entry in history.classes.values()} == {(Sample(50.0, 170.0),)}
    assert sorted(history.classes) == sorted(classes_of(done.spec))


@pytest.mark.parametrize("move", [Move.FAILED, Move.REQUEUED])
def test_only_success_is_a_sample_and_what_was_not_saved_is_lost(move: Move) -> None:
    owner = tree(queue("q"), waiting=[workload("a", owner="ann")])
    _start(owner, "a", 0.0)
    apply(owner, [AttemptReady(A, 1, 0.0)])
    _end(owner, "a", 50.0, move)
    history = owner.dump().history
    assert history is not None and history.classes == {}
    assert (owner.workloads[A].progress_s, owner.workloads[A].attained_gpu_s) == (0.0, 50.0)


def test_numbers_in_a_name_make_no_other_class() -> None:
    one, other = (classes_of(workload(f"train-{n}-b", owner="ann")) for n in (7, 42))
    assert one == other
    assert classes_of(workload("train-7-b", owner="bob"))[0] != one[0]
    assert classes_of(workload("app", kind=Kind.SERVE)) == ()


# ---------------------------------------------------------------- forecast


def _history(spec: WorkloadSpec, which: int, run: list[float]) -> History:
    name = classes_of(spec)[which]
    return History(classes={name: ServiceClass(name, 0.0, tuple(Sample(s, s) for s in run))})


def _pending(progress_s: float = 0.0, **asked: object) -> Workload:
    return Workload(workload("a", owner="ann", **asked), State.PENDING, 0.0, progress_s=progress_s)  # type: ignore[arg-type]


HUNDREDS = [100.0 * n for n in range(1, 11)]


def test_finished_work_of_the_same_name_says_how_long_it_goes_on() -> None:
    fresh = _pending()
    history = _history(fresh.spec, 0, HUNDREDS)
    assert Forecast(history, 0.0).remaining(fresh) == (500.0, 900.0)
    assert Forecast(history, 0.0).remaining(_pending(500.0)) == (300.0, 500.0), "of those that ran longer than 500 s"
    assert Forecast(history, 0.0).remaining(_pending(700.0)) is None, "three are too few"


def test_a_coarse_class_needs_more_samples_and_comes_after_what_the_owner_expects() -> None:
    few, many = HUNDREDS[:6], sorted(HUNDREDS * 2)
    fresh = _pending()
    assert Forecast(_history(fresh.spec, 1, few), 0.0).remaining(fresh) is None
    assert Forecast(_history(fresh.spec, 1, many), 0.0).remaining(fresh) == (500.0, 900.0)
    expects = _pending(expected_s=50.0)
    assert Forecast(_history(fresh.spec, 1, many), 0.0).remaining(expects) == (50.0, EXPECTED_SLACK * 50.0)
    overdue = _pending(60.0, expected_s=50.0)
    assert Forecast(_history(fresh.spec, 1, many), 0.0).remaining(overdue) == (440.0, 840.0)


def test_an_attempt_whose_work_was_lost_still_says_how_long_the_whole_takes_at_least() -> None:
    fresh = _pending()
    history = _history(fresh.spec, 0, HUNDREDS)
    lost = replace(fresh, outlasted_s=500.0)

    assert Forecast(history, 0.0).remaining(lost) == (800.0, 1000.0), "of those that took longer than 500 s"
    saved = replace(lost, progress_s=200.0)
    assert Forecast(history, 0.0).remaining(saved) == (600.0, 800.0)
    refuted = replace(_pending(expected_s=400.0), outlasted_s=500.0)
    assert Forecast(History(), 0.0).remaining(refuted) is None, "its owner was wrong"


def test_the_owner_keeps_how_long_the_longest_attempt_went_on() -> None:
    owner = tree(queue("q"), waiting=[workload("a", 1, 4)])
    for attempt, (at_s, end_s) in enumerate(((10.0, 310.0), (400.0, 500.0)), 1):
        _start(owner, "a", at_s)
        apply(owner, [AttemptReady(A, attempt, at_s)])
        _end(owner, "a", end_s, Move.REQUEUED, StopCause.NODE_LOST)

    assert owner.workloads[A].outlasted_s == 300.0
    assert owner.workloads[A].progress_s == 0.0


def test_declared_steps_at_the_pace_so_far_say_more_than_history() -> None:
    work = replace(_pending(30.0, total_steps=100), step=10)
    assert Forecast(_history(work.spec, 0, HUNDREDS), 0.0).remaining(work) == (270.0, 270.0 * STEP_SLACK)


def test_a_wall_limit_bounds_every_forecast_and_is_one_where_nothing_else_is_known() -> None:
    assert Forecast(History(), 0.0).remaining(_pending()) is None
    assert Forecast(History(), 0.0).remaining(_pending(wall_limit_s=60.0)) == (60.0, 60.0)
    work = _pending(wall_limit_s=600.0)
    assert Forecast(_history(work.spec, 0, HUNDREDS), 0.0).remaining(work) == (500.0, 600.0)


def test_nobody_knows_how_long_an_application_serves() -> None:
    app = Workload(workload("a", kind=Kind.SERVE), State.PENDING, 0.0)
    assert Forecast(History(), 0.0).remaining(app) is None
