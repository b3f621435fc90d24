"""The queue owner without Ray: what it accepted is durable, what it shows is durable, what it refuses is a value."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rayorch.actors import queues
from rayorch.actors.journal import Journal, ensure_journal
from rayorch.actors.journal_format import Entry, JournalLocked, JournalMissing, JournalUnwritable
from rayorch.actors.queues import QueueSettings, QueueShell
from rayorch.actors.report_pacing import ReportPacer
from rayorch.core.codec import FORMAT_VERSION, decode_as, encode
from rayorch.core.decisions import Resize, Start, Stop
from rayorch.core.errors import ClusterError, SpecError
from rayorch.core.events import AttemptEnded, AttemptReady, Event, Reported
from rayorch.core.lifecycle import Move
from rayorch.core.payload import Payload
from rayorch.core.queues import NodeShape, QueueTree
from rayorch.core.reports import CheckpointCommitted, DemandReported, GrantApplied, StepReported
from rayorch.core.requests import (
    ACCEPTED,
    AttemptRef,
    CancelRequest,
    CordonRequest,
    EventsRequest,
    ListRequest,
    OwnerStatus,
    Reply,
    ReportRequest,
    ResizeRequest,
    StartRequest,
    UncordonRequest,
    WorkloadFilter,
)
from rayorch.core.snapshot import Versions
from rayorch.core.types import (
    Kind,
    Member,
    NodeId,
    QueueId,
    QueueSpec,
    Resources,
    Role,
    State,
    StopCause,
    StopOrder,
    WorkloadId,
    WorkloadSpec,
)

GPU1 = Resources.of({"GPU": 1})
QUEUE = QueueSpec(QueueId("research"))


async def one(replies: Awaitable[tuple[Reply, ...]]) -> Reply:
    """The reply to the only one of several."""
    (reply,) = await replies
    return reply


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


class Owner:
    """A queue owner on a journal of its own, with its clock and what it told the controller."""

    def __init__(self, path: Path, **settings: object) -> None:
        self.clock = Clock()
        self.asleep_s = 0.0  # by how much the clock was set forward
        self.pokes = 0
        self.settings = QueueSettings(str(path), create=True, **settings)  # type: ignore[arg-type]
        self.shell = QueueShell(self.settings, self.clock, self._poke, self.uptime)

    def _poke(self) -> None:
        self.pokes += 1

    def uptime(self) -> float:
        return self.clock.now_s - self.asleep_s

    async def restart(self) -> None:
        """End the shell without any goodbye but the lock's, and start another on the same files."""
        self.shell._tree.journal.close()
        self.shell = QueueShell(self.settings, self.clock, self._poke, self.uptime)

    @property
    def journal(self) -> Journal:
        return self.shell._tree.journal


@asynccontextmanager
async def owner(path: Path, **settings: object) -> AsyncIterator[Owner]:
    made = Owner(path / "journal.db", **settings)
    try:
        assert await made.shell.set_queue(QUEUE) == ACCEPTED
        yield made
    finally:
        await made.shell.close()


def spec(name: str, **changes: object) -> WorkloadSpec:
    values: dict[str, object] = {"queue": QUEUE.id, "kind": Kind.TRAIN, "roles": (Role("worker", GPU1, 1, 2),)}
    return WorkloadSpec(id=WorkloadId(name), name=name, **(values | changes))  # type: ignore[arg-type]


def start(name: str, attempt: int = 1, surplus: int = 0) -> StartRequest:
    members = tuple(Member("worker", i, NodeId("n1"), GPU1, surplus=i) for i in range(1 + surplus))
    return StartRequest(Start(WorkloadId(name), attempt, members, "fits"), Versions())


def report(name: str, what: StepReported | CheckpointCommitted | DemandReported | GrantApplied) -> ReportRequest:
    return ReportRequest(WorkloadId(name), 1, what)


async def running(made: Owner, name: str) -> AttemptRef:
    assert (await made.shell.submit(spec(name))).reply == ACCEPTED
    assert await one(made.shell.commit_starts((start(name),))) == ACCEPTED
    return AttemptRef(WorkloadId(name), 1)


async def events(made: Owner, workload: str | None = None) -> list[Event]:
    page = await made.shell.events_since(EventsRequest(0, 1000, None if workload is None else WorkloadId(workload)))
    return [recorded.event for recorded in page.events]


# ---------------------------------------------------------------- commands


async def test_what_was_accepted_is_there_after_a_restart(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        ref = await running(made, "a")
        await one(made.shell.ready_many((ref,)))
        await made.shell.submit(spec("b"))
        await made.shell.cordon(CordonRequest(NodeId("n2"), "sick", None))
        before = made.shell._tree.tree.dump()

        await made.restart()

        after = await made.shell.changes_since(0)
        assert (after.version, after.queues, after.cordons) == (before.version, before.queues, before.cordons)
        assert after.full
        assert [(w.id, w.state) for w in after.workloads] == [("a", State.RUNNING), ("b", State.PENDING)]
        workload = await made.shell.workload(WorkloadId("a"))
        assert workload is not None
        assert workload.ready_s == 1_000.0


async def test_a_repeat_is_accepted_and_writes_nothing(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        ref = await running(made, "a")
        await one(made.shell.ready_many((ref,)))
        written = await made.shell.ping()
        assert (await made.shell.submit(spec("a"))).reply == ACCEPTED
        assert await one(made.shell.commit_starts((start("a"),))) == ACCEPTED
        assert await one(made.shell.ready_many((ref,))) == ACCEPTED
        assert await made.shell.set_queue(QUEUE) == ACCEPTED
        assert await made.shell.uncordon(UncordonRequest(NodeId("n"), "")) == ACCEPTED
        assert await made.shell.ping() == written


async def test_a_batch_is_refused_item_by_item_with_the_field_named(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        results = await made.shell.submit_many(
            (
                spec("a"),
                spec("b", queue=QueueId("nowhere")),
                spec("a", priority=7),
                spec("c", roles=(Role("worker", GPU1, 0, 0),)),
                spec("d"),
            )
        )
        assert [(r.workload, r.reply.accepted) for r in results] == [
            ("a", True), ("b", False), ("a", False), ("c", False), ("d", True),
        ]  # fmt: skip
        assert [(r.reply.code, r.reply.field) for r in results if not r.reply.accepted][:2] == [
            ("rejected", "queue"), ("rejected", "id"),
        ]  # fmt: skip
        assert results[3].reply.code == "invalid"
        assert results[3].reply.field.startswith("roles")
        assert all(r.reply.message for r in results if not r.reply.accepted)
        assert sorted((await made.shell.changes_since(0)).workloads, key=lambda w: w.id)[0].spec.priority == 0


async def test_a_workload_that_the_journal_could_not_read_back_is_refused(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        bad, good = await made.shell.submit_many((spec("a", owner=3), spec("b")))
        assert (bad.reply.code, bad.reply.field) == ("invalid", "owner")
        assert good.reply == ACCEPTED
        assert await made.shell.workload(WorkloadId("a")) is None


async def test_too_many_submissions_at_once_are_refused(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        with pytest.raises(SpecError, match="at most"):
            await made.shell.submit_many((spec("a"),) * (queues.MAX_SUBMISSIONS + 1))


async def test_stale_commits_are_refused_as_values(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        await made.shell.submit(spec("a"))
        assert (await one(made.shell.commit_starts((start("a", attempt=2),)))).code == "stale"
        assert (await one(made.shell.commit_starts((start("unknown"),)))).code == "stale"
        assert (await one(made.shell.ready_many((AttemptRef(WorkloadId("a"), 1),)))).code == "stale"
        assert (await made.shell.cancel(CancelRequest(WorkloadId("unknown"), ""))).code == "rejected"
        assert (await made.shell.report(report("a", StepReported(1, 0.0)))).code == "stale"


async def test_an_attempt_from_start_to_end(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        ref = await running(made, "a")
        members = start("a", surplus=1).start.members
        grown = ResizeRequest(Resize(ref.workload, 1, members[1:], (), "room"), members)
        assert await made.shell.commit_resize(grown) == ACCEPTED
        order = StopOrder(StopCause.PREEMPTED, "for b", 1_000.0, 1_030.0, WorkloadId("b"))
        assert await one(made.shell.commit_stops((Stop(ref.workload, 1, order),))) == ACCEPTED
        ended = AttemptEnded(ref.workload, 1, Move.REQUEUED, StopCause.PREEMPTED, None, "for b", 0.0, 1_001.0)
        assert await one(made.shell.end_attempts((ended,))) == ACCEPTED
        assert await made.shell.cancel(CancelRequest(ref.workload, "enough")) == ACCEPTED
        assert await made.shell.delete_queue(QUEUE.id) == ACCEPTED
        workload = await made.shell.workload(ref.workload)
        assert workload is not None
        assert (workload.state, workload.preemptions) == (State.CANCELLED, 1)
        assert [type(event).__name__ for event in await events(made, "a")] == [
            "Submitted", "Started", "Resized", "StopOrdered", "AttemptEnded", "CancelRequested",
        ]  # fmt: skip


async def test_a_workload_beyond_every_node_is_refused_once_the_capacity_is_known(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        large = spec("large", roles=(Role("worker", Resources.of({"GPU": 16}), 1, 1),))
        await made.shell.set_capacity((NodeShape(Resources.of({"GPU": 8, "CPU": 8}), 4),))
        refused = (await made.shell.submit(large)).reply
        assert refused.code == "rejected"
        await made.shell.set_capacity(())
        assert (await made.shell.submit(large)).reply == ACCEPTED


# ---------------------------------------------------------------- one fsync for many


class Counting:
    """Counts the transactions of a journal."""

    def __init__(self, journal: Journal) -> None:
        self.batches: list[int] = []
        self._append = journal.append
        journal.append = self  # type: ignore[method-assign,assignment]

    def __call__(self, entries: Sequence[Entry]) -> int:
        self.batches.append(len(entries))
        return self._append(entries)


async def test_submissions_that_come_together_share_transactions(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        counting = Counting(made.journal)
        results = await asyncio.gather(*(made.shell.submit(spec(f"w{i}")) for i in range(200)))
        assert all(r.reply == ACCEPTED for r in results)
        assert sum(counting.batches) == 200
        assert len(counting.batches) <= 3


class StuckDisk:
    """Keeps the writing thread busy until it is let go."""

    def __init__(self, made: Owner) -> None:
        self._free = threading.Event()
        made.shell._tree._writer.submit(self._free.wait, 60.0)

    def let_go(self) -> None:
        self._free.set()


async def test_nobody_sees_or_hears_of_what_is_not_yet_durable(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        ref = await running(made, "a")
        sequence = await made.shell.ping()
        disk = StuckDisk(made)
        submission = asyncio.create_task(made.shell.submit(spec("b")))
        await asyncio.sleep(0.02)
        readers = [
            asyncio.create_task(made.shell.changes_since(0)),
            asyncio.create_task(made.shell.workload(WorkloadId("b"))),
            asyncio.create_task(made.shell.list_workloads(ListRequest())),
            asyncio.create_task(made.shell.version()),
        ]
        repeat = asyncio.create_task(made.shell.submit(spec("b")))
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in [submission, repeat, *readers])
        # What promises nothing durable does not wait for the disk.
        assert await made.shell.renew(ref)
        assert await made.shell.ping() == sequence
        assert len(await events(made)) == sequence
        assert made.pokes > 0
        pokes = made.pokes

        disk.let_go()
        assert (await submission).reply == ACCEPTED
        assert (await repeat).reply == ACCEPTED
        await asyncio.gather(*readers)
        assert await made.shell.ping() == sequence + 1
        await asyncio.sleep(0.05)
        assert made.pokes > pokes


async def test_a_caller_that_went_away_does_not_disturb_the_others(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        disk = StuckDisk(made)
        first = asyncio.create_task(made.shell.submit(spec("a")))
        await asyncio.sleep(0.02)
        second = asyncio.create_task(made.shell.submit(spec("b")))
        third = asyncio.create_task(made.shell.submit(spec("c")))
        await asyncio.sleep(0.02)
        first.cancel()
        second.cancel()
        await asyncio.sleep(0)
        disk.let_go()
        assert (await third).reply == ACCEPTED
        assert await made.shell.workload(WorkloadId("a")) is not None  # it was under way
        assert await made.shell.workload(WorkloadId("b")) is None  # it was not


async def test_a_defect_in_one_command_leaves_the_others_and_the_tree_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with owner(tmp_path) as made:
        disk = StuckDisk(made)
        opening = asyncio.create_task(made.shell.submit(spec("a")))
        await asyncio.sleep(0.02)
        before = asyncio.create_task(made.shell.submit(spec("b")))
        broken = asyncio.create_task(
            made.shell._command(
                lambda stage: (
                    *stage.tree.submit(spec("half"), 1.0),
                    AttemptReady(WorkloadId("nobody"), 1, 1.0),
                )
            )
        )
        after = asyncio.create_task(made.shell.submit(spec("c")))
        await asyncio.sleep(0.02)
        disk.let_go()
        with pytest.raises(KeyError):
            await broken
        assert [(await task).reply.accepted for task in (opening, before, after)] == [True] * 3
        assert "a command failed" in caplog.text
        assert [w.id for w in (await made.shell.changes_since(0)).workloads] == ["a", "b", "c"]
        live = made.shell._tree.tree.dump()
        await made.restart()
        assert made.shell._tree.tree.dump() == live


# ---------------------------------------------------------------- faults of the disk


def _payload(size: int) -> str:
    return Payload("x" * size).to_text()


async def test_a_full_disk_refuses_loses_nothing_and_recovers(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        ref = await running(made, "a")
        made.journal.set_page_limit(made.journal._writer.execute("PRAGMA page_count").fetchone()[0] + 4)
        accepted = ["a"]
        while (result := await made.shell.submit(spec(f"w{len(accepted)}", payload=_payload(3000)))).reply.accepted:
            accepted.append(result.workload)
        assert result.reply.code == "cluster"
        assert "full" in result.reply.message
        assert "full" in (await made.shell.status()).journal_error
        assert sorted(w.id for w in (await made.shell.changes_since(0)).workloads) == sorted(accepted)
        several = await made.shell.submit_many(tuple(spec(f"x{i}", payload=_payload(9000)) for i in range(20)))
        assert {r.reply.code for r in several} == {"cluster"}
        assert sorted(w.id for w in (await made.shell.changes_since(0)).workloads) == sorted(accepted)
        assert await made.shell.renew(ref)

        made.journal.set_page_limit(10_000)
        assert (await made.shell.submit(spec("late"))).reply == ACCEPTED
        assert (await made.shell.status()).journal_error == ""
        live = made.shell._tree.tree.dump()
        await made.restart()
        assert [w.id for w in made.shell._tree.tree.dump().workloads] == [w.id for w in live.workloads]


async def test_an_owner_does_not_start_on_another_journal_or_none_or_one_in_use(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with pytest.raises(JournalMissing):
        QueueShell(QueueSettings(str(path), expected_id="abc"))
    journal_id = ensure_journal(path)
    with pytest.raises(JournalMissing):
        QueueShell(QueueSettings(str(path), expected_id="abc"))
    shell = QueueShell(QueueSettings(str(path), expected_id=journal_id))
    with pytest.raises(JournalLocked):
        Journal.open(path, lock_wait_s=0.0)
    await shell.close()


async def test_the_tree_is_not_shown_while_it_can_not_be_rebuilt(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        await made.shell.submit(spec("a"))
        made.shell._tree._stale = "the disk is gone"
        with pytest.raises(ClusterError, match="the disk is gone"):
            await made.shell.changes_since(0)
        assert (await made.shell.submit(spec("b"))).reply == ACCEPTED  # a command tries to rebuild it first
        assert len((await made.shell.changes_since(0)).workloads) == 2


# ---------------------------------------------------------------- reports and leases


async def test_a_thousand_steps_are_a_few_records_and_the_last_one_counts(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        ref = await running(made, "a")
        for step in range(1, 1001):
            assert await made.shell.report(report("a", StepReported(step, 0.0))) == ACCEPTED
        steps = [e for e in await events(made, "a") if isinstance(e, Reported)]
        assert [e.report for e in steps] == [StepReported(1, 0.0)]

        # A commit of a checkpoint brings what was held with it, in order, and is there when it is acknowledged.
        assert await made.shell.report(report("a", CheckpointCommitted(900, "/c", 0.0))) == ACCEPTED
        reports = [e.report for e in await events(made, "a") if isinstance(e, Reported)]
        assert reports[1:] == [StepReported(1000, 0.0), CheckpointCommitted(900, "/c", 0.0)]
        await made.restart()
        workload = await made.shell.workload(ref.workload)
        assert workload is not None
        assert workload.checkpoint is not None
        assert (workload.step, workload.checkpoint.step) == (1000, 900)


async def test_held_steps_are_written_after_the_period(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "REPORT_PERIOD_S", 0.05)
    async with owner(tmp_path) as made:
        await running(made, "a")
        for step in (1, 2, 3):
            await made.shell.report(report("a", StepReported(step, 0.0)))
        while (workload := await made.shell.workload(WorkloadId("a"))) and workload.step < 3:
            await asyncio.sleep(0.01)
        assert [e.report for e in await events(made, "a") if isinstance(e, Reported)] == [
            StepReported(1, 0.0),
            StepReported(3, 0.0),
        ]


async def test_held_steps_are_written_before_the_attempt_ends(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        ref = await running(made, "a")
        for step in (1, 2, 3):
            await made.shell.report(report("a", StepReported(step, 0.0)))
        ended = AttemptEnded(ref.workload, 1, Move.SUCCEEDED, None, 0, "done", 0.0, 1_001.0)
        assert await one(made.shell.end_attempts((ended,))) == ACCEPTED
        assert [type(e).__name__ for e in await events(made, "a")][-2:] == ["Reported", "AttemptEnded"]
        assert (await made.shell.report(report("a", StepReported(4, 0.0)))).code == "stale"
        assert (await made.shell.report(report("a", CheckpointCommitted(4, "/c", 0.0)))).code == "stale"


def test_the_pacer_lets_one_of_each_kind_and_attempt_pass_in_a_period() -> None:
    pacer = ReportPacer(1.0)
    first, second = report("a", StepReported(1, 0.0)), report("a", StepReported(2, 0.0))
    assert pacer.passes(first, 0.0)
    assert not pacer.passes(second, 0.9)
    pacer.hold(second)
    assert pacer.passes(report("a", DemandReported(1, 0, 0.0)), 0.9)
    assert pacer.passes(report("b", StepReported(1, 0.0)), 0.9)
    assert pacer.passes(report("a", GrantApplied(1, 0.0)), 0.9)
    assert pacer.passes(report("a", GrantApplied(2, 0.0)), 0.9)
    assert not pacer.passes(first, 5.0)  # one is held, and the newer one must not be overtaken
    assert pacer.due(5.0) == (second,)
    assert not pacer
    assert not pacer.passes(first, 5.5)
    assert pacer.passes(first, 6.0)
    assert pacer.settle(AttemptRef(WorkloadId("a"), 1)) == ()
    assert pacer.passes(first, 6.0)


async def test_only_the_current_attempt_can_renew_its_lease(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        ref = await running(made, "a")
        made.clock.now_s = 1_005.0
        assert await made.shell.renew(ref)
        assert not await made.shell.renew(AttemptRef(ref.workload, 2))
        assert not await made.shell.renew(AttemptRef(WorkloadId("x"), 1))
        first, second = (replace(ref, runner=name) for name in ("first", "second"))
        assert await made.shell.renew(first) and await made.shell.renew(first)
        assert not await made.shell.renew(second)  # made by a start that came twice, when the first had died
        workload = await made.shell.workload(ref.workload)
        assert workload is not None
        assert workload.lease_renewed_s == 1_005.0
        made.clock.now_s = 900.0  # a clock that is set back takes nobody's lease away
        assert await made.shell.renew(ref)
        workload = await made.shell.workload(ref.workload)
        assert workload is not None
        assert workload.lease_renewed_s == 1_005.0


async def test_a_reader_may_ask_for_new_renewals_only(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        first, second = await running(made, "a"), await running(made, "b")
        await made.shell.renew(first)
        await made.shell.renew(second)
        seen = await made.shell.changes_since(0)
        await made.shell.renew(second)
        since = (seen.version, seen.renewals)
        assert [w.id for w in (await made.shell.changes_since(since)).workloads] == ["b"]
        assert [w.id for w in (await made.shell.changes_since(seen.version)).workloads] == ["a", "b"]


async def test_after_a_restart_every_lease_counts_from_the_restart(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        ref = await running(made, "a")
        made.clock.now_s = 2_000.0
        await made.restart()
        workload = await made.shell.workload(ref.workload)
        assert workload is not None
        assert workload.lease_renewed_s == 2_000.0


async def test_the_controller_is_poked_for_what_it_can_act_on(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:

        async def pokes_of(command: object) -> int:
            await asyncio.sleep(0.02)
            before = made.pokes
            await command  # type: ignore[misc]
            await asyncio.sleep(0.02)
            return made.pokes - before

        assert await pokes_of(made.shell.submit(spec("a"))) == 1
        assert await pokes_of(made.shell.submit(spec("a"))) == 0
        assert await pokes_of(one(made.shell.commit_starts((start("a"),)))) == 1
        assert await pokes_of(made.shell.report(report("a", StepReported(1, 0.0)))) == 0
        assert await pokes_of(made.shell.report(report("a", CheckpointCommitted(1, "/c", 0.0)))) == 0
        assert await pokes_of(made.shell.report(report("a", GrantApplied(2, 0.0)))) == 1
        assert await pokes_of(made.shell.cordon(CordonRequest(NodeId("n"), "sick"))) == 1


async def test_a_controller_that_can_not_be_poked_does_no_harm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ClusterError("no connection")

    shell = QueueShell(QueueSettings(str(tmp_path / "j.db"), create=True), poke=fail)
    assert await shell.set_queue(QUEUE) == ACCEPTED
    await asyncio.sleep(0.05)
    assert "could not be poked" in caplog.text
    await shell.close()


# ---------------------------------------------------------------- questions


async def test_lists_come_in_pages_in_the_order_of_submission(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        names = ["c", "a", "e", "b", "d"]
        for name in names:
            made.clock.now_s += 1.0
            await made.shell.submit(spec(name, owner="me" if name in "abc" else "you"))

        async def listed(request: ListRequest) -> list[str]:
            found: list[str] = []
            while True:
                page = await made.shell.list_workloads(request)
                assert len(page.workloads) <= request.limit
                found += [w.id for w in page.workloads]
                if not page.next_cursor:
                    return found
                request = ListRequest(request.filter, request.limit, page.next_cursor, request.newest_first)
                await made.shell.submit(spec("z"))  # a newcomer in between disturbs no page

        assert await listed(ListRequest(limit=10)) == names
        assert await listed(ListRequest(limit=2)) == [*names, "z"]
        assert await listed(ListRequest(limit=2, newest_first=True)) == ["z", *reversed(names)]
        assert await listed(ListRequest(WorkloadFilter(owner="me"), limit=2)) == ["c", "a", "b"]
        assert await listed(ListRequest(WorkloadFilter(queue=QueueId("research")), limit=100)) == [*names, "z"]
        assert await listed(ListRequest(WorkloadFilter(queue=QueueId("res")), limit=100)) == []
        await made.shell.cancel(CancelRequest(WorkloadId("e"), "no"))
        assert await listed(ListRequest(WorkloadFilter(states=(State.CANCELLED,)))) == ["e"]
        assert await listed(ListRequest(WorkloadFilter(kinds=(Kind.SERVE,)))) == []
        assert await listed(ListRequest(WorkloadFilter(name="b"))) == ["b"]
        for wrong in (
            ListRequest(limit=0),
            ListRequest(limit=100_000),
            ListRequest(cursor="nonsense"),
            ListRequest(cursor="nan a"),
        ):
            with pytest.raises(SpecError):
                await made.shell.list_workloads(wrong)
        with pytest.raises(SpecError):
            await made.shell.events_since(EventsRequest(limit=-1))


async def test_a_reader_that_follows_the_changes_has_the_same_as_the_owner(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        first = await made.shell.changes_since(0)
        copy = {w.id: w for w in first.workloads}
        version = first.version
        for i in range(12):
            await made.shell.submit(spec(f"w{i}"))
            if i % 3 == 0:
                await one(made.shell.commit_starts((start(f"w{i}"),)))
            if i % 4 == 0:
                await made.restart()
            changes = await made.shell.changes_since(version)
            version = changes.version
            copy.update({w.id: w for w in changes.workloads})
        assert copy == {w.id: w for w in (await made.shell.changes_since(0)).workloads}


async def test_the_status_tells_the_journal_and_the_counts(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        await running(made, "a")
        await made.shell.submit(spec("b"))
        status = await made.shell.status()
        assert dict(status.states)[State.PENDING] == 1
        assert dict(status.states)[State.RUNNING] == 1
        assert (status.sequence, status.version, status.queues) == (4, 4, 1)
        assert status.journal_id == made.journal.journal_id
        assert decode_as(OwnerStatus, encode(status)) == status


# ---------------------------------------------------------------- compaction and backup


async def test_compaction_goes_on_beside_the_work_and_changes_nothing(tmp_path: Path) -> None:
    async with owner(tmp_path, compact_every=10) as made:
        for i in range(60):
            await made.shell.submit(spec(f"w{i:02d}"))
        while made.shell._tree._compacting:
            await asyncio.sleep(0.01)
        status = await made.shell.status()
        assert 0 < status.snapshot_sequence <= status.sequence == 61
        page = await made.shell.events_since(EventsRequest(0, 1000))
        assert page.oldest > 1
        assert [e.sequence for e in page.events] == list(range(page.oldest, 62))
        live = made.shell._tree.tree.dump()
        await made.restart()
        assert made.shell._tree.tree.dump() == live


async def test_a_backup_holds_what_was_accepted(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        await made.shell.submit_many(tuple(spec(f"w{i}") for i in range(20)))
        target = tmp_path / "backup" / "journal.db"
        target.parent.mkdir()
        assert await made.shell.backup(str(target)) == 21
        await made.shell.submit(spec("later"))
        copy = Journal.open(target, expected_id=made.journal.journal_id)
        tree = QueueTree()
        for recorded in copy.recover().events:
            tree.apply(recorded.event)
        copy.close()
        assert len(tree.workloads) == 20


# ---------------------------------------------------------------- any order of faults


class FlakyDisk:
    """Stands before a journal's `append`: refuses some batches, of which some had already reached the disk."""

    def __init__(self, journal: Journal, rng: random.Random) -> None:
        self._journal = journal
        self._rng = rng
        self._append = journal.append
        self.refused = 0
        journal.append = self  # type: ignore[method-assign,assignment]

    def __call__(self, entries: Sequence[Entry]) -> int:
        fate = self._rng.random()
        if fate > 0.4:
            return self._append(entries)
        self.refused += 1
        if fate < 0.2:  # written, but its fsync failed
            with sqlite3.connect(self._journal.path) as other:
                for place, entry in enumerate(entries, start=self._journal.sequence + 1):
                    row = (place, FORMAT_VERSION, entry.workload, entry.body, b"unknown")
                    other.execute("INSERT INTO record VALUES (?, ?, ?, ?, ?)", row)
            other.close()
        self._journal._failure = "injected"
        raise JournalUnwritable("injected")


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_the_disk_refuses_only_what_was_accepted_is_there(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with owner(tmp_path, compact_every=15) as made:
        accepted: set[str] = set()
        started: set[str] = set()
        disks = [FlakyDisk(made.journal, rng)]
        for round_ in range(25):
            names = [f"w{round_}-{i}" for i in range(rng.randint(1, 5))]
            results = await asyncio.gather(*(made.shell.submit(spec(name)) for name in names))
            accepted |= {r.workload for r in results if r.reply.accepted}
            for name in rng.sample(sorted(accepted - started), min(2, len(accepted - started))):
                if (await one(made.shell.commit_starts((start(name),)))).accepted:
                    started.add(name)
            shown = (await made.shell.changes_since(0)).workloads
            assert {w.id for w in shown} == accepted
            assert {w.id for w in shown if w.state is State.RUNNING} == started
            if rng.random() < 0.2:
                while made.shell._tree._tasks:
                    await asyncio.gather(*made.shell._tree._tasks)
                before = await made.shell.version()
                await made.restart()
                assert await made.shell.version() == before
                disks.append(FlakyDisk(made.journal, rng))
        assert accepted
        assert sum(disk.refused for disk in disks) > 5
        while made.shell._tree._tasks:
            await asyncio.gather(*made.shell._tree._tasks)
        await made.restart()
        shown = (await made.shell.changes_since(0)).workloads
        assert {w.id for w in shown} == accepted
        assert {w.id for w in shown if w.state is State.RUNNING} == started
