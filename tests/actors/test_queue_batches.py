"""Many commands in one call: each refused on its own, what is accepted is one transaction, a repeat is nothing new."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest

from rayorch.actors import durable_tree, queues
from rayorch.core.decisions import Stop
from rayorch.core.events import AttemptEnded, Event
from rayorch.core.lifecycle import Move
from rayorch.core.queues import QueueTree
from rayorch.core.reports import StepReported
from rayorch.core.requests import ACCEPTED, AttemptRef, StartRequest
from rayorch.core.types import State, StopCause, StopOrder, WorkloadId, WorkloadSpec
from tests.actors.test_queue_shell import Owner, events, owner, report, spec, start

NAMES = ("a", "b", "c")


def _ended(name: str, attempt: int = 1) -> AttemptEnded:
    return AttemptEnded(WorkloadId(name), attempt, Move.SUCCEEDED, None, 0, "done", 0.0, 1_001.0)


def _refs(*names: str, attempt: int = 1) -> tuple[AttemptRef, ...]:
    return tuple(AttemptRef(WorkloadId(name), attempt) for name in names)


async def _started(made: Owner) -> None:
    await made.shell.submit_many(tuple(spec(name) for name in NAMES))
    requests: tuple[StartRequest, ...] = tuple(start(name) for name in NAMES)
    assert await made.shell.commit_starts(requests) == (ACCEPTED,) * 3


async def test_each_is_accepted_or_refused_on_its_own(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        await made.shell.submit_many(tuple(spec(name) for name in NAMES))
        replies = await made.shell.commit_starts((start("a"), start("b", attempt=2), start("unknown"), start("c")))
        assert [reply.code for reply in replies] == ["", "stale", "stale", ""]
        begun = await made.shell.ready_many(_refs("a", "b", "c"))
        assert [reply.code for reply in begun] == ["", "stale", ""]
        order = StopOrder(StopCause.PREEMPTED, "for b", 1_000.0, 1_030.0)
        stopped = await made.shell.commit_stops(tuple(Stop(WorkloadId(name), 1, order) for name in ("b", "c")))
        assert [reply.code for reply in stopped] == ["stale", ""]
        over = await made.shell.end_attempts((_ended("b", 2), _ended("a"), _ended("c")))
        assert [reply.code for reply in over] == ["stale", "", ""]
        page = [await made.shell.workload(WorkloadId(name)) for name in NAMES]
        assert [w.state for w in page if w] == [State.SUCCEEDED, State.PENDING, State.SUCCEEDED]


@pytest.mark.parametrize("broken", [False, True])
async def test_a_defect_in_one_leaves_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    """Be it in its check or, worse, in its event: then those before it have happened, and those after it not yet."""
    async with owner(tmp_path) as made:
        await _started(made)
        name = "apply" if broken else "end_attempt"
        sound = getattr(QueueTree, name)

        def defect(tree: QueueTree, event: Event) -> object:
            if isinstance(event, AttemptEnded) and event.workload == "b":
                raise KeyError("a defect")
            return sound(tree, event)

        with monkeypatch.context() as patch:
            patch.setattr(QueueTree, name, defect)
            replies = await made.shell.end_attempts(tuple(map(_ended, NAMES)))
        assert [reply.code for reply in replies] == ["", "cluster", "cluster" if broken else ""]
        over = dict((await made.shell.status()).states)
        assert over[State.SUCCEEDED] == (1 if broken else 2)
        assert await made.shell.end_attempts(tuple(map(_ended, NAMES))) == (ACCEPTED,) * 3


async def test_a_defect_in_one_submission_leaves_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with owner(tmp_path) as made:
        sound = QueueTree.submit

        def defect(tree: QueueTree, spec: WorkloadSpec, now_s: float) -> tuple[Event, ...]:
            if spec.id == "b":
                raise KeyError("a defect")
            return sound(tree, spec, now_s)

        monkeypatch.setattr(QueueTree, "submit", defect)
        results = await made.shell.submit_many(tuple(spec(name) for name in NAMES))
        assert [result.reply.code for result in results] == ["", "cluster", ""]


async def test_what_is_accepted_together_is_one_transaction_and_a_repeat_is_nothing_new(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        appended: list[int] = []
        append = made.journal.append
        made.journal.append = lambda entries: (appended.append(len(entries)), append(entries))[1]  # type: ignore[method-assign]
        await _started(made)
        await made.shell.ready_many(_refs(*NAMES))
        await made.shell.end_attempts(tuple(map(_ended, NAMES)))
        assert appended == [3, 3, 3, 3]
        assert await made.shell.end_attempts(tuple(map(_ended, NAMES))) == (ACCEPTED,) * 3
        assert len(appended) == 4


async def test_a_batch_that_the_disk_refuses_has_not_happened(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        await _started(made)
        made.journal.set_page_limit(1)
        replies = await made.shell.end_attempts(tuple(map(_ended, NAMES)))
        assert {reply.code for reply in replies} == {"cluster"}
        made.journal.set_page_limit(100_000)
        assert dict((await made.shell.status()).states)[State.RUNNING] == 3
        assert await made.shell.end_attempts(tuple(map(_ended, NAMES))) == (ACCEPTED,) * 3
        await made.restart()
        assert dict((await made.shell.status()).states)[State.SUCCEEDED] == 3


async def test_held_steps_are_written_before_each_end(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        await _started(made)
        for name in NAMES:
            for step in (1, 2):
                await made.shell.report(report(name, StepReported(step, 0.0)))
        await made.shell.end_attempts(tuple(map(_ended, NAMES)))
        for name in NAMES:
            assert [type(e).__name__ for e in await events(made, name)][-2:] == ["Reported", "AttemptEnded"]


async def test_many_submissions_do_not_keep_others_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch takes in no more after a while: what came behind a flood is answered before the flood is through."""
    monkeypatch.setattr(queues, "TOGETHER", 10)
    monkeypatch.setattr(durable_tree, "BATCH_S", -1.0)  # one command each
    async with owner(tmp_path) as made:
        order: list[str] = []

        async def noted(name: str, work: Awaitable[object]) -> object:
            answer = await work
            order.append(name)
            return answer

        flood = noted("flood", made.shell.submit_many(tuple(spec(f"w{i}") for i in range(60))))
        status = noted("status", made.shell.workload(WorkloadId("w5")))
        results, _ = await asyncio.gather(flood, status)
        assert order == ["status", "flood"]
        assert isinstance(results, tuple) and all(result.reply == ACCEPTED for result in results)
        assert [result.workload for result in results] == [f"w{i}" for i in range(60)]
        await made.restart()
        assert dict((await made.shell.status()).states)[State.PENDING] == 60
