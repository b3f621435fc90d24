"""What time does to the queue owner: a clock that is set, workloads that are forgotten, schedules that are due."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rayorch.core.cron import CronSpec
from rayorch.core.requests import ACCEPTED, CancelRequest, EntriesRequest
from rayorch.core.retention import Retention
from rayorch.core.timing import ArraySpec, ReservationSpec
from rayorch.core.types import Kind, Role, State, WorkloadId
from tests.actors.test_queue_shell import GPU1, QUEUE, Owner, owner, running, spec


async def test_a_clock_that_is_set_forward_ends_no_lease(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        await running(made, "a")
        made.clock.now_s += 3.0
        (seen,) = (await made.shell.changes_since(0)).workloads
        assert seen.lease_renewed_s == 1_000.0
        made.clock.now_s += 3_600.0
        made.asleep_s += 3_600.0
        changes = await made.shell.changes_since(((await made.shell.version()), 0))
        assert [w.lease_renewed_s for w in changes.workloads] == [made.clock.now_s]


async def test_ended_workloads_are_forgotten_now_and_then_and_stay_so_after_a_restart(tmp_path: Path) -> None:
    async with owner(tmp_path, retention=Retention(count=1, least_s=10.0)) as made:
        for name in ("a", "b"):
            await made.shell.submit(spec(name))
            await made.shell.cancel(CancelRequest(WorkloadId(name), "enough"))
            made.clock.now_s += 1.0
        made.clock.now_s += 100.0
        await made.shell.submit(spec("c"))  # any event gives the occasion
        assert made.shell._forgetting is not None
        await made.shell._forgetting
        assert await made.shell.workload(WorkloadId("a")) is None
        assert await made.shell.workload(WorkloadId("b")) is not None
        await made.restart()
        assert sorted(made.shell._tree.tree.workloads) == ["b", "c"]
        assert (await made.shell.submit(spec("a"))).reply == ACCEPTED


HOUR_S = 3_600.0


def nightly(**asked: object) -> CronSpec:
    return replace(CronSpec("nightly", "0 * * * *", spec("nightly")), **asked)  # type: ignore[arg-type]


async def looked(made: Owner) -> list[str]:
    """A reader comes; what has been submitted by then."""
    await made.shell.changes_since(0)
    assert made.shell._cron_work is not None
    await made.shell._cron_work
    return sorted(made.shell._tree.tree.workloads)


async def test_a_cron_submits_when_its_moment_has_come_and_not_again_after_a_restart(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        assert await made.shell.set_cron(nightly()) == ACCEPTED
        assert await looked(made) == []
        made.clock.now_s = HOUR_S + 1
        assert await looked(made) == ["nightly-19700101T0100Z"]
        await made.restart()
        assert await looked(made) == ["nightly-19700101T0100Z"]
        (view,) = await made.shell.crons()
        assert (view.cron.submitted, view.next_s) == (1, 2 * HOUR_S)
        assert await made.shell.delete_cron("nightly") == ACCEPTED
        assert not (await made.shell.delete_cron("nightly")).accepted


async def test_after_a_pause_a_cron_makes_up_for_the_last_moment(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        await made.shell.set_cron(nightly())
        made.clock.now_s = 30 * 86_400.0 + 1_800.0
        assert await looked(made) == ["nightly-19700131T0000Z"]
        (view,) = await made.shell.crons()
        assert view.cron.missed > 0


async def test_a_schedule_that_is_none_is_refused_by_its_field(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        assert (await made.shell.set_cron(nightly(schedule="whenever"))).field == "schedule"
        assert (await made.shell.set_cron(nightly(time_zone="Mars/Olympus"))).field == "time_zone"


async def test_arrays_entry_by_entry_and_reservations_through_the_door(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        assert (await made.shell.submit(spec("sweep", kind=Kind.JOB, array=ArraySpec(500, 2)))).reply == ACCEPTED
        assert await made.shell.cancel(CancelRequest(WorkloadId("sweep.499"), "not that one")) == ACCEPTED
        page = await made.shell.entries(EntriesRequest(WorkloadId("sweep"), 498, 1))
        assert ([row.index for row in page.entries], page.next_first) == ([498], 499)
        page = await made.shell.entries(EntriesRequest(WorkloadId("sweep"), 499, 10))
        assert ([row.state for row in page.entries], page.next_first) == ([State.CANCELLED], None)
        far = await made.shell.workload(WorkloadId("sweep.300"))
        assert far is not None
        room = ReservationSpec("r", QUEUE.id, GPU1, 2, 0.0, 9_000.0)
        assert await made.shell.set_reservation(room) == ACCEPTED
        assert (await made.shell.changes_since(0)).reservations == (room,)
        await made.restart()
        assert (await made.shell.changes_since(0)).reservations == (room,)
        refused = (await made.shell.submit(spec("big", reservation="r", roles=(Role("w", GPU1, 3, 3),)))).reply
        assert (refused.accepted, refused.field) == (False, "reservation")
