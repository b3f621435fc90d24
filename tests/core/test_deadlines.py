"""Deadlines: refused early, kept where they can be, given up when they can't be any more."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayorch.config import load_documents
from rayorch.core.admission import NodeShape
from rayorch.core.deadlines import Deadlines
from rayorch.core.decisions import Start
from rayorch.core.errors import AdmissionError, SpecError
from rayorch.core.queues import QueueTree
from rayorch.core.snapshot import Versions
from rayorch.core.types import State, Workload, WorkloadId, WorkloadSpec
from tests.build import apply, gpus, queue, seats, tree, workload

NOW = 1000.0


def _tree(gpu: int = 8) -> QueueTree:
    owner = tree(queue("q"), now_s=NOW)
    owner.set_capacity((NodeShape(gpus(gpu, 64), 1),))
    return owner


def _submit(owner: QueueTree, id: str, deadline_s: float, expected_s: float | None = None, members: int = 1) -> None:
    apply(owner, owner.submit(workload(id, members, deadline_s=deadline_s, expected_s=expected_s), NOW))


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (workload("a", deadline_s=NOW), "has passed"),
        (workload("a", deadline_s=NOW + 10, expected_s=11.0), "expected to take 11 s, 10 s are left"),
        (workload("a", deadline_s=NOW + 100, expected_s=60.0, begin_s=NOW + 50), "60 s, 50 s are left"),
    ],
)
def test_what_can_not_make_it_is_refused_at_the_door(spec: WorkloadSpec, why: str) -> None:
    with pytest.raises(AdmissionError, match=why) as caught:
        _tree().submit(spec, NOW)
    assert caught.value.field == "deadline_s"


def test_what_just_makes_it_is_accepted_also_without_an_expectation() -> None:
    _submit(_tree(), "a", NOW + 10, 10.0)
    _submit(_tree(), "b", NOW + 10)


def test_more_work_than_the_gpus_can_do_by_a_deadline_is_refused_with_the_numbers() -> None:
    owner = _tree(gpu=8)
    _submit(owner, "a", NOW + 100, 100.0, members=6)  # 600 of 800 GPU-seconds
    with pytest.raises(AdmissionError, match=r"needs 300 GPU-seconds and others .* 600 in the next 100 s, .* most 800"):
        _submit(owner, "b", NOW + 100, 100.0, members=3)
    _submit(owner, "b", NOW + 100, 100.0, members=2)
    _submit(owner, "c", NOW + 200, 100.0, members=8)


def test_work_with_an_earlier_deadline_must_leave_the_later_ones_theirs() -> None:
    owner = _tree(gpu=8)
    _submit(owner, "late", NOW + 100, 100.0, members=8)
    with pytest.raises(AdmissionError, match="in the next 100 s"):
        _submit(owner, "early", NOW + 50, 10.0)


def test_work_without_gpus_and_clusters_of_unknown_size_are_not_counted() -> None:
    owner = tree(queue("q"), now_s=NOW)
    _submit(owner, "a", NOW + 100, 100.0, members=1000)
    _submit(owner, "b", NOW + 100, 100.0, members=1000)


def test_what_waits_past_its_last_chance_is_cancelled_with_the_reason() -> None:
    owner = _tree()
    _submit(owner, "a", NOW + 100, 60.0)
    assert owner.due(NOW + 40) == ()
    (event,) = apply(owner, owner.due(NOW + 41))
    assert owner.workloads[WorkloadId("a")].state is State.CANCELLED
    assert "60 s of work are left, 59 s of time" in event.reason  # type: ignore[union-attr]
    assert owner.due(NOW + 500) == ()


def test_what_runs_is_not_stopped_and_a_requeued_one_keeps_what_it_saved() -> None:
    owner = _tree()
    _submit(owner, "a", NOW + 100, 60.0)
    start = Start(WorkloadId("a"), 1, seats("n1", 1), "")
    apply(owner, owner.commit_start(start, Versions(), NOW))
    assert owner.due(NOW + 1000) == ()
    deadlines = Deadlines()
    waiting = Workload(workload("w", deadline_s=NOW + 100, expected_s=60.0), State.PENDING, NOW, progress_s=50.0)
    deadlines.put(waiting)
    assert deadlines.missed(NOW + 90) == {} and list(deadlines.missed(NOW + 91)) == ["w"]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20), st.integers(1, 4)), max_size=8))
def test_all_that_was_accepted_can_be_done_in_time_if_it_is_divided_at_will(jobs: list[tuple[int, int, int]]) -> None:
    owner, accepted = _tree(gpu=4), []
    for n, (deadline, takes, members) in enumerate(jobs):
        try:
            _submit(owner, f"w{n}", NOW + deadline, float(takes), members)
            accepted.append((deadline, takes * members))
        except AdmissionError:
            behind = [(d, w) for d, w in accepted if d <= deadline]
            later = [
                sum(w for d, w in accepted if d <= at) + takes * members > 4 * at for at, _ in accepted if at > deadline
            ]
            full = sum(w for _, w in behind) + takes * members > 4 * deadline
            assert takes > deadline or full or any(later), "nothing is refused that would fit"
    for deadline, _ in accepted:
        assert sum(work for at, work in accepted if at <= deadline) <= 4 * deadline


def test_deadline_and_steps_are_settable_in_a_document() -> None:
    text = (
        "apiVersion: rayorch/v1\nkind: Workload\nmetadata: {name: w, queue: q}\n"
        "spec: {kind: train, entrypoint: python x.py, gang: {workers: 1, resources: {GPU: 1}},"
        " deadline: '2026-12-01T09:00:00+01:00', expected: 2h, totalSteps: 500}\n"
    )
    (document,) = load_documents(text)
    spec = document.to_core()
    assert isinstance(spec, WorkloadSpec)
    assert (spec.deadline_s, spec.expected_s, spec.total_steps) == (1796112000.0, 7200.0, 500)


@pytest.mark.parametrize("steps", [0, -1, 1.5, True, "9"])
def test_steps_that_are_no_count_are_refused(steps: object) -> None:
    with pytest.raises(SpecError) as caught:
        _tree().submit(workload("a", total_steps=steps), NOW)
    assert caught.value.field == "total_steps"
