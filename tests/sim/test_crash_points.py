"""A crash at every write: before it, after it, and with a part of its bytes on the disk, each followed by a recovery.

First the journal alone: each of its writes (its creation, a batch, a snapshot, SQLite's move of its log into the file,
the mark) is torn at many places, and what is then read is the state before the write or after it, never another.
Then the system: the queue owner dies at every batch of a scripted run, and everything still ends well; whatever a user
was told is accepted is there.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from rayorch.actors.journal import Journal
from rayorch.actors.journal_format import JournalError, entry_of, pack_state
from rayorch.core.codec import encode
from rayorch.core.errors import ClusterError
from rayorch.core.events import Event, Started
from rayorch.core.gang_shape import JointGang
from rayorch.core.queues import QueueTree, TreeState
from rayorch.core.types import NodeId, State, WorkloadId
from rayorch.sim.checked import CheckedCluster
from rayorch.sim.faults import Actor
from rayorch.sim.work import SimWork
from tests.build import node, queue, workload
from tests.sim.journals import BASE, LOG, MARK, FileJournal, RecordJournal, torn

SHARES = {"before": 0.0, "in the middle": 0.6, "after": 1.0}
"""How much of a batch reaches the disk; after it means before anybody is told."""

FILE_EVERY = 6
"""Of so many batches one is torn in the real file; that a torn one there is as if it had not been written at all, at
each of its writes and many places, is what the last tests are about."""

PAGE = 4096
SCRIPT_S = 22


# ---------------------------------------------------------------- the scripted run


class Scripted(CheckedCluster):
    """A run in which much happens; the queue owner dies at batch number `at`, of which `share` reaches the disk."""

    def __init__(self, journal: FileJournal | RecordJournal, at: int = -1, share: float = 0.0) -> None:
        self.batches = 0
        self.at, self.share = at, share
        self.asked: list[tuple[float, str]] = []
        self.accepted: set[WorkloadId] = set()
        nodes = (node("n0", gpu=2), node("n1", gpu=2))
        queues = (queue("a", 2, 2), queue("b", 2, 2))
        super().__init__(nodes, queues, at_calls=False, tick_s=1.0, journal=journal)

    def record(self, events: tuple[Event, ...]) -> None:
        """As ever, but for the one batch."""
        if events:
            self.batches += 1
            if self.batches == self.at:
                self._tearing = self.share
        super().record(events)

    def play(self) -> None:
        """The script, each request repeated until it is answered; then everything ends."""
        waiting = list(self.script())
        end_s = self.start_s + SCRIPT_S
        while self.now_s < end_s or waiting:
            while waiting and self.now_s >= self.start_s + waiting[0][0] and self._ask(*waiting[0][1:]):
                waiting.pop(0)
            self.tick()
        self.run_to_quiet(300.0)
        assert self.accepted <= self.tree.workloads.keys()

    def script(self) -> Iterator[tuple[float, str, object]]:
        """When who asks for what."""
        yield 0, "submit", workload("w", members=2, gpu=1, queue="a", grace_s=4.0)
        yield 1, "submit", workload("el", members=1, most=4, gpu=1, queue="b")
        yield 3, "submit", workload("gone", members=4, gpu=1, queue="b")
        yield 6, "submit", workload("vip", members=2, gpu=1, queue="a", priority=9)
        yield 8, "cancel", WorkloadId("gone")
        yield 10, "queue", queue("b", 2, 2, weight=3)
        yield 11, "cordon", NodeId("n1")
        yield 17, "uncordon", NodeId("n1")
        yield 18, "submit", workload("late", members=1, gpu=1, queue="b")

    def _ask(self, verb: str, subject: object) -> bool:
        tree, now_s = self.tree, self.now_s
        commands = {
            "submit": lambda: tree.submit(subject, now_s),  # type: ignore[arg-type]
            "cancel": lambda: tree.cancel(subject, "not needed", now_s),  # type: ignore[arg-type]
            "queue": lambda: tree.set_queue(subject, now_s),  # type: ignore[arg-type]
            "cordon": lambda: tree.cordon(subject, "maintenance", now_s + 8, now_s),  # type: ignore[arg-type]
            "uncordon": lambda: tree.uncordon(subject, "done", now_s),  # type: ignore[arg-type]
        }
        if verb == "submit":
            steps = 30 if subject.id == "el" else 6  # type: ignore[attr-defined]
            self.works[subject.id] = SimWork(steps=steps, rate=0.5, checkpoint_every=6)  # type: ignore[attr-defined]
            self.attempts.works = self.works
        try:
            self.call(Actor.CLIENT, Actor.QUEUES, verb, lambda: self.record(commands[verb]()))
        except ClusterError:
            return False
        if verb == "submit":
            self.accepted.add(subject.id)  # type: ignore[attr-defined]
        return True


@contextlib.contextmanager
def _journal(real: bool) -> Iterator[FileJournal | RecordJournal]:
    if not real:
        yield RecordJournal()
        return
    with FileJournal.in_memory() as journal:
        yield journal


def _whole_run() -> Scripted:
    with FileJournal.in_memory() as journal:
        sim = Scripted(journal)
        sim.play()
    return sim


@pytest.fixture(scope="module")
def whole_run() -> Scripted:
    """The run without a crash."""
    return _whole_run()


def test_the_script_makes_everything_happen(whole_run: Scripted) -> None:
    kinds = {type(event).__name__ for event in whole_run.history}
    assert {"QueueSet", "Submitted", "Started", "AttemptReady", "Reported", "StopOrdered", "AttemptEnded"} <= kinds
    assert {"CancelRequested", "NodeCordoned", "NodeUncordoned", "Resized"} <= kinds
    assert {w.state for w in whole_run.tree.workloads.values()} == {State.SUCCEEDED, State.CANCELLED}
    assert len(whole_run.accepted) == 5 and whole_run.batches > 40


@pytest.mark.parametrize("when", SHARES)
def test_a_crash_at_any_batch_loses_nothing(whole_run: Scripted, when: str) -> None:
    first = len(whole_run.tree.queues) + 1  # before that there is nothing that could be told to anybody
    for at in range(first, whole_run.batches + 1):
        real = at % FILE_EVERY == 0
        if when == "before" and not real:
            continue  # in memory it is the same as in the middle: nothing of it counts
        with _journal(real) as journal:
            sim = Scripted(journal, at, SHARES[when])
            try:
                sim.play()
            except AssertionError as error:
                raise AssertionError(f"crash {when} of batch {at}: {error}") from error
            assert journal.torn == 1, at
        states = {id: w.state for id, w in sim.tree.workloads.items()}
        assert sim.accepted == whole_run.accepted, at
        assert all(states[WorkloadId(id)] is State.SUCCEEDED for id in ("w", "el", "vip", "late")), (at, states)


# ---------------------------------------------------------------- a joint gang: one commit of several starts


class Together(Scripted):
    """Three submissions that start together; the queue owner dies at batch number `at`."""

    def record(self, events: tuple[Event, ...]) -> None:
        """As ever; which batch starts all of them is remembered."""
        if sum(isinstance(event, Started) for event in events) > 1:
            self.joint_batches.append(self.batches + 1)
        super().record(events)

    def __init__(self, journal: FileJournal | RecordJournal, at: int = -1, share: float = 0.0) -> None:
        self.joint_batches: list[int] = []
        super().__init__(journal, at, share)

    def script(self) -> Iterator[tuple[float, str, object]]:
        """Something is in the way of one of them at first, so that the start is no part of a submission's turn."""
        yield 0, "submit", workload("w", members=1, gpu=1, queue="a", grace_s=4.0)
        for n, id in enumerate(PARTNERS):
            yield 1 + n, "submit", replace(workload(id, gpu=1, queue="b"), joint=JointGang("trio", len(PARTNERS)))

    def check_together(self) -> None:
        """Their first attempts began at one moment: all of them or none."""
        begun = {e.workload: e.at_s for e in self.history if isinstance(e, Started) and e.attempt == 1}
        times = [begun.get(WorkloadId(id)) for id in PARTNERS]
        assert len(set(times)) == 1, times
        assert all(self.tree.workloads[WorkloadId(id)].state is State.SUCCEEDED for id in PARTNERS)


PARTNERS = ("one", "two", "three")
TORN_AT = (0.0, 0.001, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999, 1.0)
"""How much of the batch that starts all of them is on the disk."""


@pytest.fixture(scope="module")
def whole_trio() -> Together:
    """The run without a crash."""
    sim = Together(RecordJournal())
    sim.play()
    sim.check_together()
    assert len(sim.joint_batches) == 1
    return sim


def test_a_joint_gang_starts_whole_or_not_at_all_wherever_its_owner_dies(whole_trio: Together) -> None:
    for at in range(len(whole_trio.tree.queues) + 1, whole_trio.batches + 1):
        for share in (0.6, 1.0):
            sim = Together(RecordJournal(), at, share)
            sim.play()
            assert sim.journal.torn == 1  # type: ignore[attr-defined]
            sim.check_together()


@pytest.mark.parametrize("real", [False, True], ids=["in memory", "in the real file"])
def test_a_torn_commit_of_a_joint_gang_starts_none_of_it(whole_trio: Together, real: bool) -> None:
    (at,) = whole_trio.joint_batches
    for share in TORN_AT:
        with _journal(real) as journal:
            sim = Together(journal, at, share)
            sim.play()
            assert journal.torn == 1
            # What was on the disk whole has happened, and goes on; of less nothing has.
            assert len(sim.joint_batches) == (1 if share == 1.0 else 2), share
            sim.check_together()


# ---------------------------------------------------------------- the journal alone


@dataclass(frozen=True, slots=True)
class Write:
    """One write: the files before and after it, and the states that a reader may find. `told`: it is acknowledged."""

    what: str
    before: dict[str, bytes]
    after: dict[str, bytes]
    states: tuple[str, str]


def _files(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in (BASE, LOG, MARK) if (folder / name).exists()}


def _state(tree: QueueTree) -> str:
    return encode(tree.dump())


def _writes(history: list[Event], folder: Path) -> Iterator[Write]:
    """Every write of a journal that takes this history, with a snapshot and a checkpoint of the log now and then."""
    tree = QueueTree()
    path = folder / BASE
    empty = _state(tree)
    journal = Journal.open(path, create=True, lock_wait_s=0.0)
    created = _files(folder)
    yield Write("creation", {}, created, (empty, empty))
    for number, event in enumerate(history, start=1):
        before, old = _files(folder), _state(tree)
        journal.append([entry_of(event)])
        tree.apply(event)
        yield Write(f"batch {number}", before, _files(folder), (old, _state(tree)))
        if number % 12 == 0:
            before = _files(folder)
            journal.write_snapshot(number, pack_state(tree.dump()))
            yield Write(f"snapshot {number}", before, _files(folder), (_state(tree), _state(tree)))
        if number % 17 == 0:
            before = _files(folder)
            journal._writer.execute("PRAGMA wal_checkpoint(PASSIVE)")
            yield Write(f"checkpoint {number}", before, _files(folder), (_state(tree), _state(tree)))
    journal.close()


def _torn_files(write: Write) -> Iterator[tuple[str, dict[str, bytes]]]:
    """The disk after crashes at many places of a write. SQLite writes a log before it writes the file itself."""
    yield "before", write.before
    yield "after, not told", {**write.after, MARK: write.before.get(MARK, write.after[MARK])}
    yield "after", write.after
    yield "the mark torn", {**write.after, MARK: write.after[MARK][:-9]}
    old, new = write.before.get(LOG, b""), write.after.get(LOG, b"")
    if old != new:
        for share in (0.001, 0.02, 0.3, 0.5, 0.77, 0.9999):
            # A file that is being made has its first page before it has a log.
            yield f"{share:g} of the log", {BASE: write.after[BASE], **write.before, LOG: torn(old, new, share)}
    old, new = write.before.get(BASE, b""), write.after.get(BASE, b"")
    if old and old != new:
        pages = [n for n in range(0, len(new), PAGE) if old[n : n + PAGE] != new[n : n + PAGE]]
        for count in {0, 1, len(pages) // 2, len(pages) - 1}:
            mixed = bytearray(old.ljust(len(new), b"\0"))
            for n in pages[:count]:
                mixed[n : n + PAGE] = new[n : n + PAGE]
            # The log is reset after the file is whole only.
            yield f"{count} of {len(pages)} pages", {**write.before, BASE: bytes(mixed)}


def _read(files: dict[str, bytes], folder: Path, create: bool) -> str:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    journal = Journal.open(folder / BASE, create=create, lock_wait_s=0.0)
    try:
        recovered = journal.recover()
        state = recovered.state
        assert state is None or isinstance(state, TreeState)
        tree = QueueTree() if state is None else QueueTree.restore(state)
        for recorded in recovered.events:
            tree.apply(recorded.event)
    finally:
        journal.close()
    shutil.rmtree(folder)
    return _state(tree)


def test_a_torn_write_has_happened_or_not(whole_run: Scripted, tmp_path: Path) -> None:
    number = itertools.count()
    kinds: set[str] = set()
    source = tmp_path / "source"
    source.mkdir()
    for write in _writes(whole_run.history, source):
        for what, files in _torn_files(write):
            kinds.add(f"{write.what.split()[0]}: {what.split(' of ')[0] if ' pages' not in what else 'pages'}")
            found = _read(files, tmp_path / str(next(number)), create=write.what == "creation")
            allowed = (
                write.states
                if what not in ("before", "after", "after, not told", "the mark torn")
                else ((write.states[0],) if what == "before" else (write.states[1],))
            )
            assert found in allowed, f"{write.what}, {what}"
    assert {"creation: before", "batch: 0.5", "snapshot: 0.3", "checkpoint: pages", "batch: the mark torn"} <= kinds


def test_an_end_that_was_acknowledged_and_is_missing_is_refused(whole_run: Scripted, tmp_path: Path) -> None:
    """The other way round: a disk that loses what it had confirmed must not pass for one that never had it."""
    source = tmp_path / "source"
    source.mkdir()
    writes = [write for write in _writes(whole_run.history[:8], source) if write.what.startswith("batch")]
    last = writes[-1]
    folder = tmp_path / "lost"
    folder.mkdir()
    for name, data in {**last.before, MARK: last.after[MARK]}.items():
        (folder / name).write_bytes(data)
    with pytest.raises(JournalError, match="was acknowledged"):
        Journal.open(folder / BASE, lock_wait_s=0.0)
