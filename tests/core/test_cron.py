"""Crons: which moments become submissions, what missed and overlapping ones do, and that none runs twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayorch.core.codec import decode, encode
from rayorch.core.cron import MOST_MADE_UP, Concurrency, Cron, CronSpec, Missed, Moment, chosen
from rayorch.core.errors import AdmissionError, SpecError
from rayorch.core.events import CronLooked, Event
from rayorch.core.queues import QueueTree
from rayorch.core.timing import ArraySpec
from rayorch.core.types import Kind, QueueId, State, WorkloadId
from tests.build import apply, queue, tree, workload

HOUR = 3600.0
TEMPLATE = workload("nightly", kind=Kind.JOB)


def cron(**asked: object) -> CronSpec:
    return replace(CronSpec("nightly", "0 * * * *", TEMPLATE), **asked)  # type: ignore[arg-type]


def at(*hours: float) -> tuple[Moment, ...]:
    return tuple(Moment(hour * HOUR, f"h{hour:g}") for hour in hours)


def kept(spec: CronSpec, now_s: float = 0.0) -> QueueTree:
    built = tree()
    apply(built, built.set_cron(spec, now_s))
    return built


def look(built: QueueTree, moments: tuple[Moment, ...], now_s: float) -> list[str]:
    """As the owner's shell does: until nothing follows. Answers with what was submitted."""
    done: list[Event] = []
    while events := built.look_at_cron("nightly", moments, now_s):
        done += apply(built, events)
    return [e.workload for e in done if isinstance(e, CronLooked) and e.workload is not None]


def end(built: QueueTree, id: str) -> None:
    apply(built, built.cancel(WorkloadId(id), "done", 0.0))


# ---------------------------------------------------------------- one moment after the other


def test_a_moment_becomes_a_workload_that_is_named_after_it_and_is_over_with() -> None:
    built = kept(cron())
    assert look(built, at(1), HOUR) == ["nightly-h1"]
    assert built.workloads[WorkloadId("nightly-h1")].spec == replace(TEMPLATE, id=WorkloadId("nightly-h1"))
    assert look(built, at(1), HOUR + 5) == [], "told again, also by one that remembers less"
    known = built.crons["nightly"]
    assert (known.submitted, known.last, known.last_s, known.looked_s) == (1, "nightly-h1", HOUR, HOUR)


def test_moments_before_it_was_set_are_none_of_its() -> None:
    assert look(kept(cron(), now_s=10 * HOUR), at(9, 10), 10 * HOUR) == []


@pytest.mark.parametrize(
    ("concurrency", "submitted", "first", "skipped"),
    [
        (Concurrency.ALLOW, ["nightly-h2"], State.PENDING, 0),
        (Concurrency.FORBID, [], State.PENDING, 1),
        (Concurrency.REPLACE, ["nightly-h2"], State.CANCELLED, 0),
    ],
)
def test_work_that_has_not_ended_runs_beside_keeps_out_or_gives_way(
    concurrency: Concurrency, submitted: list[str], first: State, skipped: int
) -> None:
    built = kept(cron(concurrency=concurrency))
    look(built, at(1), HOUR)
    assert look(built, at(2), 2 * HOUR) == submitted
    assert built.workloads[WorkloadId("nightly-h1")].state is first
    assert built.crons["nightly"].skipped == skipped
    if skipped:
        assert "nightly-h1 has not ended" in built.crons["nightly"].note
        end(built, "nightly-h1")
        assert look(built, at(3), 3 * HOUR) == ["nightly-h3"]


def test_a_suspended_one_lets_its_moments_pass_and_makes_up_for_none() -> None:
    built = kept(cron(suspended=True, missed=Missed.ALL))
    assert look(built, at(1, 2), 2 * HOUR) == []
    apply(built, built.set_cron(cron(missed=Missed.ALL), 2 * HOUR))
    assert look(built, at(1, 2, 3), 3 * HOUR) == ["nightly-h3"]


# ---------------------------------------------------------------- missed moments


@pytest.mark.parametrize(
    ("missed", "submitted", "lost"),
    [
        (Missed.SKIP, ["nightly-h5"], 4),
        (Missed.ONCE, ["nightly-h5"], 4),
        (Missed.ALL, ["nightly-h1", "nightly-h2", "nightly-h3", "nightly-h4", "nightly-h5"], 0),
    ],
)
def test_after_a_pause_that_ends_in_time_for_the_last_moment(missed: Missed, submitted: list[str], lost: int) -> None:
    built = kept(cron(missed=missed, concurrency=Concurrency.ALLOW))
    assert look(built, at(1, 2, 3, 4, 5), 5 * HOUR + 30) == submitted
    assert built.crons["nightly"].missed == lost


@pytest.mark.parametrize(
    ("missed", "submitted", "lost"),
    [
        (Missed.SKIP, [], 3),
        (Missed.ONCE, ["nightly-h3"], 2),
        (Missed.ALL, ["nightly-h1", "nightly-h2", "nightly-h3"], 0),
    ],
)
def test_after_a_pause_that_ends_too_late_for_all(missed: Missed, submitted: list[str], lost: int) -> None:
    built = kept(cron(missed=missed, concurrency=Concurrency.ALLOW))
    assert look(built, at(1, 2, 3), 3.5 * HOUR) == submitted
    assert built.crons["nightly"].missed == lost
    assert look(built, at(1, 2, 3), 3.6 * HOUR) == []


def test_one_that_forbids_overlap_makes_up_for_one_only() -> None:
    built = kept(cron(missed=Missed.ALL))
    assert look(built, at(1, 2, 3), 3 * HOUR) == ["nightly-h1"]
    assert built.crons["nightly"].skipped == 2


def test_what_is_made_up_for_is_bounded() -> None:
    many = at(*range(1, MOST_MADE_UP + 51))
    found = chosen(Cron(cron(missed=Missed.ALL), 0.0), many, 1e9)
    assert (len(found.moments), found.left_out) == (MOST_MADE_UP, 50)
    assert found.moments[-1] == many[-1]


def test_a_refusal_at_the_door_is_noted_and_the_next_moment_is_tried() -> None:
    built = tree(queue("q", max_pending=1))
    apply(built, built.set_cron(cron(concurrency=Concurrency.ALLOW), 0.0))
    assert look(built, at(1, 2), 2 * HOUR) == ["nightly-h2"], "the first is missed"
    assert look(built, at(3), 3 * HOUR) == []
    known = built.crons["nightly"]
    assert (known.refused, "full" in known.note) == (1, True)
    end(built, "nightly-h2")
    assert look(built, at(4), 4 * HOUR) == ["nightly-h4"]


# ---------------------------------------------------------------- the owner


def test_it_survives_a_restart_and_can_be_changed_and_deleted() -> None:
    built = kept(cron())
    look(built, at(1), HOUR)
    built = QueueTree.restore(decode(encode(built.dump())))  # type: ignore[arg-type]
    assert built.set_cron(cron(), HOUR) == ()
    apply(built, built.set_cron(cron(schedule="30 * * * *"), HOUR))
    assert built.crons["nightly"].submitted == 1, "what has come of it stays"
    assert built.look_at_cron("nightly", at(1), HOUR) == ()
    apply(built, built.delete_cron("nightly", HOUR))
    assert built.look_at_cron("nightly", at(2), 2 * HOUR) == ()
    with pytest.raises(AdmissionError, match="no cron"):
        built.delete_cron("nightly", HOUR)


def test_an_array_may_come_again_and_again() -> None:
    built = kept(cron(template=replace(TEMPLATE, array=ArraySpec(3))))
    assert look(built, at(1), HOUR) == ["nightly-h1"]
    assert built.find(WorkloadId("nightly-h1.2")) is not None


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("id", cron(id="")),
        ("id", cron(id="a/b")),
        ("late_s", cron(late_s=-1.0)),
        ("template.begin_s", cron(template=replace(TEMPLATE, begin_s=1.0))),
        ("template.roles", cron(template=replace(TEMPLATE, roles=()))),
        ("template.queue", cron(template=replace(TEMPLATE, queue=QueueId("nowhere")))),
    ],
)
def test_nonsense_is_refused_with_the_field(field: str, spec: CronSpec) -> None:
    with pytest.raises((SpecError, AdmissionError)) as error:
        tree().set_cron(spec, 0.0)
    assert error.value.field == field


@given(st.data())
def test_no_moment_runs_twice_and_none_is_lost_uncounted(data: st.DataObject) -> None:
    """Looks at random times, each told all moments so far; restarts in between."""
    missed, concurrency = data.draw(st.sampled_from(Missed)), data.draw(st.sampled_from(Concurrency))
    built = kept(cron(missed=missed, concurrency=concurrency))
    now_s, submitted = 0.0, list[str]()
    for _ in range(data.draw(st.integers(1, 8))):
        now_s += data.draw(st.floats(1.0, 5 * HOUR))
        told = at(*(hour for hour in range(1, 60) if hour * HOUR <= now_s))
        submitted += look(built, told, now_s)
        if data.draw(st.booleans()):
            for id in built.crons["nightly"].alive:
                end(built, id)
        if data.draw(st.booleans()):
            built = QueueTree.restore(decode(encode(built.dump())))  # type: ignore[arg-type]
    known = built.crons["nightly"]
    assert len(submitted) == len(set(submitted)) == known.submitted
    assert known.submitted + known.skipped + known.missed + known.refused == int(now_s // HOUR)
    alive = [w for w in built.workloads.values() if not w.state.terminal]
    assert len(alive) <= 1 or concurrency is Concurrency.ALLOW
