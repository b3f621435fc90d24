"""Following a workload: its changes of state and its output, from submission to the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from rayorch.core.requests import Until, WaitRequest
from rayorch.core.types import LIVE, State, Workload, WorkloadId
from rayorch.core.views import ExplainView, Overview, WorkloadRow
from rayorch.serve_apps.gateway.backend import Backend
from rayorch.serve_apps.gateway.problems import NotFoundError
from rayorch.serve_apps.gateway.settings import GatewaySettings

NOTE = "[rayorch] "
LONG_POLL_S = 20.0
"""The longest single question for a change: an owner that died meanwhile is noticed after this time."""


class RecentOverview:
    """The overview, asked for at most once per `overview_age_s` however many readers there are."""

    def __init__(self, backend: Backend, settings: GatewaySettings) -> None:
        self._backend = backend
        self._age_s = settings.overview_age_s
        self._lock = asyncio.Lock()
        self._view: Overview | None = None
        self._taken_s = 0.0

    async def get(self) -> Overview:
        """A view that is at most that old."""
        async with self._lock:
            if self._view is None or time.monotonic() - self._taken_s > self._age_s:
                self._view = await self._backend.overview()
                self._taken_s = time.monotonic()
            return self._view

    async def row(self, workload: WorkloadId) -> WorkloadRow | None:
        """The row of one workload, None when it is not (yet, or any more) in the view."""
        view = await self.get()
        return next((row for row in view.workloads if row.workload.id == workload), None)


async def wait_for(backend: Backend, workload: WorkloadId, until: Until, timeout_s: float) -> Workload:
    """The workload when it has come that far or ended, or as it is after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        left_s = max(0.0, deadline_s - time.monotonic())
        request = WaitRequest(workload, until, min(left_s, LONG_POLL_S))
        known = await backend.wait(request)
        if known is None:
            raise NotFoundError(f"there is no workload {workload}")
        if request.met(known) or left_s <= LONG_POLL_S:
            return known


async def follow_output(
    backend: Backend, workload: WorkloadId, settings: GatewaySettings, notes: bool = True
) -> AsyncIterator[str]:
    """The output of all attempts, from the current one on, until the workload has ended and all has been read.

    With `notes`, lines that begin with "[rayorch]" say where it is while it waits, starts, and is requeued.
    """
    notebook = _Notebook(settings.queue_note_s)
    output = _Output(backend, workload, settings)
    while True:
        known = await backend.workload(workload)
        if known is None:
            raise NotFoundError(f"there is no workload {workload}")
        output.look_at(known)
        if notes and (note := notebook.moved(known)):
            yield note
        began_s = time.monotonic()
        if text := await output.more(known):
            yield text
            continue
        if notes and known.state is State.PENDING and notebook.due():
            view = await backend.explain(workload)
            if view is not None and (note := notebook.waiting(view)):
                yield note
        if known.state.terminal and output.complete(known):
            return
        pause_s = max(0.0, settings.poll_s - (time.monotonic() - began_s))
        if known.state.terminal or output.reads(known):
            await asyncio.sleep(pause_s)
        else:  # nothing can come before the next attempt: only a change of state, or the next note, is news
            pause_s = max(pause_s, notebook.next_in_s() if notes else LONG_POLL_S)
            await backend.wait(WaitRequest(workload, Until.CHANGED, pause_s, (known.state, known.attempt)))


class _Output:
    """Reads the logs of the attempts one after the other, each to its end."""

    def __init__(self, backend: Backend, workload: WorkloadId, settings: GatewaySettings) -> None:
        self._backend = backend
        self._workload = workload
        self._settings = settings
        self._attempt = -1  # not looked yet; 0: there is none yet
        self._offset = 0
        self._over = False
        self._heard_s = 0.0

    def look_at(self, known: Workload) -> None:
        """Begin with the current attempt; go on to the next one when this one's log is read."""
        if self._attempt < 0:
            self._attempt = known.attempt
        elif known.attempt > self._attempt and (self._over or not self._attempt):
            self._attempt += 1
        else:
            return
        self._offset, self._over, self._heard_s = 0, False, time.monotonic()

    async def more(self, known: Workload) -> str:
        """What has come since, waiting for it a moment."""
        if not self._attempt or self._over:
            return ""
        live = known.attempt == self._attempt and known.state in LIVE
        wait_s = self._settings.log_wait_s if live else self._settings.poll_s
        chunk = await self._backend.logs(self._workload, self._attempt, self._offset, wait_s)
        moved = chunk.next_offset != self._offset
        self._offset, self._over = chunk.next_offset, chunk.ended and not moved
        if moved or live:
            self._heard_s = time.monotonic()
        elif time.monotonic() - self._heard_s > self._settings.log_settle_s:
            self._over = True  # its runner died without saying that this was all
        return chunk.text

    def reads(self, known: Workload) -> bool:
        """Whether output may come without a change of the workload's state."""
        return bool(self._attempt) and not (self._over and self._attempt == known.attempt)

    def complete(self, known: Workload) -> bool:
        """Whether the last attempt's log has been read."""
        return self._attempt == known.attempt and (self._over or not self._attempt)


class _Notebook:
    """What was said already, so that a line appears only when something is new."""

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._said_s = float("-inf")
        self._said = ""
        self._place: tuple[State, int] | None = None

    def due(self) -> bool:
        return time.monotonic() - self._said_s >= self._least_s

    def next_in_s(self) -> float:
        """Time until `due`."""
        return max(0.0, self._least_s - (time.monotonic() - self._said_s))

    def waiting(self, view: ExplainView) -> str:
        """Where it stands in the queue and why, empty when that was said already."""
        place = f"position {view.position}" if view.position else "waiting"
        reasons = "; ".join(f"{w.reason.value}: {w.detail}" for w in view.waits if w.blocks)
        line = f"{NOTE}{view.workload.spec.queue}: {place}{' - ' + reasons if reasons else ''}\n"
        self._said_s = time.monotonic()
        if line == self._said:
            return ""
        self._said = line
        return line

    def moved(self, workload: Workload) -> str:
        """A change of state worth a line, empty otherwise."""
        place, before = (workload.state, workload.attempt), self._place
        self._place = place
        if place == before:
            return ""
        if workload.state is State.RUNNING:
            return f"{NOTE}attempt {workload.attempt} is running\n"
        if workload.state is State.STOPPING and workload.stop is not None:
            return f"{NOTE}stopping: {workload.stop.cause.value} - {workload.stop.reason}\n"
        if workload.state is State.PENDING and before is not None:
            return f"{NOTE}back in the queue: {workload.reason}\n"
        if workload.state is State.CANCELLED:
            return f"{NOTE}cancelled: {workload.reason}\n"
        return ""
