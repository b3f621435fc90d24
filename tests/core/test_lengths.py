"""Who is short enough: found by classes and by what is expected, as if everybody had been asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from rayorch.core.decisions import Start
from rayorch.core.forecast import Forecast, Seen
from rayorch.core.history import MAX_SAMPLES, History, Sample, ServiceClass, classes_of
from rayorch.core.planner import plan
from rayorch.core.planning.draft import Draft
from rayorch.core.planning.lengths import Lengths
from rayorch.core.planning.timeline import Timeline
from rayorch.core.snapshot import Snapshot
from rayorch.core.types import Kind, Workload, WorkloadId
from rayorch.policies.default import DEFAULT
from tests.core.test_planner_memory import parts
from tests.scenes import NOW, node, pending, queue, running, snapshot

lengths_s = st.sampled_from((10.0, 20.0, 45.0, 180.0))
maybe = st.one_of(st.none(), lengths_s)


@st.composite
def waiting(draw: st.DrawFn) -> list[Workload]:
    """Work of a few owners and queues of which more or less is known."""
    found = []
    for n in range(draw(st.integers(2, 20))):
        asked: dict[str, Any] = {
            "gpu": draw(st.sampled_from((1, 1, 2))),
            "queue": draw(st.sampled_from("qqqr")),
            "owner": draw(st.sampled_from(("ann", "bob"))),
            "name": draw(st.sampled_from(("a", "b"))),
            "priority": draw(st.sampled_from((0, 0, 1))),
            "expected_s": draw(maybe),
            "wall_limit_s": draw(maybe),
            "total_steps": draw(st.sampled_from((None, None, 100))),
            "grace_s": draw(st.sampled_from((0.0, 30.0))),
        }
        kind = Kind.SERVE if draw(st.integers(0, 9)) == 0 else Kind.TRAIN
        made = pending(f"w{n:02}", draw(st.sampled_from((1, 1, 2))), float(n + 1), kind=kind, **asked)
        state = {"progress_s": draw(st.sampled_from((0.0, 0.0, 30.0))), "step": draw(st.sampled_from((0, 0, 40)))}
        found.append(replace(made, ran_s=draw(st.sampled_from((0.0, 25.0))), **state))
    return found


@st.composite
def pasts(draw: st.DrawFn, work: list[Workload]) -> History:
    """Some of their classes with samples."""
    names = sorted({name for workload in work for name in classes_of(workload.spec)})
    classes = {}
    for name in draw(st.lists(st.sampled_from(names), max_size=6, unique=True)) if names else ():
        runs = draw(st.lists(st.integers(1, 200), min_size=1, max_size=8)) * draw(st.sampled_from((1, 3, 4)))
        classes[name] = ServiceClass(name, NOW, tuple(Sample(float(run), 1.0) for run in runs))
    return History(classes=classes)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_nobody_is_missed_and_a_length_that_is_told_is_right(data: st.DataObject) -> None:
    work = data.draw(waiting())
    history = data.draw(pasts(work))
    lengths = Lengths(Seen())
    for workload in work:
        lengths.put(workload)
    gone = data.draw(st.sets(st.sampled_from([w.id for w in work])))
    for id in sorted(gone):
        lengths.drop(id)
    seen = replace(snapshot([node("n", 4)], work), history=history)
    timeline = Timeline(Draft.of(seen, DEFAULT))
    most_s = data.draw(lengths_s)
    found = lengths.within(timeline.forecast, most_s)
    assert found.keys() <= {w.id for w in work} - gone
    for workload in work:
        length_s = timeline.longest_s(workload)
        if workload.id in found:
            known_s = found[workload.id]
            event("told" if known_s is not None else "to be asked")
            assert known_s is None or known_s == length_s
        elif workload.id not in gone:
            assert length_s is None or length_s > most_s


def _everybody(self: Lengths, forecast: Forecast, most_s: float) -> dict[WorkloadId, float | None]:
    return dict.fromkeys(self._where)


def _seen(work: list[Workload], history: History, free: int) -> Snapshot:
    nodes = [node(f"n{n}", 4) for n in range(4)]
    busy = [running(f"b{n}", [f"n{n}"], started_s=NOW - 10, gpu=4 - free, expected_s=50.0 + 20 * n) for n in range(4)]
    head = pending("head", 3, gpu=4, priority=2)
    return replace(snapshot(nodes, [*busy, head, *work], [queue("q"), queue("r")]), history=history)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_backfill_starts_the_same_as_if_everybody_were_looked_at(data: st.DataObject) -> None:
    work = data.draw(waiting())
    seen = _seen(work, data.draw(pasts(work)), data.draw(st.integers(1, 3)))
    knobs = replace(DEFAULT.backfill, most_looks=data.draw(st.sampled_from((4, 2_000, 2_000))), most_tries=3)
    profile = replace(DEFAULT, backfill=knobs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lengths, "within", _everybody)
        thorough = plan(seen, profile)
        expected = parts(thorough)
    made = plan(seen, profile)
    assert parts(made) == expected
    event(f"filled: {any(isinstance(d, Start) and d.ends_s is not None for d in made.decisions)}")


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), max_size=8), st.integers(1, 4))
def test_samples_stay_in_order_however_they_come(news: list[list[int]], room: int) -> None:
    seen, samples = Seen(), tuple[Sample, ...]()
    for runs in news:
        samples = (*samples, *(Sample(float(run), 0.0) for run in runs))[-room:]
        assert seen.runs_s(ServiceClass("c", NOW, samples)) == sorted(sample.run_s for sample in samples)


def test_a_full_class_moves_on_by_one_sample() -> None:
    """The oldest goes: what is in order afterwards is what is there, nothing of it twice."""
    seen = Seen()
    entry = ServiceClass("c", NOW, tuple(Sample(float(n % 7), 0.0) for n in range(MAX_SAMPLES)))
    before = seen.runs_s(entry)
    entry = ServiceClass("c", NOW, (Sample(3.5, 0.0),)).after(entry)
    assert seen.runs_s(entry) is before
    assert before == sorted(sample.run_s for sample in entry.samples)
