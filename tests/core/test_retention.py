"""Ended workloads are forgotten in the end: in the tree, at replay and by every reader alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.core.codec import decode, encode
from rayorch.core.errors import AdmissionError, TransitionError
from rayorch.core.events import Event, Forgotten
from rayorch.core.queues import QueueTree
from rayorch.core.retention import Retention, to_forget
from rayorch.core.types import State, Workload, WorkloadId
from tests.build import apply, tree, workload

KEEP_TWO = Retention(count=2, least_s=10.0, most_s=1_000.0)


def ended(id: str, at_s: float) -> Workload:
    return Workload(workload(id), State.SUCCEEDED, 0.0, ended_s=at_s)


def with_ended(*ids: str) -> QueueTree:
    """Workloads that were cancelled at 1, 2, … and one that waits."""
    built = tree(waiting=[workload(id) for id in (*ids, "waits")])
    for at_s, id in enumerate(ids, start=1):
        apply(built, built.cancel(WorkloadId(id), "enough", float(at_s)))
    return built


def test_the_newest_are_kept_the_young_are_kept_and_the_old_are_not() -> None:
    works = [ended(id, at_s) for id, at_s in (("a", 1.0), ("b", 2.0), ("c", 3.0), ("d", 4.0))]
    live = Workload(workload("live"), State.PENDING, 0.0)
    assert to_forget([*works, live], 11.5, KEEP_TWO) == ("a",)
    assert to_forget([*works, live], 100.0, KEEP_TWO) == ("a", "b")
    assert to_forget([*works, live], 1_003.5, KEEP_TWO) == ("a", "b", "c")


def test_a_forgotten_workload_is_gone_everywhere_and_its_id_is_free() -> None:
    built = with_ended("a", "b", "c")
    with pytest.raises(AdmissionError, match="id"):
        built.submit(workload("a", 2), 5.0)
    seen = built.version
    assert apply(built, built.forget_ended(100.0, KEEP_TWO)) == (Forgotten((WorkloadId("a"),), 100.0),)
    assert sorted(built.workloads) == ["b", "c", "waits"]
    assert built.forget_ended(100.0, KEEP_TWO) == ()
    changes = built.changes_since(seen)
    assert (changes.full, changes.workloads, changes.forgotten) == (False, (), ("a",))
    assert apply(built, built.submit(workload("a", 2), 101.0))
    changes = built.changes_since(seen)
    assert ([w.id for w in changes.workloads], changes.forgotten) == (["a"], ())


def test_replay_forgets_the_same_and_a_reader_from_before_the_snapshot_gets_everything() -> None:
    built = with_ended("a", "b", "c")
    before = built.version
    state, events = built.dump(), built.forget_ended(100.0, KEEP_TWO)
    apply(built, events)
    again = QueueTree.restore(decode(encode(state)))  # type: ignore[arg-type]
    for event in events:
        copied = decode(encode(event))
        assert isinstance(copied, Event) and copied == event
        again.apply(copied)
    assert again.dump() == built.dump()
    assert again.changes_since(before).forgotten == ("a",)
    assert QueueTree.restore(built.dump()).changes_since(before).full
    assert not QueueTree.restore(built.dump()).changes_since(built.version).full
    assert QueueTree.restore(built.dump()).changes_since(built.version).workloads == ()


def test_what_has_not_ended_can_not_be_forgotten() -> None:
    built = with_ended("a")
    with pytest.raises(TransitionError, match="waits"):
        built.apply(Forgotten((WorkloadId("waits"),), 1.0))
    assert built.forget_ended(5.0, replace(KEEP_TWO, count=0)) == ()
