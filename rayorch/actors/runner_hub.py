"""What a runner knows and passes on: the grant, the lease, the reports and its own state. No Ray in here.

The runner's actor (`runner.py`) is a shell around it; what it starts is in `runner_command.py` and `runner_serve.py`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Protocol

from rayorch.core.bound_devices import merge_observed
from rayorch.core.grants import Grant
from rayorch.core.reports import (
    AttemptReport,
    CheckpointCommitted,
    DemandReported,
    GrantApplied,
    SeatsInUse,
    StepReported,
    WorkersStarted,
)
from rayorch.core.requests import Reply
from rayorch.core.runners import RunnerPhase, RunnerView
from rayorch.core.types import Kind, WorkloadId

log = logging.getLogger(__name__)

LEASE_PARTS = 3
"""The lease is renewed this many times in its length."""
MIN_ANSWER_S = 1.0
"""A renewal may take at least this long, however little of the lease is left."""
RENEW_RETRY_S = 0.3
REPORT_TIMEOUT_S = 5.0
REPORT_RETRY_FIRST_S = 0.2
REPORT_RETRY_MOST_S = 3.0
REPORT_WAIT_S = 2.0
"""How long a reporter is kept waiting for the queue owner's word; after it, delivery goes on without the reporter."""
WAITING_REPORTS = 256
LONGEST_POLL_S = 3600.0
LAPSED_PAUSE_S = 0.2
"""Between two answers to one who asks again although he was told that the lease is over."""


class Owners(Protocol):
    """Whom a runner talks to."""

    async def renew(self) -> bool:
        """The queue owner's word on the lease; False: this attempt is fenced. Raises when it can't be asked."""
        ...

    async def report(self, report: AttemptReport) -> Reply:
        """The queue owner's word on a report. Raises when it can't be asked."""
        ...

    async def ready(self) -> Reply:
        """Tell the queue owner that the attempt's work has begun. Raises when it can't be asked."""
        ...

    def changed(self, view: RunnerView) -> None:
        """Tell the controller how the runner is; never waits and never fails."""
        ...


@dataclass(slots=True)
class _Waiting:
    report: AttemptReport
    delivered: asyncio.Event = field(default_factory=asyncio.Event)


def supersedes(new: AttemptReport, old: AttemptReport) -> bool:
    """Whether `old`, if it still waits, need not be sent once `new` is there."""
    match new:
        case StepReported() | SeatsInUse() | GrantApplied():
            return type(old) is type(new)
        case DemandReported(role=role):
            return isinstance(old, DemandReported) and old.role == role
        case WorkersStarted() | CheckpointCommitted():
            return False


class AttemptHub:
    """One attempt's state. All methods are called in one event loop."""

    def __init__(self, kind: Kind, grant: Grant, owners: Owners) -> None:
        self.kind = kind
        self.leased = asyncio.Event()
        self.lapsed = asyncio.Event()
        self.why_lapsed = ""
        self._owners = owners
        self._grant = replace(grant, version=1)
        self._view = RunnerView(grant.workload, grant.attempt, RunnerPhase.STARTING, grant=self._grant, revision=1)
        self._changed = asyncio.Event()
        self._view_changed = asyncio.Event()
        self._outbox: deque[_Waiting] = deque()
        self._posted = asyncio.Event()
        self._sending = False
        self._confirmed_s = time.monotonic()
        self.left_s: float | None = None
        """When the work, told to stop, said that it uses no seat any more [s since the epoch]."""

    # ------------------------------------------------------------ the grant

    @property
    def grant(self) -> Grant:
        """What the attempt may use now."""
        return self._grant

    def update(self, grant: Grant) -> int:
        """Take over a grant from the controller; a new number only for new content. Returns the number in force."""
        same = replace(grant, version=self._grant.version, lapsed=self._grant.lapsed)
        if same != self._grant:
            log.info("grant %d: %d seats, stop %s", self._grant.version + 1, len(grant.seats), grant.stop)
            self._set_grant(replace(same, version=self._grant.version + 1))
        return self._grant.version

    def _set_grant(self, grant: Grant) -> None:
        self._grant = grant
        self._set_view(replace(self._view, grant=grant))
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_grant(self, known_version: int, wait_s: float) -> Grant:
        """The grant as soon as it is newer than `known_version`, else after `wait_s` as it is."""
        deadline_s = time.monotonic() + min(wait_s, LONGEST_POLL_S)
        while self._grant.version <= known_version and not self._grant.lapsed:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                break
            await self.wait_change(left_s)
        if self._grant.lapsed and known_version >= self._grant.version:
            await asyncio.sleep(min(wait_s, LAPSED_PAUSE_S))
        return self._grant

    async def wait_change(self, wait_s: float | None) -> None:
        """Return when the grant changes or has been obeyed, or after `wait_s` (None: only then)."""
        try:
            await asyncio.wait_for(self._changed.wait(), wait_s)
        except TimeoutError:
            return

    # ------------------------------------------------------------ the lease

    @property
    def silent_s(self) -> float:
        """Since the last renewal that succeeded was asked for [s]; from any thread."""
        return time.monotonic() - self._confirmed_s

    async def keep_lease(self) -> None:
        """Renew until it is refused or was not renewed for its length; then the attempt has lapsed.

        The length counts from when the last successful renewal was asked for, so it never ends later here than at
        the queue owner.
        """
        self._confirmed_s = time.monotonic()
        while True:
            lease_s = self._grant.lease_s
            asked_s = time.monotonic()
            left_s = self._confirmed_s + lease_s - asked_s
            try:
                renewed = await asyncio.wait_for(
                    self._owners.renew(), max(MIN_ANSWER_S, min(lease_s / LEASE_PARTS, left_s))
                )
            except Exception as error:  # noqa: BLE001 - whatever keeps the word from us, the lease is the bound
                silent_s = self.silent_s
                log.warning("the lease was not renewed for %.1f s: %r", silent_s, error)
                if silent_s >= lease_s:
                    self.lapse(f"the queue owner did not answer for {silent_s:.1f} s")
                    return
                await asyncio.sleep(min(RENEW_RETRY_S, lease_s / LEASE_PARTS))
                continue
            if not renewed:
                self.lapse("the queue owner refused to renew the lease")
                return
            self._confirmed_s = asked_s
            self.leased.set()
            await asyncio.sleep(max(0.0, asked_s + lease_s / LEASE_PARTS - time.monotonic()))

    def lapse(self, why: str) -> None:
        """The attempt is over: everyone who asks for the grant is told to end at once."""
        if self.lapsed.is_set():
            return
        log.warning("the lease of attempt %d of %s is over: %s", self._grant.attempt, self._grant.workload, why)
        self.why_lapsed = why
        self.lapsed.set()
        self._set_grant(replace(self._grant, lapsed=True, version=self._grant.version + 1))

    # ------------------------------------------------------------ reports

    async def report(self, report: AttemptReport) -> bool:
        """Pass a report on, in order. False: the attempt is over and the reporter must end itself.

        Waits a moment for the queue owner's word where that matters to the reporter; delivery goes on after that.
        """
        if self.lapsed.is_set():
            return False
        self._note(report)
        if isinstance(report, SeatsInUse) and self.kind is not Kind.SERVE:
            return True  # of devices; the controller sees it here
        for waiting in [w for w in self._outbox if supersedes(report, w.report)]:
            self._outbox.remove(waiting)
            waiting.delivered.set()
        entry = _Waiting(report)
        self._outbox.append(entry)
        if len(self._outbox) > WAITING_REPORTS:
            dropped = self._outbox.popleft()
            dropped.delivered.set()
            log.warning("too many reports wait for the queue owner, dropped the oldest: %s", dropped.report)
        self._posted.set()
        if not isinstance(report, StepReported | DemandReported):
            await self._delivered(entry, REPORT_WAIT_S)
        return not self.lapsed.is_set()

    async def _delivered(self, entry: _Waiting, wait_s: float) -> None:
        try:
            await asyncio.wait_for(entry.delivered.wait(), wait_s)
        except TimeoutError:
            log.info("not delivered within %.1f s, goes on: %s", wait_s, entry.report)

    def _note(self, report: AttemptReport) -> None:
        match report:
            case WorkersStarted():
                if self.kind is Kind.TRAIN:
                    self.begun()
            case GrantApplied(version=version):
                self._set_view(replace(self._view, applied_version=max(version, self._view.applied_version)))
                if self._grant.stop is not None and version >= self._grant.version and self.left_s is None:
                    self.left_s = self.now_s()
                    self._wake()
            case SeatsInUse(seats=seats):
                if self.kind is not Kind.SERVE:
                    seats = merge_observed(self._view.in_use or (), seats)
                self._set_view(replace(self._view, in_use=seats))
            case _:
                pass

    async def deliver_reports(self) -> None:
        """Send what waits, one after the other, until the lease is over."""
        while True:
            await self._posted.wait()
            self._posted.clear()
            while self._outbox:
                entry = self._outbox.popleft()
                self._sending = True
                await self._deliver(entry.report)
                self._sending = False
                entry.delivered.set()

    async def _deliver(self, report: AttemptReport) -> None:
        pause_s = REPORT_RETRY_FIRST_S
        while not self.lapsed.is_set():  # the lease bounds the number of attempts
            try:
                reply = await asyncio.wait_for(self._owners.report(report), REPORT_TIMEOUT_S)
            except Exception as error:  # noqa: BLE001 - tried again until the lease decides
                log.info("report %s not delivered, again in %.1f s: %r", report, pause_s, error)
            else:
                if reply.accepted:
                    return
                if reply.code == "stale":
                    self.lapse(f"the queue owner refused a report: {reply.message}")
                    return
                if reply.code != "cluster":
                    log.error("the queue owner refused report %s: %s %s", report, reply.code, reply.message)
                    return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, REPORT_RETRY_MOST_S)

    async def flush(self, timeout_s: float) -> None:
        """Wait until all reports are delivered, at most `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        while (self._outbox or self._sending) and not self.lapsed.is_set():
            if time.monotonic() >= deadline_s:
                log.warning("%d reports were not delivered within %.1f s", len(self._outbox), timeout_s)
                return
            await asyncio.sleep(0.05)

    # ------------------------------------------------------------ what the runner is

    @property
    def view(self) -> RunnerView:
        """How the runner is."""
        return self._view

    @property
    def workload(self) -> WorkloadId:
        """Whose attempt it is."""
        return self._grant.workload

    def _set_view(self, view: RunnerView) -> None:
        if view != self._view:
            self._view = replace(view, revision=self._view.revision + 1)
            self._view_changed.set()
            self._view_changed = asyncio.Event()
            self._owners.changed(self._view)

    async def wait_view_change(self) -> None:
        """Return when the runner's own state changes."""
        await self._view_changed.wait()

    @staticmethod
    def now_s() -> float:
        """Seconds since the epoch."""
        return time.time()

    def begun(self) -> None:
        """The work runs."""
        if self._view.phase is RunnerPhase.STARTING:
            self._set_view(replace(self._view, phase=RunnerPhase.RUNNING))

    async def tell_ready(self) -> None:
        """Tell the queue owner that the work runs. The controller does so as well, a turn later."""
        try:
            await asyncio.wait_for(self._owners.ready(), REPORT_TIMEOUT_S)
        except Exception as error:  # noqa: BLE001 - the controller tells it too
            log.info("the queue owner was not told that the work runs: %r", error)

    def ended(self, exit_code: int | None, message: str) -> None:
        """The work is over and its processes are gone; None: because the lease was over."""
        log.info("attempt %d of %s ended: %s", self._grant.attempt, self.workload, message)
        self._set_view(
            replace(self._view, phase=RunnerPhase.ENDED, exit_code=exit_code, message=message, ended_s=time.time())
        )
