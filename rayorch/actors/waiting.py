"""Callers that wait for a change of one workload each: woken by the event, not by looking again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from rayorch.core.events import Event, workload_of
from rayorch.core.types import WorkloadId


class Waiters:
    """Belongs to one event loop. Costs nothing for workloads that nobody waits for."""

    def __init__(self) -> None:
        self._waiting: dict[WorkloadId, set[asyncio.Future[None]]] = {}

    def wake(self, events: Iterable[Event]) -> None:
        """These events are durable: whoever waits for their workloads looks again."""
        for event in events:
            workload = workload_of(event)
            if workload is not None:
                for future in self._waiting.pop(workload, ()):
                    if not future.done():
                        future.set_result(None)

    async def next_change(self, workload: WorkloadId, wait_s: float) -> None:
        """Return at the workload's next event, or after `wait_s`.

        It listens from the call on: whoever calls it right after a look, without awaiting in between, misses nothing.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(workload, set()).add(future)
        try:
            await asyncio.wait((future,), timeout=wait_s)
        finally:
            self._forget(workload, future)

    def _forget(self, workload: WorkloadId, future: asyncio.Future[None]) -> None:
        others = self._waiting.get(workload)
        if others is not None:
            others.discard(future)
            if not others:
                del self._waiting[workload]
