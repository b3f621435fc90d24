"""What a grant means for a worker group: decided without Ray, against a group that writes down what it is told."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from rayorch.adapters.ray_train.session import NO_HURRY_S, GrantSession, Phase, Reaction, react, worker_seats
from rayorch.core.grants import Grant, Seat
from rayorch.core.reports import AttemptReport, CheckpointCommitted, GrantApplied, StepReported, WorkersStarted
from rayorch.core.types import Resources, StopCause, StopOrder, WorkloadId

GPU = Resources.of({"GPU": 1})
NOW_S = 1000.0
STOP = StopOrder(StopCause.PREEMPTED, "room", NOW_S, NOW_S + 30)


def seat(index: int, role: str = "worker") -> Seat:
    return Seat(role, index, f"node{index}", "aa" if index < 2 else f"b{index}", index if index < 2 else 0, GPU)


def grant(version: int, *seats: int, **fields: Any) -> Grant:
    return Grant(WorkloadId("w"), 1, version, tuple(seat(i) for i in seats), **fields)


@dataclass
class RecordingGroup:
    """A group of workers that does nothing but keep what reached it."""

    notices: list[tuple[float, int]] = field(default_factory=list)
    kills: int = 0

    def notify(self, deadline_s: float, version: int) -> None:
        self.notices.append((deadline_s, version))

    def kill(self) -> None:
        self.kills += 1


class Stage:
    """A session with two workers running, unless told otherwise, at a time that the test moves."""

    def __init__(self, first: Grant, phase: Phase = Phase.RUNNING, max_workers: int = 4) -> None:
        self.now_s = NOW_S
        self.sent: list[AttemptReport] = []
        self.group = RecordingGroup()
        self.session = GrantSession(self.sent.append, lambda: self.now_s)
        self.session.max_workers = max_workers
        self.session.accept(first)
        if phase is not Phase.IDLE:
            self.session.begin(worker_seats(first, max_workers))
            self.session.starting(self.group)
        if phase is Phase.RUNNING:
            self.session.started(len(first.seats))
        self.sent.clear()

    def applied(self) -> list[int]:
        return [report.version for report in self.sent if isinstance(report, GrantApplied)]


TWO = (seat(0), seat(1))


@pytest.mark.parametrize(
    ("phase", "new", "expected"),
    [
        (Phase.IDLE, grant(2, 0), Reaction.APPLIED),
        (Phase.RUNNING, grant(2, 0, 1), Reaction.APPLIED),
        (Phase.RUNNING, grant(2, 0), Reaction.ASK),
        (Phase.RUNNING, grant(2, 0, 1, 2), Reaction.ASK),
        (Phase.RUNNING, grant(2, 0, 1, stop=STOP), Reaction.ASK),
        (Phase.STARTING, grant(2, 0, 1), Reaction.APPLIED),
        (Phase.STARTING, grant(2, 0, 1, 2), Reaction.LATER),
        (Phase.STARTING, grant(2, 0), Reaction.ABANDON),
        (Phase.STARTING, grant(2, 0, 1, stop=STOP), Reaction.ABANDON),
    ],
)
def test_reaction_to_a_grant(phase: Phase, new: Grant, expected: Reaction) -> None:
    assert react(new, TWO, phase, max_workers=4) is expected


def test_seats_beyond_the_script_s_maximum_change_nothing() -> None:
    assert react(grant(2, 0, 1, 2), TWO, Phase.RUNNING, max_workers=2) is Reaction.APPLIED


def test_seats_of_other_roles_are_not_train_s() -> None:
    mixed = replace(grant(1, 0), seats=(seat(9, "driver"), seat(0)))
    assert worker_seats(mixed, 4) == (seat(0),)


def test_a_shrink_is_applied_when_the_group_is_down_and_not_before() -> None:
    stage = Stage(grant(1, 0, 1))
    stage.session.accept(grant(2, 0, release_by_s=NOW_S + 20))
    assert stage.group.notices == [(NOW_S + 20, 2)]
    assert stage.applied() == []

    stage.session.released()
    assert stage.applied() == [2]
    assert not stage.session.disturbed


def test_a_growth_has_no_deadline() -> None:
    stage = Stage(grant(1, 0, 1))
    stage.session.accept(grant(2, 0, 1, 2))
    assert stage.group.notices == [(NOW_S + NO_HURRY_S, 2)]
    stage.now_s += 2 * NO_HURRY_S
    assert not stage.session.overdue


def test_a_grant_with_the_same_seats_is_applied_at_once() -> None:
    stage = Stage(grant(1, 0, 1))
    stage.session.accept(grant(2, 0, 1))
    assert stage.applied() == [2]
    assert stage.group.notices == []


def test_a_grant_taken_back_after_the_notice_still_restarts_the_group() -> None:
    stage = Stage(grant(1, 0, 1))
    stage.session.accept(grant(2, 0, release_by_s=NOW_S + 20))
    stage.session.accept(grant(3, 0, 1))
    assert stage.applied() == []
    stage.session.released()
    assert stage.applied() == [3]


def test_a_stop_is_obeyed_when_the_group_is_down_and_not_before() -> None:
    stage = Stage(grant(1, 0, 1))
    stage.session.accept(grant(2, 0, 1, stop=STOP))
    assert stage.applied() == []
    stage.session.released()
    assert stage.applied() == [2]
    assert stage.session.stop == STOP


def test_a_start_in_vain_is_ended_at_once() -> None:
    stage = Stage(grant(1, 0, 1), Phase.STARTING)
    stage.session.accept(grant(2, 0))
    assert stage.group.kills == 1
    stage.session.released()
    assert stage.session.disturbed, "what comes of the start is not the user's failure"
    assert stage.applied() == [2]
    stage.session.begin((seat(0),))
    assert not stage.session.disturbed


def test_actors_made_after_the_start_was_given_up_are_ended() -> None:
    stage = Stage(grant(1, 0, 1), Phase.IDLE)
    stage.session.begin(TWO)
    stage.session.accept(grant(2, 0))
    stage.session.starting(stage.group)
    assert stage.group.kills == 1


def test_a_growth_during_the_start_is_asked_for_once_it_runs() -> None:
    stage = Stage(grant(1, 0, 1), Phase.STARTING)
    stage.session.accept(grant(2, 0, 1, 2))
    assert stage.group.notices == []
    stage.session.started(2)
    assert stage.sent == [WorkersStarted(2, NOW_S)]
    assert stage.group.notices == [(NOW_S + NO_HURRY_S, 2)]


def test_the_deadline_of_the_newest_grant_counts() -> None:
    stage = Stage(grant(1, 0, 1))
    stage.session.accept(grant(2, 0, release_by_s=NOW_S + 20))
    stage.session.accept(grant(3, 0, stop=replace(STOP, deadline_s=NOW_S + 5)))
    stage.now_s = NOW_S + 5
    assert stage.session.overdue


def test_any_checkpoint_acknowledges_for_a_loop_that_never_looks() -> None:
    stage = Stage(grant(1, 0, 1))
    stage.session.committed(1, "old", "old")
    stage.session.accept(grant(2, 0))
    assert not stage.session.acknowledged, "that one came before the notice"
    stage.session.committed(2, "new", "new")
    assert stage.session.acknowledged
    assert [type(r) for r in stage.sent] == [CheckpointCommitted, CheckpointCommitted]


def test_only_an_answer_acknowledges_for_a_loop_that_looks() -> None:
    stage = Stage(grant(1, 0, 1))
    stage.session.accept(grant(2, 0))
    stage.session.committed(7, "periodic", "periodic")
    stage.session.observed(polls=True, answering=[])
    assert not stage.session.acknowledged
    stage.session.observed(polls=True, answering=["answer"])
    assert not stage.session.acknowledged, "not committed yet"
    stage.session.committed(8, "answer", "answer")
    assert stage.session.acknowledged


def test_progress_is_passed_on() -> None:
    stage = Stage(grant(1, 0, 1))
    stage.session.progressed(3)
    assert stage.sent == [StepReported(3, NOW_S)]
