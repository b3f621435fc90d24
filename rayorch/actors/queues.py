"""The actor that owns what waits. All rules are in `core.queues`; this shell journals, answers and keeps the time.

Accepted means durable: a command is answered when its events are on disk, and commands that come together share one
fsync. Refusals are values. Every method may be repeated: a command that finds its effect done is accepted again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray

from rayorch.actors import queue_parts as parts
from rayorch.actors import wire as wire
from rayorch.actors.collecting import collect_seldom
from rayorch.actors.cron import CRON_LOOK_S, cron_view, due_moments
from rayorch.actors.durable_tree import COMPACT_EVERY, DurableTree, Stage
from rayorch.actors.journal import Journal
from rayorch.actors.names import is_restart, owner_options, queues_name
from rayorch.actors.poke import Poker, controller_sender
from rayorch.actors.report_pacing import PACED, ReportPacer
from rayorch.actors.waiting import Waiters
from rayorch.config.calendar import check_schedule
from rayorch.core.codec import FORMAT_VERSION
from rayorch.core.cron import CronSpec, CronView
from rayorch.core.decisions import Stop, Watch
from rayorch.core.errors import RayorchError, SpecError
from rayorch.core.events import AttemptEnded, Event
from rayorch.core.listing import Place, check_limit, page
from rayorch.core.queues import NodeShape, QueueChanges, QueueTree
from rayorch.core.requests import (
    ACCEPTED,
    AttemptRef,
    CancelRequest,
    CordonRequest,
    DeleteQueueRequest,
    EntriesPage,
    EntriesRequest,
    EventsPage,
    EventsRequest,
    ListRequest,
    OwnerStatus,
    QueueModeRequest,
    Reply,
    ReportRequest,
    ResizeRequest,
    StartRequest,
    SubmitResult,
    UncordonRequest,
    WaitRequest,
    WorkloadPage,
    refusal,
)
from rayorch.core.retention import DEFAULT_RETENTION, Retention
from rayorch.core.timing import ReservationSpec
from rayorch.core.types import QueueId, QueueSpec, Resources, Workload, WorkloadId, WorkloadSpec

log = logging.getLogger(__name__)

REPORT_PERIOD_S = 1.0
"""Of one attempt's steps, and of its demand, at most one record in this time is written: the newest."""

FORGET_PERIOD_S = 60.0
"""Least time between two looks for ended workloads that need not be remembered any more."""

MAX_SUBMISSIONS = 10_000
TOGETHER = 250
"""So many are taken in without anybody else being answered in between."""
MAX_CALLS = 10_000
"""Calls at once: each workload that somebody waits for is one open call."""
MAX_WAIT_S = 60.0
"""The longest that one call waits for a change."""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """`expected_id`: the journal that must be found at `journal_path`; without it, `create` makes one if none is there.

    Whoever starts the owner asks `ensure_journal` for the id first, so that a restart can never make a new one.
    """

    journal_path: str
    instance: str = "main"
    expected_id: str | None = None
    create: bool = False
    compact_every: int = COMPACT_EVERY
    retention: Retention = DEFAULT_RETENTION


class QueueShell:
    """Commands and questions to the queue tree; see `core.requests` for what goes in and out."""

    def __init__(
        self,
        settings: QueueSettings,
        clock: Callable[[], float] = time.time,
        poke: Callable[[], None] | None = None,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """Reads the journal; raises JournalError, and does not serve, when it is not the expected one or damaged."""
        started = time.perf_counter()
        collect_seldom()
        self._settings = settings
        self._shapes: tuple[NodeShape, ...] = ()
        self._poker = Poker(poke or controller_sender(settings.instance))
        self._pacer = ReportPacer(REPORT_PERIOD_S)
        self._waiters = Waiters()
        self._flush: asyncio.Task[None] | None = None
        self._forgetting: asyncio.Task[None] | None = None
        self._forgot_s = float("-inf")
        self._order: tuple[int, list[Place]] = (-1, [])
        self._clock = clock
        self._cron_work: asyncio.Task[None] | None = None
        self._cron_next_s = 0.0
        journal = Journal.open(settings.journal_path, settings.expected_id, create=settings.create and not is_restart())
        try:
            self._tree = DurableTree(journal, clock, self._prepare, self._on_durable, settings.compact_every, ticks)
        except BaseException:
            journal.close()
            raise
        self._started_s = clock()
        self._recovery_s = time.perf_counter() - started
        log.info(
            "queue owner %s: journal %s at record %d, %d workloads, read in %.3f s",
            settings.instance, journal.journal_id, journal.sequence, len(self._tree.tree.workloads), self._recovery_s,
        )  # fmt: skip

    def _prepare(self, tree: QueueTree) -> None:
        """What a tree from the journal lacks: capacity, and leases, which count from now."""
        tree.set_capacity(self._shapes)
        tree.renew_all(self._clock())

    def _on_durable(self, events: tuple[Event, ...]) -> None:
        if any(parts.matters(event) for event in events):
            self._poker.poke()
        self._waiters.wake(events)
        if self._tree.now_s() - self._forgot_s >= FORGET_PERIOD_S:
            self._forgot_s = self._tree.now_s()
            self._forgetting = asyncio.get_running_loop().create_task(self._forget())

    async def _forget(self) -> None:
        reply = await self._command(lambda s: s.tree.forget_ended(s.now_s, self._settings.retention))
        if not reply.accepted:
            log.warning("ended workloads were not forgotten, again in %.0f s: %s", FORGET_PERIOD_S, reply.message)

    async def _command(self, check: Callable[[Stage], tuple[Event, ...]], settle: AttemptRef | None = None) -> Reply:
        """Check against the newest state, journal what follows, answer.

        `settle`: the attempt whose held reports are due first, because something final follows.
        """

        def command(stage: Stage) -> None:
            if settle is not None:
                stage.take(parts.still_true(stage, self._pacer.settle(settle)))
            stage.take(check(stage))

        try:
            await self._tree.run(command)
        except RayorchError as error:
            return refusal(error)
        return ACCEPTED

    async def _commands(
        self, checks: Sequence[Callable[[Stage], tuple[Event, ...]]], settle: Sequence[AttemptRef] = ()
    ) -> tuple[Reply, ...]:
        """The same for several, each on its own, in this order: they are one transaction of the journal, or some.

        `settle`: of each, the attempt whose held reports are due first.
        """

        def one(place: int, stage: Stage) -> None:
            if settle:
                stage.take(parts.still_true(stage, self._pacer.settle(settle[place])))
            stage.take(checks[place](stage))
            stage.settle()

        async def some(places: range) -> tuple[Reply, ...]:
            try:
                return await self._tree.run(lambda stage: tuple(parts.alone(stage, partial(one, p)) for p in places))
            except RayorchError as error:
                return tuple(refusal(error) for _ in places)

        replies = await asyncio.gather(*map(some, _runs(len(checks))))
        return tuple(reply for part in replies for reply in part)

    # ------------------------------------------------------------ crons

    def _look_at_crons(self) -> None:
        """Submit what schedules say; asked for whenever a reader comes, which the controller does all the time."""
        if self._tree.now_s() >= self._cron_next_s and (self._cron_work is None or self._cron_work.done()):
            self._cron_work = asyncio.get_running_loop().create_task(self._run_crons())

    async def _run_crons(self) -> None:
        """What follows from the time alone, and each cron's moments that have come; and when to look again."""
        next_s = self._tree.now_s() + CRON_LOOK_S
        await self._command(lambda s: ())
        for cron in tuple(self._tree.peek().crons.values()):
            now_s = self._tree.now_s()
            due = due_moments(cron, now_s)
            if due.moments:
                reply = await self._command(partial(parts.fired, cron.spec.id, due.moments))
                if not reply.accepted:
                    log.warning("cron %s was not looked at, again soon: %s", cron.spec.id, reply.message)
            next_s = min(next_s, due.next_s)
        self._cron_next_s = next_s

    @ray.method
    async def set_cron(self, spec: CronSpec) -> Reply:
        """Submit by a schedule from now on, or otherwise than before."""
        try:
            check_schedule(spec.schedule, spec.time_zone)
        except SpecError as error:
            return refusal(error)
        self._cron_next_s = 0.0
        return await self._command(lambda s: s.tree.set_cron(spec, s.now_s))

    @ray.method
    async def delete_cron(self, cron: str) -> Reply:
        """Submit no more of it; what was submitted goes on."""
        return await self._command(lambda s: s.tree.delete_cron(cron, s.now_s))

    @ray.method
    async def crons(self) -> tuple[CronView, ...]:
        """All of them, with what has come of each and when it is due next."""
        async with self._tree.reading() as tree:
            return tuple(cron_view(tree.crons[id], self._tree.now_s()) for id in sorted(tree.crons))

    # ------------------------------------------------------------ users

    @ray.method
    async def submit(self, spec: WorkloadSpec) -> SubmitResult:
        """Accept a workload or say which field is wrong; a repeat of the same spec is accepted."""
        return (await self._submit((spec,), tell=True))[0]

    @ray.method
    async def submit_many(self, specs: tuple[WorkloadSpec, ...]) -> tuple[SubmitResult, ...]:
        """Each on its own: one that is refused does not keep the others out. They share an fsync, many of them some."""
        if len(specs) > MAX_SUBMISSIONS:
            raise SpecError("specs", f"at most {MAX_SUBMISSIONS} at once, got {len(specs)}")
        return await self._submit(specs)

    async def _submit(self, specs: tuple[WorkloadSpec, ...], tell: bool = False) -> tuple[SubmitResult, ...]:
        answers = await asyncio.gather(*(self._admit(specs[r.start : r.stop], tell) for r in _runs(len(specs))))
        return tuple(result for answer in answers for result in answer)

    async def _admit(self, specs: tuple[WorkloadSpec, ...], tell: bool) -> tuple[SubmitResult, ...]:
        try:
            return await self._tree.run(lambda stage: tuple(parts.admit(stage, spec, tell) for spec in specs))
        except RayorchError as error:
            return tuple(SubmitResult(spec.id, refusal(error)) for spec in specs)

    @ray.method
    async def check(self, spec: WorkloadSpec) -> Reply:
        """What `submit` would answer to this workload, without accepting it."""
        try:
            async with self._tree.reading() as tree:
                tree.submit(spec, self._tree.now_s())
        except RayorchError as error:
            return refusal(error)
        return ACCEPTED

    @ray.method
    async def cancel(self, request: CancelRequest) -> Reply:
        """End a workload: at once if it waits, else its attempt is stopped first."""
        return await self._command(lambda s: s.tree.cancel(request.workload, request.reason, s.now_s))

    @ray.method
    async def set_queue(self, spec: QueueSpec) -> Reply:
        """Create a queue or replace its settings."""
        return await self._command(lambda s: s.tree.set_queue(spec, s.now_s))

    @ray.method
    async def set_queue_mode(self, request: QueueModeRequest) -> Reply:
        """Open, hold or drain a queue."""
        return await self._command(lambda s: s.tree.set_queue_mode(request.queue, request.mode, s.now_s))

    @ray.method
    async def delete_queue(self, request: QueueId | DeleteQueueRequest) -> Reply:
        """Remove a queue without children and living workloads; with `drain`, when the last of these has ended."""
        wanted = request if isinstance(request, DeleteQueueRequest) else DeleteQueueRequest(request)
        return await self._command(lambda s: s.tree.delete_queue(wanted.queue, s.now_s, wanted.drain))

    @ray.method
    async def set_countables(self, amounts: Resources) -> Reply:
        """What the cluster has as a whole and no node has."""
        return await self._command(lambda s: s.tree.set_countables(amounts, s.now_s))

    @ray.method
    async def set_reservation(self, spec: ReservationSpec) -> Reply:
        """Hold room in advance, or change what is held."""
        return await self._command(lambda s: s.tree.set_reservation(spec, s.now_s))

    @ray.method
    async def delete_reservation(self, reservation: str) -> Reply:
        """Hold it no longer; what runs in it goes on."""
        return await self._command(lambda s: s.tree.delete_reservation(reservation, s.now_s))

    @ray.method
    async def cordon(self, request: CordonRequest) -> Reply:
        """Nothing new on a node; with a deadline, what is there leaves."""
        return await self._command(lambda s: s.tree.cordon(request.node, request.reason, request.drain_by_s, s.now_s))

    @ray.method
    async def uncordon(self, request: UncordonRequest) -> Reply:
        """The node may take work again."""
        return await self._command(lambda s: s.tree.uncordon(request.node, request.reason, s.now_s))

    # ------------------------------------------------------------ the controller

    @ray.method
    async def commit_starts(self, requests: tuple[StartRequest, ...]) -> tuple[Reply, ...]:
        """Commits of starts, each on its own, in this order; "stale" where the facts have changed."""
        return await self._commands([partial(parts.start, request) for request in requests])

    @ray.method
    async def commit_stops(self, stops: tuple[Stop, ...]) -> tuple[Reply, ...]:
        """Order attempts to end, each on its own, in this order; durable before anyone is told."""
        refs = [AttemptRef(stop.workload, stop.attempt) for stop in stops]
        return await self._commands([partial(parts.stop, stop) for stop in stops], refs)

    @ray.method
    async def commit_watches(self, watches: tuple[Watch, ...]) -> tuple[Reply, ...]:
        """Note who shares GPUs with whom, each on its own."""
        return await self._commands([partial(parts.watch, watch) for watch in watches])

    @ray.method
    async def commit_resize(self, request: ResizeRequest) -> Reply:
        """Change the seats of a running attempt."""
        return await self._command(lambda s: s.tree.commit_resize(request.resize, request.members, s.now_s))

    @ray.method
    async def ready_many(self, attempts: tuple[AttemptRef, ...]) -> tuple[Reply, ...]:
        """The work of these attempts has begun, each on its own."""
        return await self._commands([partial(parts.ready, attempt) for attempt in attempts])

    @ray.method
    async def end_attempts(self, ended: tuple[AttemptEnded, ...]) -> tuple[Reply, ...]:
        """These attempts are over and hold nothing, each on its own."""
        refs = [AttemptRef(one.workload, one.attempt) for one in ended]
        return await self._commands([partial(parts.end, one) for one in ended], refs)

    @ray.method
    async def set_capacity(self, shapes: tuple[NodeShape, ...]) -> None:
        """What nodes can exist at most, for the door's check; in memory only."""
        self._shapes = shapes
        self._tree.peek().set_capacity(shapes)

    @ray.method
    async def set_half_life(self, half_life_s: float) -> Reply:
        """After so long, what was used counts half; the profile's, told whenever ours is another."""
        return await self._command(lambda s: s.tree.set_half_life(half_life_s, s.now_s))

    @ray.method
    async def changes_since(self, since: int | tuple[int, int]) -> QueueChanges:
        """What a reader's copy lacks; durable facts only.

        `since`: the copy's version, or (version, renewals); without renewals every renewed workload comes each time.
        """
        version, renewals = since if isinstance(since, tuple) else (since, 0)
        self._look_at_crons()
        self._tree.now_s()  # signs of life must not look old to a reader whose clock was set forward with ours
        async with self._tree.reading() as tree:
            return tree.changes_since(version, renewals)

    # ------------------------------------------------------------ attempts

    @ray.method
    async def renew(self, attempt: AttemptRef) -> bool:
        """A sign of life, in memory only. False: the attempt is fenced and must end itself at once."""
        return self._tree.peek().renew(attempt.workload, attempt.attempt, self._tree.now_s(), attempt.runner)

    @ray.method
    async def report(self, request: ReportRequest) -> Reply:
        """Take an attempt's report; "stale" tells its sender to end itself.

        A committed checkpoint is durable when this answers. Steps and demand that come more often than once in
        REPORT_PERIOD_S are held back; the newest is written.
        """
        if not self._pacer.passes(request, self._tree.now_s()):
            return self._hold(request)
        final = None if isinstance(request.report, PACED) else AttemptRef(request.workload, request.attempt)
        return await self._command(lambda s: parts.reported(s, request), settle=final)

    def _hold(self, request: ReportRequest) -> Reply:
        try:
            self._tree.peek().report(request.workload, request.attempt, request.report, self._tree.now_s())
        except RayorchError as error:
            return refusal(error)
        self._pacer.hold(request)
        if self._flush is None or self._flush.done():
            self._flush = asyncio.get_running_loop().create_task(self._flush_later())
        return ACCEPTED

    async def _flush_later(self) -> None:
        """Write what was held back, once a period, until nothing is."""
        while self._pacer:
            await asyncio.sleep(REPORT_PERIOD_S)
            await self._flush_now()

    async def _flush_now(self) -> None:
        held = self._pacer.due(self._tree.now_s())
        reply = await self._command(lambda s: parts.still_true(s, held))
        if not reply.accepted:
            log.warning("%d progress reports were not written: %s", len(held), reply.message)

    # ------------------------------------------------------------ questions

    @ray.method
    async def workload(self, workload: WorkloadId) -> Workload | None:
        """One workload, None when there is none of that id."""
        async with self._tree.reading() as tree:
            return tree.find(workload)

    @ray.method
    async def wait(self, request: WaitRequest) -> Workload | None:
        """The workload once it has come as far as asked, or as it is after `wait_s` (at most MAX_WAIT_S)."""
        give_up_s = time.monotonic() + min(request.wait_s, MAX_WAIT_S)
        while True:
            async with self._tree.reading() as tree:
                workload = tree.find(request.workload)
            left_s = give_up_s - time.monotonic()
            if workload is None or request.met(workload) or left_s <= 0:
                return workload
            await self._waiters.next_change(request.workload, left_s)

    @ray.method
    async def entries(self, request: EntriesRequest) -> EntriesPage:
        """Entries of an array by index. SpecError for a wrong limit, AdmissionError when there is no such array."""
        check_limit(request.limit)
        async with self._tree.reading() as tree:
            rows = tree.entries(request.array, request.first, request.limit + 1)
        more = len(rows) > request.limit
        return EntriesPage(rows[: request.limit], rows[request.limit].index if more else None)

    @ray.method
    async def list_workloads(self, request: ListRequest) -> WorkloadPage:
        """A page of workloads in the order of submission. SpecError for a wrong limit or cursor."""
        async with self._tree.reading() as tree:
            return page(tree.workloads, self._in_order(tree), request)

    def _in_order(self, tree: QueueTree) -> list[Place]:
        version, order = self._order
        if version != tree.version:
            order = sorted((w.submitted_s, w.id) for w in tree.workloads.values())
            self._order = (tree.version, order)
        return order

    @ray.method
    async def events_since(self, request: EventsRequest) -> EventsPage:
        """A page of the journal. SpecError for a wrong limit."""
        check_limit(request.limit)
        return await asyncio.to_thread(self._tree.journal.events, request.cursor, request.limit, request.workload)

    @ray.method
    async def version(self) -> int:
        """How many events have ever been applied."""
        async with self._tree.reading() as tree:
            return tree.version

    @ray.method
    async def ping(self) -> int:
        """The last durable record, as a sign of life; never waits for the disk."""
        return self._tree.journal.sequence

    @ray.method
    async def status(self) -> OwnerStatus:
        """How the owner is; never waits for the disk."""
        journal, tree = self._tree.journal, self._tree.tree
        return OwnerStatus(
            instance=self._settings.instance,
            journal_id=journal.journal_id,
            journal_path=str(journal.path),
            format_version=FORMAT_VERSION,
            version=tree.version,
            sequence=journal.sequence,
            snapshot_sequence=journal.snapshot_sequence,
            states=tuple(tree.states.items()),
            queues=len(tree.queues),
            started_s=self._started_s,
            recovery_s=self._recovery_s,
            journal_error=journal.failure,
        )

    @ray.method
    async def backup(self, target: str) -> int:
        """Copy the journal to a path on the owner's node; returns the last record in the copy. JournalError."""
        return await asyncio.to_thread(self._tree.journal.backup, target)

    @ray.method
    async def close(self) -> None:
        """Write what is held back and let go of the journal; the actor is of no use afterwards."""
        for task in (self._flush, self._forgetting, self._cron_work):
            if task is not None:
                task.cancel()
        await self._flush_now()
        await self._tree.close()


QueueActor = ray.remote(QueueShell)


def _runs(count: int) -> list[range]:
    """The places of so many commands, of those together that are taken in together."""
    return [range(first, min(count, first + TOGETHER)) for first in range(0, count, TOGETHER)]


def start_queue_owner(settings: QueueSettings, **options: Any) -> Any:
    """The instance's queue owner, created if it does not run; `options` (where it must run) go to Ray."""
    fixed = owner_options(queues_name(settings.instance))
    return QueueActor.options(**fixed, max_concurrency=MAX_CALLS, **options).remote(settings)
