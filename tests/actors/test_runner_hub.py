"""The runner's core without Ray: grants are numbered, leases lapse, reports arrive in order."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from rayorch.actors.runner_hub import AttemptHub
from rayorch.core.grants import Grant, Seat
from rayorch.core.reports import (
    AttemptReport,
    CheckpointCommitted,
    DemandReported,
    GrantApplied,
    SeatInUse,
    SeatsInUse,
    StepReported,
    WorkersStarted,
)
from rayorch.core.requests import ACCEPTED, Reply
from rayorch.core.runners import RunnerPhase, RunnerView
from rayorch.core.types import Kind, Resources, StopCause, StopOrder, WorkloadId

LEASE_S = 0.6
STALE = Reply(False, "stale", "", "replaced by attempt 2")


class FakeOwners:
    """The queue owner and the controller; `answers` are used up before everything is accepted."""

    def __init__(self) -> None:
        self.renewed = 0
        self.renew_answers: list[bool | Exception] = []
        self.default_renewal: bool | Exception = True
        self.report_answers: list[Reply | Exception] = []
        self.reports: list[AttemptReport] = []
        self.views: list[RunnerView] = []
        self.open = asyncio.Event()
        self.open.set()

    async def renew(self) -> bool:
        self.renewed += 1
        answer = self.renew_answers.pop(0) if self.renew_answers else self.default_renewal
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def report(self, report: AttemptReport) -> Reply:
        await self.open.wait()
        answer = self.report_answers.pop(0) if self.report_answers else ACCEPTED
        if isinstance(answer, Exception):
            raise answer
        if answer.accepted:
            self.reports.append(report)
        return answer

    async def ready(self) -> Reply:
        return ACCEPTED

    def changed(self, view: RunnerView) -> None:
        self.views.append(view)


class Attempt:
    """A hub with its tasks."""

    def __init__(self, kind: Kind = Kind.JOB) -> None:
        self.owners = FakeOwners()
        self.hub = AttemptHub(kind, grant(1), self.owners)
        self.tasks = [asyncio.create_task(self.hub.deliver_reports())]

    def keep_lease(self) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(self.hub.keep_lease()))
        return self.tasks[-1]


def grant(seats: int, stop: StopOrder | None = None) -> Grant:
    each = tuple(Seat("w", i, "n", "aa", i, Resources.of({"GPU": 1})) for i in range(seats))
    return Grant(WorkloadId("w"), 1, 0, each, stop, lease_s=LEASE_S)


STOP = StopOrder(StopCause.PREEMPTED, "room", 1.0, 2.0)


async def test_a_grant_gets_a_new_number_only_for_new_content() -> None:
    hub = Attempt().hub
    assert hub.update(grant(1)) == 1
    assert hub.update(grant(2)) == 2
    assert hub.update(replace(grant(2), version=77)) == 2
    assert hub.update(grant(2, STOP)) == 3
    assert hub.view.grant == replace(grant(2, STOP), version=3)


async def test_a_poll_is_answered_when_the_grant_changes_and_else_after_its_time() -> None:
    hub = Attempt().hub
    assert (await hub.wait_grant(0, 100.0)).version == 1
    assert (await hub.wait_grant(1, 0.05)).version == 1
    polls = [asyncio.create_task(hub.wait_grant(1, 100.0)) for _ in range(3)]
    await asyncio.sleep(0.02)
    hub.update(grant(2))
    assert [g.version for g in await asyncio.gather(*polls)] == [2, 2, 2]


async def test_a_refused_renewal_ends_the_attempt_for_every_reader() -> None:
    attempt = Attempt()
    attempt.owners.renew_answers = [True, True]
    attempt.owners.default_renewal = False
    poll = asyncio.create_task(attempt.hub.wait_grant(1, 100.0))
    await attempt.keep_lease()
    assert (await poll).lapsed
    assert attempt.hub.leased.is_set() and attempt.hub.lapsed.is_set()
    assert not await attempt.hub.report(StepReported(1, 0.0))
    assert (await attempt.hub.wait_grant(2**62, 100.0)).lapsed


async def test_silence_shorter_than_the_lease_is_survived_and_longer_is_not() -> None:
    attempt = Attempt()
    attempt.owners.renew_answers = [True, ConnectionError("restarting"), True]
    attempt.owners.default_renewal = ConnectionError("gone")
    await attempt.keep_lease()
    assert attempt.owners.renewed >= 4
    assert "did not answer" in attempt.hub.why_lapsed


async def test_an_attempt_that_is_fenced_from_the_start_is_never_leased() -> None:
    attempt = Attempt()
    attempt.owners.default_renewal = False
    await attempt.keep_lease()
    assert not attempt.hub.leased.is_set()


async def test_reports_arrive_in_order_and_only_the_newest_step_is_kept() -> None:
    attempt = Attempt()
    attempt.owners.open.clear()
    first = asyncio.create_task(attempt.hub.report(CheckpointCommitted(1, "a", 0.0)))
    await asyncio.sleep(0.02)
    for step in (2, 3):
        assert await attempt.hub.report(StepReported(step, 0.0))
    second = asyncio.create_task(attempt.hub.report(CheckpointCommitted(3, "b", 0.0)))
    await asyncio.sleep(0.02)
    await attempt.hub.report(StepReported(4, 0.0))
    await attempt.hub.report(DemandReported(1, 0, 0.0, "x"))
    await attempt.hub.report(DemandReported(1, 0, 0.0, "y"))
    await attempt.hub.report(DemandReported(5, 0, 0.0, "x"))
    await asyncio.sleep(0.02)
    attempt.owners.open.set()
    await attempt.hub.flush(10.0)
    assert await first and await second
    steps = [(type(r).__name__, getattr(r, "step", getattr(r, "ongoing", None))) for r in attempt.owners.reports]
    assert steps == [
        ("CheckpointCommitted", 1),
        ("CheckpointCommitted", 3),
        ("StepReported", 4),
        ("DemandReported", 1),
        ("DemandReported", 5),
    ]


async def test_a_report_survives_the_queue_owners_restart() -> None:
    attempt = Attempt()
    attempt.owners.report_answers = [ConnectionError("restarting"), Reply(False, "cluster", "", "disk full")]
    assert await attempt.hub.report(CheckpointCommitted(1, "a", 0.0))
    await attempt.hub.flush(10.0)
    assert attempt.owners.reports == [CheckpointCommitted(1, "a", 0.0)]


async def test_a_refused_report_fences_the_attempt() -> None:
    attempt = Attempt()
    attempt.owners.report_answers = [STALE]
    assert not await attempt.hub.report(CheckpointCommitted(1, "a", 0.0))
    assert attempt.hub.grant.lapsed


@pytest.mark.parametrize(("kind", "phase"), [(Kind.TRAIN, RunnerPhase.RUNNING), (Kind.SERVE, RunnerPhase.STARTING)])
async def test_training_has_begun_when_its_workers_are_up(kind: Kind, phase: RunnerPhase) -> None:
    attempt = Attempt(kind)
    await attempt.hub.report(WorkersStarted(2, 0.0))
    assert attempt.hub.view.phase is phase


async def test_the_controller_hears_of_every_change_once() -> None:
    attempt = Attempt()
    seats = (SeatInUse("w", "n", "aa"),)
    attempt.hub.begun()
    attempt.hub.begun()
    attempt.hub.update(grant(2))
    await attempt.hub.report(GrantApplied(2, 0.0))
    await attempt.hub.report(GrantApplied(1, 0.0))
    await attempt.hub.report(SeatsInUse(seats, 0.0))
    attempt.hub.ended(3, "done")
    told = [(v.phase, v.grant.version if v.grant else 0, v.applied_version, v.in_use) for v in attempt.owners.views]
    assert told == [
        (RunnerPhase.RUNNING, 1, 0, None),
        (RunnerPhase.RUNNING, 2, 0, None),
        (RunnerPhase.RUNNING, 2, 2, None),
        (RunnerPhase.RUNNING, 2, 2, seats),
        (RunnerPhase.ENDED, 2, 2, seats),
    ]
    assert attempt.hub.view.exit_code == 3 and attempt.hub.view.ended_s is not None


async def test_a_stop_counts_as_obeyed_when_the_work_has_left_under_that_very_order() -> None:
    attempt = Attempt(Kind.TRAIN)
    await attempt.hub.report(GrantApplied(1, 0.0))
    attempt.hub.update(grant(1, STOP))
    await attempt.hub.report(GrantApplied(1, 0.0))
    assert attempt.hub.left_s is None
    woken = asyncio.create_task(attempt.hub.wait_change(None))
    await asyncio.sleep(0)
    await attempt.hub.report(GrantApplied(2, 0.0))
    await woken
    assert attempt.hub.left_s is not None


async def test_what_the_processes_of_a_job_see_of_their_seats_adds_up_in_the_view_and_goes_no_further() -> None:
    attempt = Attempt(Kind.JOB)
    for device in (3, 1):
        seen = SeatInUse("", "n", "aa", devices=(device,))
        assert await attempt.hub.report(SeatsInUse((seen,), 0.0))
    assert attempt.hub.view.in_use == (SeatInUse("", "n", "aa", devices=(1, 3)),)
    await attempt.hub.flush(1.0)
    assert attempt.owners.reports == []
