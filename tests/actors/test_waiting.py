"""Waiting for a change: woken by the event, once, and by no other workload's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rayorch.actors.queues import QueueSettings, QueueShell
from rayorch.actors.waiting import Waiters
from rayorch.core.events import AttemptReady, CancelRequested, QueueSet
from rayorch.core.requests import CancelRequest, Until, WaitRequest
from rayorch.core.types import Kind, QueueId, QueueSpec, Resources, Role, State, Workload, WorkloadId, WorkloadSpec

LONG_S = 60.0
"""Never reached: a guard against a hang."""


def _spec(name: str) -> WorkloadSpec:
    role = Role("worker", Resources.of({"GPU": 1}), 1, 1)
    return WorkloadSpec(WorkloadId(name), name, Kind.GANG, QueueId("default"), (role,))


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[Any]:
    """A queue owner with one queue."""
    shell: Any = QueueShell(QueueSettings(str(tmp_path / "journal.db"), create=True), poke=lambda: None)
    await shell.set_queue(QueueSpec(QueueId("default")))
    yield shell
    await shell.close()


@pytest.mark.parametrize(
    ("until", "state", "ready_s", "met"),
    [
        (Until.RUNNING, State.PENDING, None, False),
        (Until.RUNNING, State.RUNNING, None, True),
        (Until.READY, State.RUNNING, None, False),
        (Until.READY, State.RUNNING, 5.0, True),
        (Until.READY, State.STOPPING, 5.0, False),
        (Until.ENDED, State.RUNNING, 5.0, False),
        (Until.CHANGED, State.RUNNING, None, False),
        (Until.CHANGED, State.STOPPING, None, True),
        *((until, State.CANCELLED, None, True) for until in Until),
    ],
)
def test_what_was_waited_for(until: Until, state: State, ready_s: float | None, met: bool) -> None:
    workload = replace(Workload(_spec("a"), State.PENDING, 0.0), state=state, attempt=1, ready_s=ready_s)
    assert WaitRequest(workload.id, until, 0.0, (State.RUNNING, 1)).met(workload) is met


async def test_an_event_wakes_all_who_wait_for_its_workload_and_nobody_else() -> None:
    waiters = Waiters()
    mine = [asyncio.create_task(waiters.next_change(WorkloadId("a"), LONG_S)) for _ in range(2)]
    other = asyncio.create_task(waiters.next_change(WorkloadId("b"), LONG_S))
    await asyncio.sleep(0)
    waiters.wake((QueueSet(QueueSpec(QueueId("default")), 0.0), AttemptReady(WorkloadId("a"), 1, 0.0)))
    await asyncio.gather(*mine)
    assert not other.done()
    waiters.wake((CancelRequested(WorkloadId("b"), "", 0.0),))
    await other


async def test_who_has_gone_or_waited_long_enough_leaves_nothing_behind() -> None:
    waiters = Waiters()
    await waiters.next_change(WorkloadId("a"), 0.01)
    gone = asyncio.create_task(waiters.next_change(WorkloadId("a"), LONG_S))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert waiters._waiting == {}


async def test_a_long_poll_is_answered_by_the_change_with_the_new_state(owner: Any) -> None:
    assert (await owner.submit(_spec("a"))).now == await owner.workload(WorkloadId("a"))
    waits = [
        asyncio.create_task(owner.wait(WaitRequest(WorkloadId("a"), until, LONG_S, (State.PENDING, 0))))
        for until in Until
    ]
    await asyncio.sleep(0.01)
    assert not any(wait.done() for wait in waits)
    await owner.cancel(CancelRequest(WorkloadId("a"), "enough"))
    for answer in await asyncio.gather(*waits):
        assert answer is not None and answer.state is State.CANCELLED


async def test_a_long_poll_ends_with_its_time_and_for_an_unknown_workload_at_once(owner: Any) -> None:
    await owner.submit(_spec("a"))
    waiting = await owner.wait(WaitRequest(WorkloadId("a"), Until.READY, 0.01))
    assert waiting is not None and waiting.state is State.PENDING
    assert await owner.wait(WaitRequest(WorkloadId("b"), Until.READY, LONG_S)) is None
