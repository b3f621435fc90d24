"""What waits and what was promised: queues, workloads, attempts, cordons. One owner, one writer.

Commands look at the newest state and *return* the events that make them true; they change nothing. `apply` is the
only mutator, live and at replay. The owner journals the events of a command, applies them before it looks at the
next command, and answers (also reads) only when they are durable. An empty tuple means that there is nothing to do,
which is how a repeated command is harmless.

    events = tree.submit(spec, now_s)
    for event in events: journal.append(event); tree.apply(event)
    await journal.flushed()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rayorch.core.admission import NodeShape as NodeShape
from rayorch.core.admission import check_fits_ever, check_own, check_workload, most_gpus
from rayorch.core.asked import AskedBook
from rayorch.core.attempts import WorkloadEvent, accepted, advance, seats_only
from rayorch.core.budgets import BudgetUse
from rayorch.core.calendar_tree import CalendarTree
from rayorch.core.cell_checks import CellIndex
from rayorch.core.changes import ChangeLog
from rayorch.core.commits import STRENGTH as STRENGTH
from rayorch.core.commits import check_open, check_start, is_news, resized, started, stronger, watched
from rayorch.core.deadlines import Deadlines
from rayorch.core.decisions import Resize, Start, Stop, Watch
from rayorch.core.dependencies import Dependents
from rayorch.core.door import Door
from rayorch.core.errors import AdmissionError, StalePlanError, TransitionError
from rayorch.core.events import (
    Accompanied,
    AttemptEnded,
    AttemptReady,
    CancelRequested,
    CountablesSet,
    CronDeleted,
    CronLooked,
    CronSet,
    Event,
    Forgotten,
    HalfLifeSet,
    NodeCordoned,
    NodeUncordoned,
    QueueDeleted,
    QueueSet,
    Reported,
    ReservationDeleted,
    ReservationSet,
    Started,
    StopOrdered,
    Submitted,
)
from rayorch.core.history_book import HistoryBook
from rayorch.core.joint import JointIndex, check_joint_start
from rayorch.core.lifecycle import Move
from rayorch.core.node_commands import NodeCommands
from rayorch.core.queue_commands import QueueCommands
from rayorch.core.renewals import Renewals
from rayorch.core.reports import AttemptReport
from rayorch.core.reservations import ReservationBook, check_use
from rayorch.core.retention import Retention, to_forget
from rayorch.core.service import held
from rayorch.core.snapshot import Versions
from rayorch.core.tree_state import QueueChanges as QueueChanges
from rayorch.core.tree_state import TreeState as TreeState
from rayorch.core.types import (
    LIVE,
    Member,
    QueueId,
    QueueSpec,
    Resources,
    State,
    StopCause,
    StopOrder,
    Workload,
    WorkloadId,
    WorkloadSpec,
    charge_of,
)
from rayorch.core.wellformed import check_seconds, check_text


class QueueTree(QueueCommands, CalendarTree, NodeCommands):
    """See the module's docstring. `version` counts the events ever applied and survives restarts."""

    def __init__(self) -> None:
        super().__init__()
        self._version = 0
        self._queues_version = 0
        self._known_queues: tuple[QueueSpec, ...] = ()
        self._shapes: tuple[NodeShape, ...] = ()
        self._log: ChangeLog[WorkloadId] = ChangeLog()
        self._renewals = Renewals()
        self._dependents = Dependents()
        self._deadlines = Deadlines()
        self._joint = JointIndex()
        self._cells = CellIndex()
        self._history = HistoryBook()
        self._asked = AskedBook()
        self._door = Door()
        self._states = dict.fromkeys(State, 0)

    # ------------------------------------------------------------ reading

    @property
    def version(self) -> int:
        """How many events have been applied."""
        return self._version

    @property
    def workloads(self) -> Mapping[WorkloadId, Workload]:
        """All workloads, ended ones too until they are forgotten."""
        return self._workloads

    @property
    def states(self) -> Mapping[State, int]:
        """How many workloads are in each state."""
        return self._states

    @property
    def placements(self) -> Mapping[WorkloadId, tuple[Member, ...]]:
        """The committed seats of every live attempt; O(n)."""
        return {id: w.placement for id, w in self._workloads.items() if w.state in LIVE}

    def used(self, queue: QueueId) -> Resources:
        """What live attempts in the queue and below it were committed to."""
        return self._books.quota.used(queue)

    def pending(self, queue: QueueId) -> int:
        """How many workloads wait in the queue and below it."""
        return self._books.pending(queue)

    @property
    def budgets(self) -> tuple[BudgetUse, ...]:
        """What is spent of each queue's budget."""
        return self._books.budgets

    def changes_since(self, version: int, renewals: int = 0, near: bool = False) -> QueueChanges:
        """What a reader with this version lacks; O(changes). Version 0, or one from another history, gives all.

        `near`: the reader is in this process, so that nothing need be small (`HistoryBook.changes_since`).
        """
        known = version if version <= self._version else 0
        changed = self._log.since(known) if known == version else None
        gone: list[WorkloadId] = []
        if changed is None:
            ids = set(self._workloads)
        else:
            ids = {id for id in changed if id in self._workloads}
            gone = sorted([id for id in changed if id not in ids]) if len(ids) < len(changed) else []
            ids.update(self._renewals.since(renewals))
        return QueueChanges(
            version=self._version,
            full=changed is None,
            queues=self._queues_since(version if changed is not None else 0),
            workloads=tuple([self._workloads[id] for id in sorted(ids)]),
            cordons=tuple([self._cordons[id] for id in sorted(self._cordons)]),
            renewals=self._renewals.count,
            forgotten=tuple([id for id in gone if self._arrays.of_entry(id) is None]),
            reservations=self._reservations.sorted,
            folded=tuple([id for id in gone if self._arrays.of_entry(id) is not None]),
            budgets=self._books.budgets,
            countables=self._books.countables,
            history=self._history.changes_since(known, near),
            asked=self._asked.changes_since(known),
        )

    def dump(self) -> TreeState:
        """Everything, sorted by id."""
        return TreeState(
            version=self._version,
            queues=self._books.sorted,
            workloads=tuple(self._workloads[id] for id in sorted(self._workloads)),
            cordons=tuple(self._cordons[id] for id in sorted(self._cordons)),
            budgets=self._books.budgets,
            countables=self._books.countables,
            history=self._history.state(),
            asked=self._asked.state(),
            arrays=tuple(self._arrays.books[id].state() for id in sorted(self._arrays.books)),
            reservations=self._reservations.sorted,
            crons=tuple(self._crons[id] for id in sorted(self._crons)),
        )

    @staticmethod
    def restore(state: TreeState) -> QueueTree:
        """The tree that `dump` described."""
        tree = QueueTree()
        tree._log = ChangeLog(floor=state.version - 1)  # what was forgotten before that, nobody knows any more
        tree._version = state.version - 1  # so that everything counts as changed by the last event
        tree._cordons = {cordon.node: cordon for cordon in state.cordons}
        tree._books.restore(state.queues, state.countables)
        tree._reservations = ReservationBook(state.reservations)
        tree._crons = {cron.spec.id: cron for cron in state.crons}
        tree._arrays.restore(state.arrays, state.workloads)
        for workload in sorted(state.workloads, key=lambda w: (w.sequence, w.submitted_s, w.id)):
            tree._put(workload, workload.started_s or workload.submitted_s)
        tree._books.restore_budgets(state.budgets)
        if state.history is not None:
            tree._history = HistoryBook(state.history, state.version - 1)
        tree._asked = AskedBook(state.asked, state.version)
        tree._version = state.version
        return tree

    # ------------------------------------------------------------ queues and nodes

    def set_capacity(self, shapes: tuple[NodeShape, ...]) -> None:
        """What nodes can exist at most, for the door's never-fits check; empty: unknown, all is accepted."""
        self._shapes = shapes

    # ------------------------------------------------------------ users

    def submit(self, spec: WorkloadSpec, now_s: float) -> tuple[Event, ...]:
        """Accept a workload. SpecError or AdmissionError with the field; the same id and spec again is nothing new."""
        alike = self._door.knows(spec, self._books.idle, self._shapes)
        check_own(spec) if alike else check_workload(spec)
        known = self.find(spec.id)
        if known is not None:
            if (known.asked or known.spec) == spec:
                return ()
            raise AdmissionError("id", f"another workload with the id {spec.id!r} exists, or ended not long ago")
        self._books.check_entry(spec)
        self._check_dependencies(spec)
        self._check_entry_ids(spec)
        if spec.reservation:
            check_use(spec, self._reservations.specs.get(spec.reservation), now_s)
        if not alike:
            check_fits_ever(spec, self._books.idle, self._shapes)
            self._door.passed(spec, self._books.idle, self._shapes)
        if spec.deadline_s is not None:
            self._deadlines.check(spec, now_s, most_gpus(self._shapes))
        return (Submitted(spec, now_s),)

    def cancel(self, id: WorkloadId, reason: str, now_s: float) -> tuple[Event, ...]:
        """End a workload: at once if it waits, else its attempt is stopped first. AdmissionError if it is unknown."""
        check_text(reason, "reason")
        workload = self.find(id)
        if workload is None:
            raise AdmissionError("id", f"workload {id!r} does not exist")
        if workload.state.terminal or workload.cancel_requested:
            return ()
        book = self._arrays.books.get(id)
        listed = [book.id_of(index) for index in sorted(book.remembered)] if book is not None else []
        alive = [entry for entry in listed if not self._workloads[entry].state.terminal]
        return tuple(CancelRequested(one, reason, now_s) for one in (id, *alive))

    def set_half_life(self, half_life_s: float, now_s: float) -> tuple[Event, ...]:
        """From now on what was used counts half after so long; 0: it does not decay. SpecError."""
        check_seconds(half_life_s, "half_life_s")
        return () if half_life_s == self._history.half_life_s else (HalfLifeSet(half_life_s, now_s),)

    def forget_ended(self, now_s: float, retention: Retention) -> tuple[Event, ...]:
        """Remember ended workloads no longer than that."""
        ids = to_forget(self._workloads.values(), now_s, retention)
        return (Forgotten(ids, now_s),) if ids else ()

    def due(self, now_s: float) -> tuple[Event, ...]:
        """What follows by itself from what has happened; whoever applies events asks until there is nothing more."""
        if not self._deadlines.watches and not self._dependents.doomed and not self._reservations.specs:
            return ()
        doomed = {**self._deadlines.missed(now_s), **self._dependents.doomed}
        cancelled = tuple(CancelRequested(id, reason, now_s) for id, reason in doomed.items())
        return (*cancelled, *self._reservations.over(now_s))

    # ------------------------------------------------------------ commits of the controller

    def commit_start(
        self, start: Start, versions: Versions, now_s: float, partners: tuple[Start, ...] = ()
    ) -> tuple[Event, ...]:
        """The commit of a start: from here on the attempt exists. StalePlanError when the facts have changed.

        `partners`: the starts of the rest of its joint gang; all of them are committed or none.
        """
        starting = {start.workload, *(other.workload for other in partners)}
        events: list[Started] = []
        for one in (start, *partners):
            events += self._commit_start(one, versions, now_s, starting, events)
        if len(events) > 1:
            self._books.check_together([(self._known(e.workload), charge_of(e.members)) for e in events], now_s)
        return tuple(events)

    def _commit_start(
        self, start: Start, versions: Versions, now_s: float, starting: set[WorkloadId], beside: Sequence[Started]
    ) -> tuple[Started, ...]:
        workload = self._known(start.workload)
        placement = seats_only(start.members)
        if workload.state in LIVE and workload.attempt == start.attempt and workload.placement == placement:
            return ()
        check_start(workload, start, now_s)
        check_open(placement, self._cordons)
        check_joint_start(workload, [self._workloads[id] for id in self._joint.of(workload.spec)], starting)
        self._check_cap(workload)
        if start.cell:
            self._cells.check(start, placement, self._workloads, self._books.specs, beside)
        self._books.check_start(workload, charge_of(placement), 1, now_s)
        return (started(start, placement, versions, now_s),)

    def commit_stop(self, stop: Stop, now_s: float) -> tuple[Event, ...]:
        """Order an attempt to end. StalePlanError when that attempt is not the current one."""
        workload = self._known(stop.workload)
        if workload.attempt > stop.attempt or (workload.attempt == stop.attempt and workload.state not in LIVE):
            return ()  # over already, which is what was wanted
        self._current(workload, stop.attempt)
        if workload.stop is not None and not stronger(stop.order, workload.stop):
            return ()
        return (StopOrdered(workload.id, stop.attempt, stop.order, now_s),)

    def commit_resize(self, resize: Resize, members: tuple[Member, ...], now_s: float) -> tuple[Event, ...]:
        """Change the seats of a running attempt to `members`. StalePlanError when it is not running or over quota."""
        workload = self._known(resize.workload)
        if workload.state is not State.RUNNING or workload.attempt != resize.attempt:
            raise StalePlanError(
                f"{workload.id} is {workload.state.value} in attempt {workload.attempt},"
                f" can't resize attempt {resize.attempt}"
            )
        placement = seats_only(members)
        if placement == workload.placement:
            return ()
        check_open(resize.add, self._cordons)
        added = charge_of(placement) - charge_of(workload.placement)
        self._books.check_start(workload, added.floor_zero(), 0, now_s)
        return (resized(resize, placement, now_s),)

    def ready(self, id: WorkloadId, attempt: int, now_s: float) -> tuple[Event, ...]:
        """The attempt's work has begun."""
        workload = self._current(self._known(id), attempt)
        return () if workload.ready_s is not None else (AttemptReady(id, attempt, now_s),)

    def end_attempt(self, ended: AttemptEnded) -> tuple[Event, ...]:
        """The attempt is over. What was cancelled in the meantime is cancelled instead of requeued."""
        workload = self._known(ended.workload)
        over = workload.attempt == ended.attempt and workload.state not in LIVE
        if over or workload.attempt > ended.attempt:
            return ()
        self._current(workload, ended.attempt)
        if ended.move is Move.REQUEUED and (workload.cancel_requested or self._books.going(workload.spec.queue)):
            ended = replace(ended, move=Move.CANCELLED, cause=StopCause.CANCELLED)
        if ended.move is Move.CANCELLED and workload.state is State.RUNNING:
            order = StopOrder(StopCause.CANCELLED, ended.reason, ended.at_s, ended.at_s)
            return (StopOrdered(workload.id, ended.attempt, order, ended.at_s), ended)
        return (ended,)

    def commit_watch(self, watch: Watch, now_s: float) -> tuple[Event, ...]:
        """Note who shares a GPU with an attempt. StalePlanError when that attempt is not the current one."""
        return watched(self._current(self._known(watch.workload), watch.attempt), watch, now_s)

    # ------------------------------------------------------------ attempts

    def report(self, id: WorkloadId, attempt: int, report: AttemptReport, now_s: float) -> tuple[Event, ...]:
        """Take an attempt's report. StalePlanError for any but the current live attempt: its sender must end itself."""
        workload = self._current(self._known(id), attempt)
        return (Reported(id, attempt, report, now_s),) if is_news(workload, report) else ()

    def renew(self, id: WorkloadId, attempt: int, now_s: float, runner: str = "") -> bool:
        """A sign of life of the attempt, in memory only. False: it is fenced and must end itself at once.

        `runner`: who gives it, where a runner does: an attempt has one.
        """
        workload = self._workloads.get(id)
        if workload is None or workload.attempt != attempt or workload.state not in LIVE:
            return False
        if workload.stop is not None and now_s > workload.stop.deadline_s:
            return False
        if not self._renewals.is_the_runner(id, runner):
            return False
        self._workloads[id] = self._renewals.seen(workload, now_s)
        return True

    def renew_all(self, now_s: float) -> None:
        """After a replay: renewals were lost, so every live attempt counts as seen now."""
        self._renewals.begin_anew(now_s)
        for id, workload in sorted(self._workloads.items()):
            if workload.state in LIVE:
                self._workloads[id] = self._renewals.seen(workload, now_s)

    # ------------------------------------------------------------ the only mutator

    def apply(self, event: Event) -> None:
        """Take in one event, in the journal's order. TransitionError when the lifecycle has no such move."""
        match event:
            case Submitted(spec=spec, at_s=at_s):
                self._accept(accepted(spec, at_s, self._version + 1), at_s)
                self._asked.came(spec, self._version + 1)
            case Started() | AttemptReady() | AttemptEnded():
                self._advance(event)  # nearly all events are one of these
            case QueueSet(spec=spec, at_s=at_s):
                self._books.set(spec, at_s)
            case QueueDeleted(queue=queue):
                self._drop(queue)
            case CronSet() | CronDeleted() | CronLooked():
                self._apply_cron(event)
            case ReservationSet() | ReservationDeleted():
                self._reservations.apply(event)
            case CountablesSet(amounts=amounts):
                self._books.set_countables(amounts)
            case Forgotten(workloads=ids):
                for id in ids:
                    self._forget(id)
            case NodeCordoned() | NodeUncordoned():
                self._apply_cordon(event)
            case HalfLifeSet(half_life_s=half_life_s, at_s=at_s):
                self._history.set_half_life(half_life_s, at_s, self._version + 1)
            case _:
                self._advance(event)
        for queue in self._books.emptied():
            self._drop(queue)  # it was being deleted, and its last workload has ended
        self._version += 1

    def _accept(self, workload: Workload, at_s: float) -> None:
        unmet = self._dependents.open_at_submission(workload, self._workloads) if workload.spec.after else ()
        opened = replace(workload, unmet=unmet) if unmet else workload
        self._put(self._arrays.accept(opened) if opened.spec.array is not None else opened, at_s)

    def _advance(self, event: WorkloadEvent) -> None:
        if isinstance(event, CancelRequested) and self._cancels_entries(event):
            return
        before = self._workloads.get(event.workload) or self._list(event.workload, event.at_s)
        if before.pace is not None and isinstance(event, Accompanied | AttemptEnded):
            self._history.paced(before, self._workloads, self._version + 1)
        workload = advance(before, event)
        self._put(workload, event.at_s)
        if workload.state is State.SUCCEEDED:
            self._history.succeeded(workload, event.at_s, self._version + 1)

    def _drop(self, queue: QueueId) -> None:
        self._books.drop(queue)
        self._history.queue_deleted(queue, self._version + 1)

    def _forget(self, id: WorkloadId) -> None:
        workload = self._workloads.get(id)
        if workload is None:
            return  # an entry that went with its array
        if not workload.state.terminal:
            raise TransitionError(f"workload {id} can't be forgotten: it is {workload.state.value}")
        del self._workloads[id]
        self._states[workload.state] -= 1
        self._log.drop(id, self._version + 1)
        if workload.spec.array is not None:
            for entry in self._arrays.forget(id):
                self._forget(entry)
        elif workload.spec.entry is not None and workload.spec.entry.array in self._arrays.books:
            self._arrays.books[workload.spec.entry.array].remembered.discard(workload.spec.entry.index)

    def _put(self, workload: Workload, at_s: float) -> None:
        """Replace a workload and keep the counts per queue, the history of usage and the order of change."""
        spec, state = workload.spec, workload.state
        old = self._workloads.get(spec.id)
        self._workloads[spec.id] = workload
        if old is None:
            self._states[state] += 1
        elif old.state is not state:
            self._states[old.state] -= 1
            self._states[state] += 1
        self._log.touch(spec.id, self._version + 1)
        if state not in LIVE:
            self._renewals.forget(spec.id)
        self._count(workload, old, at_s)
        if spec.deadline_s is not None:
            self._deadlines.put(workload)
        if spec.joint is not None:
            self._joint.put(workload)
        if workload.cell or (old is not None and old.cell):
            self._cells.put(old, workload)
        for freed in self._dependents.changed(workload, self._workloads):
            self._put(freed, at_s)
        if spec.array is not None:
            self._refill(workload, at_s)
        elif spec.entry is not None and old is not None:
            self._entry_changed(workload, old, at_s)

    def _count(self, workload: Workload, old: Workload | None, at_s: float) -> None:
        """What waits in each queue, and what each is charged."""
        before = old.placement if old is not None else ()
        self._books.put(old, workload, at_s)
        if before is not workload.placement and before != workload.placement:
            change = held(workload.placement) - held(before)
            self._history.held(workload.spec.queue, workload.spec.owner, change, at_s, self._version + 1)

    def _queues_since(self, version: int) -> tuple[QueueSpec, ...] | None:
        """All queues, None when they have not changed since a reader had that version."""
        queues = self._books.sorted
        if queues is not self._known_queues and queues != self._known_queues:
            self._known_queues, self._queues_version = queues, self._version
        return queues if version < self._queues_version or not version else None

    # ------------------------------------------------------------ checks

    def _current(self, workload: Workload, attempt: int) -> Workload:
        if workload.attempt != attempt or workload.state not in LIVE:
            raise StalePlanError(
                f"attempt {attempt} of {workload.id} is not the current one:"
                f" it is {workload.state.value} in attempt {workload.attempt}"
            )
        return workload
