"""Pace in windows, what of it is learned, and how it gets into the queue owner's state and out of its journal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.core import codec
from rayorch.core.decisions import Watch
from rayorch.core.errors import StalePlanError
from rayorch.core.events import Event, Reported
from rayorch.core.history import History
from rayorch.core.history_book import HistoryBook
from rayorch.core.pace import Beside, Pace, ended, kind_of, learned, opened, rate, stepped
from rayorch.core.reports import StepReported
from rayorch.core.types import WorkloadId
from tests.core.test_queues import running as started
from tests.scenes import running

B: Beside = ((WorkloadId("b"), 1),)
KINDS = {WorkloadId("b"): "/y"}


def _window(beside: Beside, steps_per_s: float, took_s: float = 100.0, alone: float = 0.0, ready: bool = True) -> Pace:
    pace = Pace(beside, ready, alone=alone, model="H100")
    return stepped(stepped(pace, 50, 10.0), 50 + round(steps_per_s * took_s), 10.0 + took_s)


def test_a_window_counts_when_it_is_long_enough_and_all_work() -> None:
    assert _window((), 2.0).measured() == 2.0
    assert _window((), 2.0, took_s=59.0).measured() == 0.0
    assert _window((), 0.05).measured() == 0.0, "five steps tell little"
    assert _window((), 2.0).measured(least_s=101.0) == 0.0 < _window((), 2.0).measured(least_s=1.0)
    assert _window(B, 2.0, ready=False).measured() == 0.0
    assert Pace((), True).measured() == 0.0
    late = stepped(_window((), 2.0), 20, 120.0)
    assert (late.last_step, late.last_s) == (250, 120.0), "an older step counts for none"


def test_steps_while_the_clock_stands_tell_no_pace() -> None:
    """An owner's clock that was set back by 100 s stands so long; the work went on at two steps a second."""
    stood = stepped(stepped(_window((), 2.0), 350, 110.0), 450, 110.0)
    assert (stood.measured(), stood.first_step, stood.first_s) == (0.0, 450, 110.0)
    assert stepped(stood, 650, 210.0).measured() == 2.0
    assert opened(stood, B, True, "H100", 110.0).first_step == 450


def test_a_new_window_begins_with_its_own_reports_and_keeps_the_pace_alone() -> None:
    alone = _window((), 2.0)
    found = opened(alone, B, True, "H100", 200.0)
    assert (found.beside, found.alone, found.first_step, found.model) == (B, 2.0, -1, "H100")
    fresh = opened(alone, B, True, "H100", 111.0)
    assert (fresh.first_step, fresh.first_s) == (250, 110.0), "the last report is as good as one of this moment"
    assert opened(found, (), True, "H100", 300.0).alone == 2.0
    assert opened(found, (), True, "A100", 300.0).alone == 0.0, "on another model nobody knows"
    assert opened(None, B, False, "", 0.0) == Pace(B, False)
    assert ended(alone) == Pace(alone=2.0, model="H100") == ended(found)


def test_what_a_window_tells_of_its_kind() -> None:
    known = {("/x", "", "H100"): 4.0}
    assert learned(_window((), 2.0), "/x", {}, {}) == (("/x", "", "H100"), 2.0)
    assert learned(_window(B, 1.0, alone=2.0), "/x", KINDS, known) == (("/x", "/y", "H100"), 0.5)
    assert learned(_window(B, 1.0), "/x", KINDS, known) == (("/x", "/y", "H100"), 0.25)
    assert learned(_window(B, 1.0), "/x", KINDS, {}) is None, "of what alone is nobody knows"
    assert learned(_window(B, 1.0, alone=2.0), "/x", {}, {}) is None, "it is gone, and its kind unknown"
    assert learned(_window((*B, (WorkloadId("c"), 1)), 1.0, alone=2.0), "/x", KINDS, {}) is None, "whose fault is it?"
    assert learned(_window((), 2.0, took_s=10.0), "/x", {}, {}) is None
    assert kind_of("ann", "train-17-3") == kind_of("ann", "train-2-40") != kind_of("bob", "train-2-40")


def test_a_rate_is_measured_or_else_learned() -> None:
    known = {("/x", "/y", "H100"): 0.7, ("/x", "", "H100"): 4.0}
    assert rate(_window(B, 1.0, alone=2.0), "/x", "/y", known) == (0.5, True)
    assert rate(_window(B, 1.0), "/x", "/y", known) == (0.25, True)
    assert rate(_window(B, 1.0, took_s=10.0), "/x", "/y", known) == (0.7, False)
    assert rate(_window(B, 1.0), "/x", "/y", known, least_s=500.0) == (0.7, False)
    assert rate(_window(B, 1.0), "/x", "/z", {}) is None


def test_readers_hear_of_paces_once_and_a_snapshot_of_the_journal_holds_them() -> None:
    book = HistoryBook()
    x, y = (running(name, ["n1"], gpu=1)[0] for name in ("x", "b"))
    book.paced(replace(x, pace=_window((), 2.0)), {}, 5)
    book.paced(replace(x, pace=_window((), 4.0)), {}, 6)
    book.paced(replace(x, pace=_window(((y.id, 1),), 1.5, alone=3.0)), {y.id: y}, 7)
    kind, other = (kind_of(w.spec.owner, w.spec.name) for w in (x, y))
    want = {(kind, "", "H100"): 3.0, (kind, other, "H100"): 0.5}
    assert book.state().paces == want
    known = History().changed(book.changes_since(0))
    assert known.paces == want and known.changed(book.changes_since(7)) is known
    assert book.changes_since(6).paces == want and book.changes_since(7).paces is None
    assert HistoryBook(book.state(), 7).state() == book.state()
    newest_last = {("/z", "", ""): 1.0, ("/a", "", ""): 2.0}
    assert list(HistoryBook(History(paces=newest_last)).state().paces) == list(newest_last), "who is forgotten first"
    assert codec.decode_as(History, codec.encode(book.state())) == book.state()


def test_the_owner_notes_who_is_beside_once_and_only_of_the_current_attempt() -> None:
    tree, id = started(), WorkloadId("w")
    watch = Watch(id, 1, B, True, "H100")

    def take(events: tuple[Event, ...]) -> None:
        for event in events:
            back = codec.decode(codec.encode(event))
            assert back == event
            tree.apply(event)

    take(tree.commit_watch(watch, 5.0))
    assert tree.workloads[id].pace == Pace(B, True, model="H100") and tree.commit_watch(watch, 6.0) == ()
    take((Reported(id, 1, StepReported(7, 8.0), 9.0),))
    assert tree.workloads[id].pace == Pace(B, True, 7, 9.0, 7, 9.0, model="H100")
    with pytest.raises(StalePlanError, match="attempt 2"):
        tree.commit_watch(Watch(id, 2, (), True, ""), 9.0)
