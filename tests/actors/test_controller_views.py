"""Which of two views of a runner the controller believes: they come on several ways, and may overtake each other."""

from __future__ import annotations

from dataclasses import replace

from rayorch.actors.controller import _is_old
from rayorch.core.grants import Grant
from rayorch.core.reports import SeatInUse
from rayorch.core.runners import RunnerPhase, RunnerView
from rayorch.core.types import WorkloadId

W = WorkloadId("w")
FIRST = RunnerView(W, 1, RunnerPhase.STARTING, grant=Grant(W, 1, 1, ()), revision=1)
BEGUN = replace(FIRST, phase=RunnerPhase.RUNNING, revision=2)


def test_an_answer_that_was_overtaken_does_not_undo_what_came_after_it() -> None:
    """The grant is the same in both, so its number can't tell."""
    assert _is_old(FIRST, BEGUN) and not _is_old(BEGUN, FIRST)
    moved = replace(BEGUN, in_use=(SeatInUse("worker", "n2", "bb"),), revision=4)
    assert _is_old(replace(moved, in_use=(SeatInUse("worker", "n1", "aa"),), revision=3), moved)


def test_the_end_is_the_last_word_and_may_be_heard_twice() -> None:
    ended = replace(BEGUN, phase=RunnerPhase.ENDED, exit_code=0, revision=3)
    dead = RunnerView(W, 1, RunnerPhase.GONE)
    assert _is_old(dead, ended) and not _is_old(ended, ended)
    assert not _is_old(dead, BEGUN)
    assert _is_old(BEGUN, dead) and not _is_old(ended, dead)


def test_what_the_controller_assumes_of_a_runner_gives_way_to_its_own_word() -> None:
    assumed = RunnerView(W, 1, RunnerPhase.STARTING)
    assert not _is_old(FIRST, assumed) and _is_old(assumed, BEGUN)
