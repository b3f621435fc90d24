"""Dependencies: each kind met, open or never; what can't be met any more is cancelled with the reason, at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayorch.core.codec import decode, encode
from rayorch.core.decisions import Start, WaitReason
from rayorch.core.errors import AdmissionError, SpecError, StalePlanError
from rayorch.core.events import AttemptEnded, Event
from rayorch.core.lifecycle import Move
from rayorch.core.planner import plan
from rayorch.core.queues import QueueTree
from rayorch.core.snapshot import Versions
from rayorch.core.timing import After, Dependency
from rayorch.core.types import State, Workload, WorkloadId, WorkloadSpec
from rayorch.policies.default import DEFAULT
from tests.build import apply, seats, tree, workload
from tests.scenes import node, pending, reasons, snapshot, started

A, B, C = WorkloadId("a"), WorkloadId("b"), WorkloadId("c")


def settle(built: QueueTree, events: tuple[Event, ...], now_s: float = 10.0) -> None:
    apply(built, events)
    while more := built.due(now_s):
        apply(built, more)


def submit(built: QueueTree, spec: WorkloadSpec, now_s: float = 1.0) -> None:
    settle(built, built.submit(spec, now_s), now_s)


def after(kind: After, other: str | None = "a") -> tuple[Dependency, ...]:
    return (Dependency(kind, WorkloadId(other) if other else None),)


def begin(built: QueueTree, id: WorkloadId = A, now_s: float = 5.0) -> None:
    start = Start(id, built.workloads[id].attempt + 1, seats("n1", 1), "fits")
    settle(built, built.commit_start(start, Versions(), now_s), now_s)


def finish(built: QueueTree, move: Move, id: WorkloadId = A, now_s: float = 9.0) -> None:
    attempt = built.workloads[id].attempt
    settle(built, built.end_attempt(AttemptEnded(id, attempt, move, None, 0, "over", 0.0, now_s)), now_s)


def dependent_on(kind: After) -> QueueTree:
    built = tree(waiting=[workload("a")])
    submit(built, workload("b", after=after(kind)))
    return built


def unmet(built: QueueTree, id: WorkloadId = B) -> bool:
    return bool(built.workloads[id].unmet)


@pytest.mark.parametrize(
    ("kind", "at_submission", "once_running", "succeeded", "failed"),
    [
        (After.STARTED, False, True, True, True),
        (After.OK, False, False, True, None),
        (After.ANY, False, False, True, True),
        (After.NOT_OK, False, False, None, True),
    ],
)
def test_each_kind(
    kind: After, at_submission: bool, once_running: bool, succeeded: bool | None, failed: bool | None
) -> None:
    built = dependent_on(kind)
    assert unmet(built) is not at_submission
    begin(built)
    assert unmet(built) is not once_running
    for move, outcome in ((Move.SUCCEEDED, succeeded), (Move.FAILED, failed)):
        ended = QueueTree.restore(built.dump())  # the same, from what a journal would hold
        finish(ended, move)
        state = ended.workloads[B].state
        assert (state, unmet(ended)) == ((State.CANCELLED, True) if outcome is None else (State.PENDING, False))
        if outcome is None:
            assert f"{kind.value}:a can't be met any more" in ended.workloads[B].reason


def test_cancelling_one_ends_the_whole_chain_behind_it_and_names_each_cause() -> None:
    built = tree(waiting=[workload("a")])
    submit(built, workload("b", after=after(After.OK)))
    submit(built, workload("c", after=after(After.OK, "b")))
    settle(built, built.cancel(A, "wrong data", 5.0))
    assert [built.workloads[id].state for id in (A, B, C)] == [State.CANCELLED] * 3
    assert "afterok:b" in built.workloads[C].reason
    assert built.due(6.0) == ()


def test_all_of_several_must_be_met() -> None:
    built = tree(waiting=[workload("a"), workload("x")])
    submit(built, workload("b", after=(*after(After.OK), *after(After.ANY, "x"))))
    begin(built)
    finish(built, Move.SUCCEEDED)
    assert built.workloads[B].unmet == after(After.ANY, "x")
    settle(built, built.cancel(WorkloadId("x"), "no more", 9.0))
    assert not unmet(built)


def test_a_requeue_of_the_other_one_neither_meets_nor_breaks_anything() -> None:
    built = dependent_on(After.OK)
    begin(built)
    finish(built, Move.REQUEUED)
    assert unmet(built)
    assert built.due(20.0) == ()


def test_what_is_submitted_behind_one_that_has_ended_is_judged_at_once() -> None:
    built = tree(waiting=[workload("a")])
    begin(built)
    finish(built, Move.FAILED)
    submit(built, workload("b", after=after(After.NOT_OK)))
    submit(built, workload("c", after=after(After.OK)))
    assert (built.workloads[B].state, unmet(built)) == (State.PENDING, False)
    assert built.workloads[C].state is State.CANCELLED


def test_an_unknown_one_is_refused_and_so_is_nonsense() -> None:
    built = tree()
    with pytest.raises(AdmissionError, match="after"):
        built.submit(workload("b", after=after(After.OK, "nobody")), 1.0)
    for wrong in (after(After.OK, None), after(After.SINGLETON, "a"), after(After.OK, "b"), after(After.CORRESPONDING)):
        with pytest.raises(SpecError, match="after"):
            built.submit(workload("b", after=wrong), 1.0)


def test_the_owner_refuses_a_start_before_a_dependency_is_met() -> None:
    built = dependent_on(After.ANY)
    with pytest.raises(StalePlanError, match="a has not ended"):
        built.commit_start(Start(B, 1, seats("n1", 1), "fits"), Versions(), 5.0)


def test_singletons_of_one_name_and_owner_run_one_after_the_other_in_the_order_of_submission() -> None:
    built = tree()
    for id in ("z", "y", "x"):  # all in one moment, and not in the order of their ids
        submit(built, replace(workload(id, after=after(After.SINGLETON, None)), name="nightly"), 1.0)
    submit(built, replace(workload("w", after=after(After.SINGLETON, None)), name="nightly", owner="other"), 1.0)
    built = QueueTree.restore(built.dump())
    free = [id for id in ("z", "y", "x", "w") if not unmet(built, WorkloadId(id))]
    assert free == ["z", "w"]
    settle(built, built.cancel(WorkloadId("y"), "not needed", 5.0))
    assert unmet(built, WorkloadId("x")), "z has not ended"
    begin(built, WorkloadId("z"))
    finish(built, Move.FAILED, WorkloadId("z"))
    assert not unmet(built, WorkloadId("x"))


def test_a_waiting_dependent_says_for_whom_it_waits_and_holds_up_nobody() -> None:
    held_back = replace(pending("b", 4), unmet=after(After.OK, "prep"))
    made = plan(snapshot([node("n1")], [held_back, pending("c", 4, 1.0)]), DEFAULT)
    assert started(made) == {"c": ["n1"] * 4}
    assert reasons(made, "b") == [WaitReason.DEPENDENCY]
    (wait,) = made.waits[B]
    assert (wait.blockers, "prep has not succeeded" in wait.detail) == ((WorkloadId("prep"),), True)


# ---------------------------------------------------------------- random graphs

KINDS = (After.STARTED, After.OK, After.ANY, After.NOT_OK)


@given(st.data())
def test_random_graphs_agree_with_a_naive_look_at_all_states_and_survive_restarts(data: st.DataObject) -> None:
    """Open means open by the definition, nobody runs too early, and nothing waits for the impossible."""
    built = tree()
    ids: list[str] = []
    for _ in range(data.draw(st.integers(2, 25))):
        choice = data.draw(st.sampled_from(("submit", "submit", "begin", "finish", "cancel", "restart")))
        alive = [id for id in ids if not built.workloads[WorkloadId(id)].state.terminal]
        if choice == "submit":
            others = data.draw(st.lists(st.sampled_from(ids), max_size=3, unique=True)) if ids else []
            kinds = [data.draw(st.sampled_from(KINDS)) for _ in others]
            wanted = tuple(Dependency(k, WorkloadId(o)) for k, o in zip(kinds, others, strict=True))
            ids.append(f"w{len(ids)}")
            submit(built, workload(ids[-1], after=wanted))
        elif choice == "restart":
            built = QueueTree.restore(decode(encode(built.dump())))  # type: ignore[arg-type]
        elif alive:
            id = WorkloadId(data.draw(st.sampled_from(alive)))
            now = built.workloads[id]
            if choice == "cancel":
                settle(built, built.cancel(id, "no", 5.0))
            elif choice == "begin" and now.state is State.PENDING and not now.unmet:
                begin(built, id)
            elif choice == "finish" and now.state is State.RUNNING:
                finish(built, data.draw(st.sampled_from((Move.SUCCEEDED, Move.FAILED, Move.REQUEUED))), id)
        for workload_ in built.workloads.values():
            check_against_definition(workload_, built)


def check_against_definition(workload_: Workload, built: QueueTree) -> None:
    def state(dependency: Dependency) -> State:
        assert dependency.workload is not None
        return built.workloads[dependency.workload].state

    def is_met(d: Dependency) -> bool:
        other = built.workloads[d.workload] if d.workload else None
        assert other is not None
        begun = other.attempt > 0 or other.state.terminal
        over = other.state.terminal
        good = other.state is State.SUCCEEDED
        return {After.STARTED: begun, After.OK: good, After.ANY: over, After.NOT_OK: over and not good}[d.kind]

    if workload_.state is State.PENDING:
        assert set(workload_.unmet) == {d for d in workload_.spec.after if not is_met(d)}
        for d in workload_.unmet:
            assert not state(d).terminal, "it waits for what can't come any more"
    if workload_.attempt:
        assert all(is_met(d) for d in workload_.spec.after)
