"""Arrays: one record for up to 100,000 entries; what is listed, what is counted, what is cancelled, and restarts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayorch.core.arrays import BEYOND_CAP, WINDOW_LEAST, entry_ids
from rayorch.core.codec import decode, encode
from rayorch.core.decisions import Start, WaitReason
from rayorch.core.errors import AdmissionError, SpecError, StalePlanError
from rayorch.core.events import AttemptEnded, Event, Started
from rayorch.core.lifecycle import Move
from rayorch.core.planner import plan
from rayorch.core.queues import QueueTree
from rayorch.core.requests import Until, WaitRequest, WorkloadFilter
from rayorch.core.retention import Retention
from rayorch.core.snapshot import Versions
from rayorch.core.timing import After, ArrayEntry, ArrayProgress, ArraySpec, Dependency
from rayorch.core.types import Kind, State, StopCause, Workload, WorkloadId, WorkloadSpec
from rayorch.policies.default import DEFAULT
from tests.build import apply, queue, seats, tree, workload
from tests.scenes import node, pending, reasons, running, snapshot, started

A = WorkloadId("a")


def array(id: str = "a", count: int = 100, cap: int | None = None, first: int = 0, **asked: object) -> WorkloadSpec:
    return workload(id, kind=Kind.JOB, array=ArraySpec(count, cap, first), **asked)


def settle(built: QueueTree, events: tuple[Event, ...], now_s: float = 10.0) -> tuple[Event, ...]:
    done = apply(built, events)
    while more := built.due(now_s):
        done += apply(built, more)
    return done


def with_array(spec: WorkloadSpec) -> QueueTree:
    built = tree()
    settle(built, built.submit(spec, 1.0))
    return built


def begin(built: QueueTree, id: str, now_s: float = 5.0) -> None:
    known = built.find(WorkloadId(id))
    assert known is not None
    start = Start(known.id, known.attempt + 1, seats("n1", 1), "fits")
    settle(built, built.commit_start(start, Versions(), now_s))


def finish(
    built: QueueTree, id: str, move: Move = Move.SUCCEEDED, code: int = 0, cause: StopCause | None = None
) -> None:
    attempt = built.workloads[WorkloadId(id)].attempt
    settle(built, built.end_attempt(AttemptEnded(WorkloadId(id), attempt, move, cause, code, "over", 0.0, 9.0)))


def progress(built: QueueTree, id: WorkloadId = A) -> ArrayProgress:
    found = built.workloads[id].progress
    assert found is not None
    return found


def listed(built: QueueTree) -> list[int]:
    return sorted(w.spec.entry.index for w in built.workloads.values() if w.spec.entry and not w.state.terminal)


def restarted(built: QueueTree) -> QueueTree:
    """The same from what a journal's snapshot would hold."""
    again = QueueTree.restore(decode(encode(built.dump())))  # type: ignore[arg-type]
    assert again.dump() == built.dump()
    return again


# ---------------------------------------------------------------- one record


def test_a_hundred_thousand_entries_are_one_event_and_a_window_of_workloads() -> None:
    built = tree()
    events = settle(built, built.submit(array(count=100_000), 1.0))
    assert len(events) == 1
    assert len(encode(events[0])) < 3_000
    assert listed(built) == list(range(WINDOW_LEAST))
    assert progress(built) == ArrayProgress(100_000, listed=WINDOW_LEAST)
    assert built.pending(built.workloads[A].spec.queue) == 100_000
    assert len(encode(built.dump())) < 100_000
    changes = built.changes_since(0)
    assert len(changes.workloads) == 1 + WINDOW_LEAST


def test_the_window_is_as_wide_as_what_runs() -> None:
    built = with_array(array(count=10_000))
    for index in range(100):
        begin(built, f"a.{index}")
    assert listed(built) == list(range(200))


def test_an_entry_is_a_workload_with_its_index_and_its_array_s_place() -> None:
    built = with_array(array(first=5))
    entry = built.workloads[WorkloadId("a.5")]
    assert entry.spec.entry == ArrayEntry(A, 5)
    assert (entry.spec.array, entry.spec.after, entry.spec.name, entry.submitted_s) == (None, (), "a", 1.0)
    assert WorkloadId("a.4") not in built.workloads


@pytest.mark.parametrize("id", ["a.05", "a.-1", "a.100", "a.٣", "a.", "a.1.2", "b.1"])
def test_no_other_id_is_an_entry(id: str) -> None:
    assert with_array(array()).find(WorkloadId(id)) is None


def test_entries_that_are_not_listed_can_be_looked_at_too() -> None:
    built = with_array(array())
    far = built.find(WorkloadId("a.99"))
    assert far is not None
    assert (far.state, far.attempt, far.spec.entry) == (State.PENDING, 0, ArrayEntry(A, 99))


def test_progress_and_the_end_of_the_record_follow_from_the_entries() -> None:
    built = with_array(array(count=3))
    begin(built, "a.0")
    begin(built, "a.1")
    assert progress(built) == ArrayProgress(1, 2, listed=1)
    assert built.workloads[A].started_s == 5.0
    finish(built, "a.0")
    finish(built, "a.1", Move.FAILED, 3)
    settle(built, built.cancel(WorkloadId("a.2"), "not that one", 9.0))
    record = built.workloads[A]
    assert record.progress == ArrayProgress(0, 0, 1, 1, 1)
    assert (record.state, record.ended_s) == (State.FAILED, 9.0)
    assert record.reason == "1 of 3 entries succeeded, 1 failed, 1 were cancelled"


def test_an_array_has_succeeded_when_all_its_entries_have() -> None:
    built = with_array(array(count=2))
    for index in (0, 1):
        begin(built, f"a.{index}")
        finish(built, f"a.{index}")
    assert built.workloads[A].state is State.SUCCEEDED
    assert built.pending(built.workloads[A].spec.queue) == 0


def test_submitting_it_again_is_nothing_new_and_its_entries_ids_are_taken() -> None:
    built = with_array(array())
    assert built.submit(array(), 2.0) == ()
    with pytest.raises(AdmissionError, match=r"a\.7"):
        built.submit(workload("a.7"), 2.0)
    apply(built, built.submit(workload("b.7"), 2.0))
    with pytest.raises(AdmissionError, match=r"b\.7"):
        built.submit(array("b"), 2.0)
    apply(built, built.submit(array("b", first=8), 2.0))


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("array.count", array(count=0)),
        ("array.count", array(count=100_001)),
        ("array.max_running", array(cap=0)),
        ("array.first", array(first=-1)),
        ("array", workload("a", kind=Kind.SERVE, array=ArraySpec(2))),
        ("entry", workload("a", entry=ArrayEntry(WorkloadId("x"), 1))),
    ],
)
def test_nonsense_is_refused_with_the_field(field: str, spec: WorkloadSpec) -> None:
    with pytest.raises(SpecError) as error:
        tree().submit(spec, 1.0)
    assert error.value.field == field


def test_a_queue_counts_the_entries_and_not_the_array() -> None:
    built = tree(queue("q", max_pending=50))
    with pytest.raises(AdmissionError, match="full"):
        built.submit(array(count=51), 1.0)
    apply(built, built.submit(array(count=50), 1.0))
    with pytest.raises(AdmissionError, match="full"):
        built.submit(workload("b"), 1.0)
    begin(built, "a.0")
    apply(built, built.submit(workload("b"), 1.0))


# ---------------------------------------------------------------- the running cap


def entry(array_id: str, index: int, cap: int | None, **state: object) -> Workload:
    made = replace(pending(f"{array_id}.{index}"), **state)  # type: ignore[arg-type]
    return replace(made, spec=replace(made.spec, entry=ArrayEntry(WorkloadId(array_id), index, cap)))


def test_no_plan_starts_more_entries_than_may_run_and_the_lowest_indices_go_first() -> None:
    live, held = running("a.1", ["n1"])
    live = replace(live, spec=replace(live.spec, entry=ArrayEntry(A, 1, 3)))
    waiting = [entry("a", index, 3) for index in (2, 9, 10, 11)]
    made = plan(snapshot([node("n1", 8)], [(live, held), *waiting]), DEFAULT)
    assert sorted(started(made)) == ["a.2", "a.9"]
    assert reasons(made, "a.10") == reasons(made, "a.11") == [WaitReason.ARRAY_LIMIT]


def test_an_entry_that_waits_for_its_back_off_takes_no_other_one_s_place() -> None:
    waiting = [entry("a", 0, 1, not_before_s=1e12, exit_code=1, failures=1), entry("a", 1, 1), entry("a", 2, 1)]
    assert list(started(plan(snapshot([node("n1", 8)], waiting), DEFAULT))) == ["a.1"]


def test_the_owner_refuses_a_start_above_the_cap() -> None:
    built = with_array(array(cap=2))
    assert len(listed(built)) == 2 + BEYOND_CAP
    begin(built, "a.0")
    begin(built, "a.1")
    with pytest.raises(StalePlanError, match="most at a time"):
        begin(built, "a.2")
    finish(built, "a.0")
    begin(built, "a.2")


def test_the_record_itself_never_starts_and_says_how_far_its_entries_are() -> None:
    built = with_array(array(count=40))
    begin(built, "a.0")
    with pytest.raises(StalePlanError, match="array"):
        built.commit_start(Start(A, 1, seats("n1", 1), "fits"), Versions(), 5.0)
    made = plan(snapshot([node("n1", 8)], [built.workloads[A]]), DEFAULT)
    assert started(made) == {}
    (wait,) = made.waits[A]
    assert (wait.reason, wait.detail) == (WaitReason.ARRAY, "of 40 entries 1 run, 39 wait, 0 succeeded")
    assert A not in made.positions


def test_an_array_counts_as_running_for_whoever_asks() -> None:
    built = with_array(array())
    asked = WaitRequest(A, Until.RUNNING, 1.0)
    assert not asked.met(built.workloads[A])
    begin(built, "a.0")
    assert asked.met(built.workloads[A])
    assert WorkloadFilter(states=(State.RUNNING,)).matches(built.workloads[A])


# ---------------------------------------------------------------- cancelling


def test_cancelling_one_entry_leaves_all_others_alone() -> None:
    """Listed or not, and also where its id begins with another one's: cancel a.1, and a.10 goes on."""
    built = with_array(array())
    for index in (1, 10, 11):
        begin(built, f"a.{index}")
    settle(built, built.cancel(WorkloadId("a.1"), "no", 6.0))
    settle(built, built.cancel(WorkloadId("a.99"), "no", 6.0))
    asked = [id for id, w in built.workloads.items() if w.cancel_requested]
    assert asked == ["a.1"]
    gone = built.find(WorkloadId("a.99"))
    assert gone is not None
    assert gone.state is State.CANCELLED
    assert progress(built).cancelled == 1
    assert built.cancel(WorkloadId("a.99"), "again", 7.0) == ()


def test_cancelling_the_array_ends_what_waits_and_stops_what_runs() -> None:
    built = with_array(array(count=100_000))
    begin(built, "a.3")
    events = settle(built, built.cancel(A, "wrong data", 6.0))
    assert len(events) <= 2 + WINDOW_LEAST, "one for the array, and one for each that is listed"
    assert listed(built) == [3]
    assert progress(built) == ArrayProgress(0, 1, cancelled=99_999)
    assert built.workloads[WorkloadId("a.3")].cancel_requested
    assert built.cancel(A, "again", 7.0) == ()
    finish(built, "a.3", Move.CANCELLED, cause=StopCause.CANCELLED)
    record = built.workloads[A]
    assert (record.state, "wrong data" in record.reason) == (State.CANCELLED, True)


# ---------------------------------------------------------------- forgetting


def test_ended_entries_are_forgotten_soon_but_not_by_their_array() -> None:
    built = with_array(array(count=3_000))
    for index in range(2_000):
        begin(built, f"a.{index}")
        finish(built, f"a.{index}", Move.FAILED if index == 7 else Move.SUCCEEDED, 3 if index == 7 else 0)
    version = built.version
    settle(built, built.forget_ended(9.0 + 61.0, Retention()))
    assert sum(w.state.terminal for w in built.workloads.values()) == 1_000
    changes = built.changes_since(version)
    assert (changes.forgotten, len(changes.folded), changes.full) == ((), 1_000, False)
    built = restarted(built)
    seventh = built.find(WorkloadId("a.7"))
    assert seventh is not None
    assert (seventh.state, seventh.exit_code, seventh.attempt) == (State.FAILED, 3, 1)
    rows = built.entries(A, 5, 4)
    assert [(row.index, row.state, row.exit_code) for row in rows] == [
        (5, State.SUCCEEDED, 0),
        (6, State.SUCCEEDED, 0),
        (7, State.FAILED, 3),
        (8, State.SUCCEEDED, 0),
    ]


def test_a_forgotten_array_takes_its_entries_with_it() -> None:
    built = with_array(array(count=2))
    for index in (0, 1):
        begin(built, f"a.{index}")
        finish(built, f"a.{index}")
    version = built.version
    settle(built, built.forget_ended(9.0 + 1e6, Retention()))
    assert dict(built.workloads) == {}
    assert set(built.changes_since(version).forgotten) == {"a", "a.0", "a.1"}
    assert built.find(WorkloadId("a.0")) is None
    assert entry_ids(A, ArraySpec(2, first=4)) == ("a.4", "a.5")


# ---------------------------------------------------------------- dependencies


def after(kind: After, other: str = "a") -> tuple[Dependency, ...]:
    return (Dependency(kind, WorkloadId(other)),)


def test_an_array_that_waits_for_another_workload_lists_nothing_yet() -> None:
    built = tree(waiting=[workload("prep")])
    settle(built, built.submit(array(after=after(After.OK, "prep")), 1.0))
    assert listed(built) == []
    begin(built, "prep")
    finish(built, "prep")
    assert len(listed(built)) == WINDOW_LEAST
    doomed = tree(waiting=[workload("prep")])
    settle(doomed, doomed.submit(array(after=after(After.OK, "prep")), 1.0))
    settle(doomed, doomed.cancel(WorkloadId("prep"), "no", 2.0))
    assert (doomed.workloads[A].state, progress(doomed).cancelled) == (State.CANCELLED, 100)


def test_a_workload_behind_an_array_waits_for_all_entries_and_ends_at_the_first_that_fails() -> None:
    built = with_array(array(count=2))
    settle(built, built.submit(workload("b", after=after(After.OK)), 1.0))
    settle(built, built.submit(workload("c", after=after(After.ANY)), 1.0))
    settle(built, built.submit(workload("d", after=after(After.STARTED)), 1.0))
    begin(built, "a.0")
    assert built.workloads[WorkloadId("d")].unmet
    begin(built, "a.1")
    assert not built.workloads[WorkloadId("d")].unmet
    finish(built, "a.0", Move.FAILED, 1)
    assert built.workloads[WorkloadId("b")].state is State.CANCELLED
    assert built.workloads[WorkloadId("c")].unmet
    finish(built, "a.1")
    assert not built.workloads[WorkloadId("c")].unmet


def test_a_workload_may_wait_for_one_entry() -> None:
    built = with_array(array())
    settle(built, built.submit(workload("b", after=after(After.OK, "a.2")), 1.0))
    begin(built, "a.2")
    finish(built, "a.2")
    assert not built.workloads[WorkloadId("b")].unmet


def test_corresponding_entries_go_one_by_one() -> None:
    built = with_array(array(count=5))
    settle(built, built.submit(array("b", count=3, first=1, after=after(After.CORRESPONDING)), 1.0))
    settle(built, built.submit(array("c", count=1, first=2, after=after(After.CORRESPONDING, "b")), 1.0))
    assert [w.id for w in built.workloads.values() if w.spec.entry and w.spec.entry.array == "b"] == []
    for index, move in ((3, Move.SUCCEEDED), (2, Move.FAILED)):
        begin(built, f"a.{index}")
        finish(built, f"a.{index}", move, 1)
        built = restarted(built)
    assert WorkloadId("b.3") in built.workloads
    assert progress(built, WorkloadId("b")) == ArrayProgress(2, cancelled=1, listed=1)
    assert built.workloads[WorkloadId("c")].state is State.CANCELLED, (
        "what corresponds to what doesn't run doesn't either"
    )
    settle(built, built.cancel(WorkloadId("a.1"), "no", 6.0))
    assert progress(built, WorkloadId("b")).cancelled == 2


def test_corresponding_needs_an_array_that_covers_it() -> None:
    built = with_array(array(count=5))
    for spec in (array("b", count=6, after=after(After.CORRESPONDING)),):
        with pytest.raises(AdmissionError, match="no entries 0 to 5"):
            built.submit(spec, 1.0)
    apply(built, built.submit(workload("x"), 1.0))
    with pytest.raises(AdmissionError, match="none"):
        built.submit(array("b", after=after(After.CORRESPONDING, "x")), 1.0)


# ---------------------------------------------------------------- random lives

ENDS = {Move.SUCCEEDED: State.SUCCEEDED, Move.FAILED: State.FAILED, Move.REQUEUED: State.PENDING}
CHOICES = ("begin", "begin", "finish", "finish", "cancel one", "cancel all", "restart")


@settings(max_examples=60, deadline=None)
@given(data=st.data(), count=st.integers(1, 60), cap=st.none() | st.integers(1, 5))
def test_random_lives_agree_with_a_plain_list_of_states(data: st.DataObject, count: int, cap: int | None) -> None:
    """A naive array is a list of states. Restarts in between, and a journal of the events gives the same tree."""
    built = with_array(array(count=count, cap=cap, first=data.draw(st.integers(0, 3))))
    first = built.workloads[A].spec.array.first  # type: ignore[union-attr]
    naive = dict.fromkeys(range(first, first + count), State.PENDING)
    for _ in range(data.draw(st.integers(1, 40))):
        open_ones = listed(built)
        choice = data.draw(
            st.sampled_from(("begin", "begin", "finish", "finish", "cancel one", "cancel all", "restart"))
        )
        live = [i for i in open_ones if naive[i] is State.RUNNING]
        fresh = [i for i in open_ones if naive[i] is State.PENDING]
        if choice == "begin" and fresh and (cap is None or len(live) < cap):
            index = data.draw(st.sampled_from(fresh))
            begin(built, f"a.{index}")
            naive[index] = State.RUNNING
        elif choice == "finish" and live:
            index, move = data.draw(st.sampled_from(live)), data.draw(st.sampled_from(tuple(ENDS)))
            cancelled = built.workloads[WorkloadId(f"a.{index}")].cancel_requested
            finish(built, f"a.{index}", move, int(move is not Move.SUCCEEDED))
            after_move = {Move.SUCCEEDED: State.SUCCEEDED, Move.FAILED: State.FAILED, Move.REQUEUED: State.PENDING}[
                move
            ]
            naive[index] = State.CANCELLED if cancelled and move is Move.REQUEUED else after_move
        elif choice.startswith("cancel"):
            chosen = [data.draw(st.sampled_from(sorted(naive)))] if choice == "cancel one" else sorted(naive)
            settle(built, built.cancel(WorkloadId(f"a.{chosen[0]}") if choice == "cancel one" else A, "no", 6.0))
            naive |= {i: State.CANCELLED for i in chosen if naive[i] is State.PENDING}
        elif choice == "restart":
            built = restarted(built)
        check(built, naive, cap)


def check(built: QueueTree, naive: dict[int, State], cap: int | None) -> None:
    counts = Counter(naive.values())
    found = progress(built)
    assert (found.waiting, found.running) == (counts[State.PENDING], counts[State.RUNNING])
    ended = (counts[State.SUCCEEDED], counts[State.FAILED], counts[State.CANCELLED])
    assert (found.succeeded, found.failed, found.cancelled) == ended
    assert built.workloads[A].state.terminal == (sum(ended) == len(naive))
    for index, state in naive.items():
        seen = built.find(WorkloadId(f"a.{index}"))
        assert seen is not None
        assert seen.state is state
    assert built.pending(built.workloads[A].spec.queue) == counts[State.PENDING]
    waiting = counts[State.PENDING]
    assert not waiting or listed(built) or built.workloads[A].cancel_requested, "nobody would ever look at them"
    if cap is not None:
        assert found.running <= cap


def test_a_replay_gives_the_same_tree_also_under_another_window() -> None:
    """A release with a wider window wrote events about entries that this one would not have listed yet."""
    built = with_array(array(count=500))
    apply(built, [Started(WorkloadId("a.400"), 1, seats("n1", 1), 0, 0, 0, "fits", 5.0)])
    assert progress(built).running == 1
    assert built.workloads[WorkloadId("a.400")].state is State.RUNNING
    finish(built, "a.400")
    assert progress(built).succeeded == 1
