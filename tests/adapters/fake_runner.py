"""The runner's side of a grant, as a real actor: holds one grant, answers long polls, keeps what is reported."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import ray

from rayorch.core.grants import Grant
from rayorch.core.reports import AttemptReport


class FakeRunner:
    """What `WorkloadRunner` is to Train, without queue owner and child process."""

    def __init__(self, grant: Grant) -> None:
        self._grant = grant
        self._reports: list[AttemptReport] = []
        self._newer = asyncio.Condition()

    async def grant(self, known_version: int, wait_s: float) -> Grant:
        """The grant, as soon as it is newer than `known_version` or over, at the latest after `wait_s`."""
        async with self._newer:
            try:
                news = self._newer.wait_for(lambda: self._grant.version > known_version or self._grant.lapsed)
                await asyncio.wait_for(news, wait_s)
            except TimeoutError:
                pass
        return self._grant

    async def report(self, report: AttemptReport) -> bool:
        """Keep a report; False when the attempt is over."""
        self._reports.append(report)
        return not self._grant.lapsed

    async def update(self, grant: Grant) -> None:
        """A new grant."""
        async with self._newer:
            self._grant = grant
            self._newer.notify_all()

    async def lapse(self) -> None:
        """The lease is over."""
        await self.update(replace(self._grant, lapsed=True))

    async def reports(self) -> list[AttemptReport]:
        """Everything reported so far, oldest first."""
        return list(self._reports)


FakeRunnerActor = ray.remote(FakeRunner)
