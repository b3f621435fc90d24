"""Our own journal as a trace: what was submitted, when it started and ended, and how long its work took.

The file is only read, while an owner writes to it or after. It is the owner that checks sums and marks; here a record
that can't be understood is refused like a bad row. The events go through the queue owner's own class, so that what
counts as progress is what counted live.
"""

from __future__ import annotations

import sqlite3
import zlib
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from rayorch.core.codec import FORMAT_VERSION, decode
from rayorch.core.errors import RayorchError, SpecError
from rayorch.core.events import AttemptEnded, Event, Resized, Started, Submitted, workload_of
from rayorch.core.queues import QueueTree
from rayorch.core.resources import GPU, UNIT, Resources
from rayorch.core.tree_state import TreeState
from rayorch.core.types import Member, NodeId, NodeSpec, State, Workload, WorkloadId, WorkloadSpec
from rayorch.sim.readers.rows import CANCELLED, FAILED, SUCCEEDED, Refused, TraceBuilder, machine
from rayorch.sim.trace.model import Ask, BadRow, Trace, TraceJob

SQLITE_MAGIC = b"SQLite format 3\x00"
STATUSES = {State.SUCCEEDED: SUCCEEDED, State.FAILED: FAILED, State.CANCELLED: CANCELLED}
EXPECTED = "a journal of rayorch (tables meta, record and snapshot)"


@dataclass(frozen=True, slots=True)
class JournalRead:
    """What a journal holds: `state` after record `sequence` (None: it begins with its first), then `events` in order.

    `refused`: records that could not be understood, by their sequence.
    """

    journal_id: str
    state: TreeState | None
    sequence: int
    events: tuple[tuple[int, Event], ...]
    refused: tuple[BadRow, ...] = ()


def is_journal(path: str | Path) -> bool:
    """Whether a file is an SQLite file at all."""
    with Path(path).open("rb") as file:
        return file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC


def load(path: str | Path, after: int | None = None) -> JournalRead:
    """Everything, from the oldest snapshot that is there on; with `after`, only the records behind that one.

    SpecError for a file that is no journal, and where records behind `after` were compacted away.
    """
    path = Path(path)
    if not path.is_file():
        raise SpecError(str(path), f"is not a file; {EXPECTED} is needed")
    if not is_journal(path):
        raise SpecError(str(path), f"is not {EXPECTED}")
    try:
        with closing(_connect(path)) as connection:
            return _load(connection, path, after)
    except sqlite3.Error as error:
        raise SpecError(str(path), f"can't be read as {EXPECTED}: {error}") from error


def _connect(path: Path) -> sqlite3.Connection:
    """Read only; a file on a disk that takes no writes is read as it lies, since nobody can be writing to it."""
    uri = path.absolute().as_uri()
    connection = sqlite3.connect(f"{uri}?mode=ro", uri=True)
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        if path.with_name(f"{path.name}-wal").exists():
            raise  # what is in its log would be missing
        connection = sqlite3.connect(f"{uri}?mode=ro&immutable=1", uri=True)
    return connection


def _load(connection: sqlite3.Connection, path: Path, after: int | None) -> JournalRead:
    connection.execute("BEGIN")  # one moment of a file that is written to meanwhile
    meta = dict(connection.execute("SELECT key, value FROM meta WHERE key != 'probe'"))
    version = int(meta.get("format_version", 0))
    if version != FORMAT_VERSION:
        raise SpecError(str(path), f"has format {version}, this release reads {FORMAT_VERSION}")
    refused: list[BadRow] = []
    state, start = None, after or 0
    if after is not None:
        oldest, newest = connection.execute("SELECT min(sequence), max(sequence) FROM record").fetchone()
        if oldest is not None and after + 1 < oldest <= newest:
            raise SpecError(str(path), f"records {after + 1} to {oldest - 1} were compacted away; begin anew")
    snapshots = "SELECT sequence, body FROM snapshot ORDER BY sequence"
    for sequence, body in connection.execute(snapshots) if after is None else ():
        try:
            found = decode(zlib.decompress(body).decode())
        except (zlib.error, UnicodeDecodeError, RayorchError) as error:
            refused.append(BadRow(sequence, f"a snapshot can't be read: {error}"))
            continue
        if isinstance(found, TreeState):
            state, start = found, sequence
            break
    events: list[tuple[int, Event]] = []
    for sequence, body in connection.execute(
        "SELECT sequence, body FROM record WHERE sequence > ? ORDER BY sequence", (start,)
    ):
        try:
            events.append((sequence, cast(Event, decode(body))))
        except (RayorchError, TypeError) as error:
            refused.append(BadRow(sequence, f"a record can't be read: {error}"))
    return JournalRead(str(meta.get("journal_id", "")), state, start, tuple(events), tuple(refused))


def start_tree(held: JournalRead) -> QueueTree:
    """The queue owner's tree before the first event."""
    return QueueTree() if held.state is None else QueueTree.restore(held.state)


def apply(tree: QueueTree, event: Event) -> str:
    """Let the tree take an event; why it does not (one before it is missing), empty where it does."""
    try:
        tree.apply(event)
    except (RayorchError, KeyError, AssertionError) as error:
        return f"{type(event).__name__} does not follow from what is known: {error}"
    return ""


def read(path: str | Path, running: bool = True) -> Trace:
    """The trace of what happened live, times from the first submission.

    A job runs for as long as its work took that counted (restarts and what was lost left out); one that failed or was
    cancelled for as long as its attempts ran; one that still runs at the end of the journal for what it had run by
    then, where `running`. Refused is what never started, and a gang whose members with GPUs are not alike. Members
    without GPUs beside them (drivers) are left out. `nodes`: as large as what was held on them at once.
    """
    held = load(path)
    builder = TraceBuilder("journal", path)
    watch = _Watch(builder)
    for bad in held.refused:
        builder.refuse(bad.line, bad.reason)
    tree = start_tree(held)
    watch.begin(tree)
    for sequence, event in held.events:
        watch.before(sequence, event, tree)
        wrong = apply(tree, event)
        if wrong:
            builder.refuse(sequence, wrong)
        watch.after(event, tree)
    watch.finish(tree, running)
    queues = tuple(sorted(tree.dump().queues, key=lambda spec: spec.id))
    trace = builder.build(EXPECTED, from_zero=True, nodes=watch.seats.nodes(), queues=queues, empty_ok=True)
    return replace(trace, name=f"journal {held.journal_id[:8]}")


class _Watch:
    """Notes starts, ends and seats as the events go by."""

    def __init__(self, builder: TraceBuilder) -> None:
        self._builder = builder
        self._lines: dict[WorkloadId, int] = {}
        self._started: dict[WorkloadId, float] = {}
        self._ran: dict[WorkloadId, float] = {}
        self._over: set[WorkloadId] = set()
        self._last_s = 0.0
        self.seats = SeatWatch()

    def begin(self, tree: QueueTree) -> None:
        """What the first snapshot already knows."""
        self.seats.begin(tree)
        for id, workload in tree.workloads.items():
            if workload.last_started_s is not None or workload.started_s is not None:
                starts = (workload.last_started_s, workload.started_s)
                self._started[id] = min(at_s for at_s in starts if at_s is not None)
            self._ran[id] = workload.ran_s
            if workload.state.terminal:
                self._end(workload)

    def before(self, sequence: int, event: Event, tree: QueueTree) -> None:
        """An event that the tree has not taken yet."""
        self._last_s = max(self._last_s, event.at_s)
        self.seats.see(event)
        match event:
            case Submitted():
                self._lines.setdefault(event.spec.id, sequence)
            case Started():
                self._started.setdefault(event.workload, event.at_s)
            case AttemptEnded():
                workload = tree.workloads.get(event.workload)
                if workload is not None:
                    self._ran[event.workload] = self._ran.get(event.workload, 0.0) + _since(workload, event.at_s)
            case _:
                pass

    def after(self, event: Event, tree: QueueTree) -> None:
        """The same, now that the tree has taken it."""
        id = workload_of(event)
        workload = tree.find(id) if id is not None else None
        if workload is not None and workload.state.terminal and id not in self._over:
            self._end(workload)

    def finish(self, tree: QueueTree, running: bool) -> None:
        """What has not ended when the journal does."""
        for id in sorted(tree.workloads):
            workload = tree.workloads[id]
            if workload.state.terminal or workload.spec.array is not None:
                continue
            if id not in self._started:
                self._builder.refuse(self._lines.get(id, 0), f"{id} never started")
            elif not running:
                self._builder.refuse(self._lines.get(id, 0), f"{id} had not ended when the journal did")
            else:
                ran_s = self._ran.get(id, 0.0)
                if workload.state is not State.PENDING:
                    ran_s += _since(workload, self._last_s)
                self._add(workload, ran_s, "", None)

    def _end(self, workload: Workload) -> None:
        self._over.add(workload.id)
        ran_s = self._ran.get(workload.id, 0.0)
        if workload.id not in self._started:
            if workload.spec.array is None:
                self._builder.refuse(self._lines.get(workload.id, 0), f"{workload.id} never started")
            return
        if workload.state is State.SUCCEEDED and workload.progress_s > 0:
            ran_s = workload.progress_s
        self._add(workload, ran_s, STATUSES[workload.state], workload.ended_s)

    def _add(self, workload: Workload, ran_s: float, status: str, ended_s: float | None) -> None:
        spec = workload.spec
        try:
            self._builder.add(
                TraceJob(
                    str(spec.id),
                    workload.submitted_s,
                    ran_s,
                    self._builder.shape(_ask(spec)),
                    queue=self._builder.text(spec.queue),
                    user=self._builder.text(spec.owner),
                    priority=spec.priority,
                    name=self._builder.text(spec.name),
                    status=status,
                    started_s=self._started.get(spec.id),
                    ended_s=ended_s,
                    steps=spec.total_steps,
                    line=self._lines.get(spec.id, 0),
                )
            )
        except Refused as error:
            self._builder.refuse(self._lines.get(spec.id, 0), f"{spec.id} {error}")


def _since(workload: Workload, at_s: float) -> float:
    from_s = workload.ready_s if workload.ready_s is not None else workload.started_s
    return 0.0 if from_s is None else max(0.0, at_s - from_s)


def _ask(spec: WorkloadSpec) -> Ask:
    """The minimum of a gang whose members are alike; Refused for another."""
    roles = [role for role in spec.roles if role.bundle.gpu_units] or list(spec.roles)
    if len({role.bundle for role in roles}) != 1:
        raise Refused("has members that are not alike")
    members = sum(role.min_count for role in roles) or sum(role.max_count for role in roles)
    if not members:
        raise Refused("has no member")
    return Ask(members, roles[0].bundle, spec.accelerators, spec.topology)


LATE_S = 10.0
"""By how much an attempt's end may come into the journal after its seats were given to the next one."""


class SeatWatch:
    """What is held on each node as attempts start and end."""

    def __init__(self) -> None:
        self._held: dict[WorkloadId, tuple[float, tuple[Member, ...]]] = {}
        self._changes: dict[NodeId, list[tuple[float, int, Resources]]] = {}
        self._devices: dict[NodeId, int] = {}
        self._models: dict[NodeId, str] = {}

    def begin(self, tree: QueueTree) -> None:
        """What is held when the first event comes."""
        for id, workload in tree.workloads.items():
            if workload.placement:
                self.hold(id, workload.placement, workload.started_s or workload.submitted_s)

    def see(self, event: Event) -> None:
        """An attempt starts, changes its seats or ends."""
        match event:
            case Started() | Resized():
                self.hold(event.workload, event.members, event.at_s)
            case AttemptEnded():
                self.release(event.workload, event.at_s)
            case _:
                pass

    def hold(self, workload: WorkloadId, members: tuple[Member, ...], at_s: float) -> None:
        """It has these seats now, in place of those that it had."""
        self.release(workload, at_s)
        self._held[workload] = (at_s, members)
        for member in members:
            if member.model:
                self._models[member.node] = member.model
            most = max((index + 1 for index in member.devices), default=0)
            self._devices[member.node] = max(most, self._devices.get(member.node, 0))
            self._changes.setdefault(member.node, []).append((at_s, 1, member.bundle))

    def release(self, workload: WorkloadId, at_s: float) -> None:
        """It holds nothing any more. A short attempt has held its seats for half its time at least."""
        from_s, members = self._held.pop(workload, (0.0, ()))
        left_s = max((from_s + at_s) / 2, at_s - LATE_S)
        for member in members:
            self._changes[member.node].append((left_s, 0, member.bundle))

    def _most(self, node: NodeId) -> dict[str, int]:
        """The most of each resource that was held at once."""
        held: dict[str, int] = {}
        most: dict[str, int] = {}
        for _, begins, bundle in sorted(self._changes[node], key=lambda change: change[:2]):
            for name, units in bundle:
                held[name] = held.get(name, 0) + (units if begins else -units)
                most[name] = max(most.get(name, 0), held[name])
        return most

    def nodes(self) -> tuple[NodeSpec, ...]:
        """Every node that was ever used, as large as the most that was held on it at once; GPUs are whole."""
        found = []
        for id in sorted(self._changes):
            most = self._most(id)
            count = self._devices[id] or -(-most.get(GPU, 0) // UNIT)
            most[GPU] = count * UNIT
            found.append(machine(id, Resources.of_units(most), count, self._models.get(id, "")))
        return tuple(found)
