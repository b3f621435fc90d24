"""What the journal acknowledged is there after any crash, and what is damaged is refused by name."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from rayorch.actors import journal_format
from rayorch.actors.journal import Journal, Recovered, ensure_journal
from rayorch.actors.journal_files import mark_path, restore_backup
from rayorch.actors.journal_format import (
    JournalCorrupt,
    JournalError,
    JournalLocked,
    JournalMissing,
    JournalUnwritable,
    Mark,
    entry_of,
    pack_state,
    value_of,
)
from rayorch.core.codec import FORMAT_VERSION, Json, encode
from rayorch.core.errors import SpecError
from rayorch.core.events import Event, NodeCordoned, QueueSet, Submitted
from rayorch.core.queues import QueueTree, TreeState
from rayorch.core.types import Kind, NodeId, QueueId, QueueSpec, Resources, Role, WorkloadId, WorkloadSpec


def submitted(i: int, payload: str = "{}") -> Submitted:
    spec = WorkloadSpec(
        id=WorkloadId(f"w{i}"),
        name=f"train-{i}",
        kind=Kind.TRAIN,
        queue=QueueId("research"),
        roles=(Role("worker", Resources.of({"GPU": 1}), 1, 2),),
        payload=payload,
    )
    return Submitted(spec, float(i))


def write(journal: Journal, *events: Event) -> int:
    return journal.append([entry_of(event) for event in events])


def events_of(recovered: Recovered) -> list[Event]:
    return [recorded.event for recorded in recovered.events]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def filled(path: Path) -> Path:
    """A closed journal of ten records in one file, without a log beside it."""
    journal = Journal.open(path, create=True)
    for i in range(10):
        write(journal, submitted(i))
    journal.close()
    return path


def change(path: Path, statement: str, *values: object) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement, values)
    connection.close()


# ---------------------------------------------------------------- opening


def test_what_was_written_is_read_back_in_order(path: Path) -> None:
    events = [QueueSet(QueueSpec(QueueId("research")), 0.0), submitted(1), NodeCordoned(NodeId("n"), "sick", None, 2.0)]
    journal = Journal.open(path, create=True)
    assert journal.sequence == 0
    assert write(journal, *events[:2]) == 2
    assert write(journal, events[2]) == 3
    journal.close()
    journal.close()

    again = Journal.open(path, expected_id=journal.journal_id)
    recovered = again.recover()
    again.close()
    assert events_of(recovered) == events
    assert [e.sequence for e in recovered.events] == [1, 2, 3]
    assert recovered.state is None


def test_an_expected_journal_that_is_missing_is_never_made_anew(path: Path) -> None:
    with pytest.raises(JournalMissing, match="no journal at"):
        Journal.open(path)
    with pytest.raises(JournalMissing, match="no journal at"):
        Journal.open(path, expected_id="abc", create=True)
    assert not path.exists()


def test_a_journal_whose_file_is_gone_but_whose_mark_is_there_is_not_made_anew(filled: Path) -> None:
    filled.unlink()
    with pytest.raises(JournalMissing, match="is gone"):
        Journal.open(filled, create=True)


def test_another_journal_than_the_expected_one_is_refused(filled: Path) -> None:
    with pytest.raises(JournalMissing, match="expected 0123"):
        Journal.open(filled, expected_id="0123")
    journal = Journal.open(filled)  # the refusal left no lock behind
    journal.close()


def test_the_id_is_made_once(path: Path) -> None:
    first = ensure_journal(path)
    assert ensure_journal(path) == first
    assert ensure_journal(path.with_name("other.db")) != first


def test_a_file_that_is_no_journal_is_refused(path: Path) -> None:
    path.write_bytes(b"this is not a database at all" * 300)
    with pytest.raises(JournalCorrupt):
        Journal.open(path, create=True, lock_wait_s=0.0)
    path.unlink()
    sqlite3.connect(path).close()
    path.touch()
    with pytest.raises(JournalMissing, match="is not a journal"):
        Journal.open(path, lock_wait_s=0.0)


def test_a_crash_during_creation_leaves_nothing_that_is_taken_for_a_journal(path: Path) -> None:
    path.touch()  # the file exists, its first transaction was not committed
    assert ensure_journal(path)


def test_a_second_owner_is_kept_out_until_the_first_is_gone(path: Path) -> None:
    first = Journal.open(path, create=True)
    with pytest.raises(JournalLocked, match=f"process {os.getpid()}"):
        Journal.open(path, lock_wait_s=0.0)
    write(first, submitted(1))
    first.close()
    second = Journal.open(path, lock_wait_s=0.0)
    assert second.sequence == 1
    second.close()


def test_a_journal_of_a_newer_format_is_refused(filled: Path) -> None:
    change(filled, "UPDATE meta SET value = ? WHERE key = 'format_version'", str(FORMAT_VERSION + 1))
    with pytest.raises(JournalError, match="install the newer release"):
        Journal.open(filled)


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize("sequence", [1, 5, 10])
@pytest.mark.parametrize("column", ["body", "workload", "checksum"])
def test_a_changed_record_is_refused_by_its_number(filled: Path, sequence: int, column: str) -> None:
    value: object = b"0" * 16 if column == "checksum" else encode(submitted(99)) if column == "body" else "w99"
    change(filled, f"UPDATE record SET {column} = ? WHERE sequence = ?", value, sequence)
    journal = Journal.open(filled)
    with pytest.raises(JournalCorrupt, match=rf"record {sequence} is damaged"):
        journal.recover()
    journal.close()


def test_a_removed_record_is_refused_by_its_number(filled: Path) -> None:
    change(filled, "DELETE FROM record WHERE sequence = 4")
    journal = Journal.open(filled)
    with pytest.raises(JournalCorrupt, match="record 4 is missing"):
        journal.recover()
    journal.close()


def test_removed_first_records_are_refused(filled: Path) -> None:
    change(filled, "DELETE FROM record WHERE sequence <= 3")
    journal = Journal.open(filled)
    with pytest.raises(JournalCorrupt, match="record 1 is missing"):
        journal.recover()
    journal.close()


def test_two_records_that_changed_places_are_refused(filled: Path) -> None:
    change(filled, "UPDATE record SET sequence = -1 WHERE sequence = 4")
    change(filled, "UPDATE record SET sequence = 4 WHERE sequence = 5")
    change(filled, "UPDATE record SET sequence = 5 WHERE sequence = -1")
    journal = Journal.open(filled)
    with pytest.raises(JournalCorrupt, match="record 4 is damaged"):
        journal.recover()
    journal.close()


def test_a_lost_end_that_had_been_acknowledged_is_refused(filled: Path) -> None:
    change(filled, "DELETE FROM record WHERE sequence > 7")
    with pytest.raises(JournalCorrupt, match="ends at record 7, but record 10 was acknowledged"):
        Journal.open(filled)


def test_a_page_overwritten_with_noise_is_refused(filled: Path) -> None:
    data = bytearray(filled.read_bytes())
    assert len(data) > 3 * 4096
    noise = random.Random(1).randbytes(64)
    where = data.index(b'"id":"w5"') - 8
    data[where : where + 64] = noise
    filled.write_bytes(data)
    with pytest.raises(JournalCorrupt):
        journal = Journal.open(filled)
        try:
            journal.recover()
        finally:
            journal.close()


def copy_of_a_running_journal(path: Path, target: Path) -> Path:
    """The files as a crash leaves them: the log is not yet part of the main file."""
    target.mkdir()
    for suffix in ("", "-wal", ".mark"):
        (target / (path.name + suffix)).write_bytes(path.with_name(path.name + suffix).read_bytes())
    return target / path.name


def test_a_torn_end_of_the_log_that_was_not_acknowledged_is_dropped(path: Path, tmp_path: Path) -> None:
    journal = Journal.open(path, create=True)
    for i in range(5):
        write(journal, submitted(i))
    before = path.with_name(path.name + "-wal").stat().st_size
    mark = mark_path(path).read_bytes()
    write(journal, submitted(5))
    after = path.with_name(path.name + "-wal").stat().st_size
    assert after > before

    for cut in (before + 1, before + 100, (before + after) // 2, after - 1):
        crashed = copy_of_a_running_journal(path, tmp_path / str(cut))
        with crashed.with_name(path.name + "-wal").open("r+b") as log:
            log.truncate(cut)
        mark_path(crashed).write_bytes(mark)  # the crash came before the acknowledgement
        reopened = Journal.open(crashed)
        assert events_of(reopened.recover()) == [submitted(i) for i in range(5)]
        assert write(reopened, submitted(6)) == 6
        reopened.close()
    journal.close()


def test_a_torn_end_of_the_log_that_was_acknowledged_is_refused(path: Path, tmp_path: Path) -> None:
    journal = Journal.open(path, create=True)
    for i in range(5):
        write(journal, submitted(i))
    crashed = copy_of_a_running_journal(path, tmp_path / "crashed")
    journal.close()
    log = crashed.with_name(path.name + "-wal")
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 10)
    with pytest.raises(JournalCorrupt, match="ends at record 4, but record 5 was acknowledged"):
        Journal.open(crashed)


def test_a_torn_mark_does_not_keep_a_sound_journal_closed(filled: Path, caplog: pytest.LogCaptureFixture) -> None:
    mark_path(filled).write_bytes(mark_path(filled).read_bytes()[:20])
    journal = Journal.open(filled)
    assert len(journal.recover().events) == 10
    journal.close()
    assert "is torn" in caplog.text


def test_the_mark_of_another_journal_is_refused(filled: Path) -> None:
    mark_path(filled).write_bytes(Mark("0" * 32, 3).to_bytes())
    with pytest.raises(JournalMissing, match="belongs to journal 0000"):
        Journal.open(filled)


# ---------------------------------------------------------------- crashes

WRITER = """
    import sys
    from rayorch.actors.journal import Journal
    from tests.actors.test_journal import submitted, write
    journal = Journal.open(sys.argv[1], create=True)
    i = journal.sequence
    while True:
        batch = [submitted(i + k) for k in range(1 + i % 3)]
        i = write(journal, *batch)
        if i % 40 < 3:
            from rayorch.core.queues import QueueTree
            from rayorch.actors.journal_format import pack_state
            tree = QueueTree()
            for k in range(i):
                tree.apply(submitted(k))
            journal.write_snapshot(i, pack_state(tree.dump()))
        print(i, flush=True)
"""


@pytest.mark.parametrize("seed", range(4))
def test_every_acknowledged_record_survives_kill_9_of_its_writer(path: Path, seed: int) -> None:
    rng = random.Random(seed)
    acknowledged = 0
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITER), str(path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        ) as process:
            assert process.stdout is not None
            for _ in range(rng.randint(1, 60)):
                acknowledged = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read().split("\n")
        acknowledged = max([acknowledged, *(int(line) for line in rest[:-1])])

        journal = Journal.open(path)
        recovered = journal.recover()
        tree = QueueTree() if recovered.state is None else QueueTree.restore(as_state(recovered))
        for event in events_of(recovered):
            tree.apply(event)
        journal.close()
        assert journal.sequence >= acknowledged
        assert sorted(tree.workloads) == sorted(f"w{i}" for i in range(journal.sequence))


def as_state(recovered: Recovered) -> TreeState:
    assert isinstance(recovered.state, TreeState)
    return recovered.state


# ---------------------------------------------------------------- a full disk


def test_a_full_disk_refuses_whole_batches_and_recovers_when_there_is_room(path: Path) -> None:
    journal = Journal.open(path, create=True, max_page_count=24)
    count = 0
    with pytest.raises(JournalUnwritable, match="full"):
        while True:
            write(journal, submitted(count, "x" * 2000), submitted(count + 1, "x" * 2000))
            count += 2
    assert count > 0
    assert journal.sequence == count
    assert "full" in journal.failure
    with pytest.raises(JournalUnwritable):
        write(journal, *(submitted(i, "x" * 9000) for i in range(20)))
    assert [e.event for e in journal.events(0, 1000).events] == [submitted(i, "x" * 2000) for i in range(count)]

    journal.set_page_limit(1000)
    journal.probe()
    assert journal.failure == ""
    assert write(journal, submitted(count)) == count + 1
    journal.close()
    again = Journal.open(path)
    assert len(again.recover().events) == count + 1
    again.close()


def test_a_refused_batch_whose_end_reached_the_disk_does_not_come_back(path: Path) -> None:
    journal = Journal.open(path, create=True)
    write(journal, submitted(0))
    change(  # as if the commit had reached the log and only its fsync had failed
        path, "INSERT INTO record VALUES (2, ?, 'w1', ?, ?)", FORMAT_VERSION, encode(submitted(1)), b"x"
    )
    with pytest.raises(JournalUnwritable):
        write(journal, submitted(2))
    assert write(journal, submitted(3)) == 2
    assert events_of(journal.recover()) == [submitted(0), submitted(3)]
    journal.close()


# ---------------------------------------------------------------- snapshots


def grow(journal: Journal, tree: QueueTree, count: int) -> None:
    for _ in range(count):
        event = submitted(len(tree.workloads))
        write(journal, event)
        tree.apply(event)


def rebuilt(journal: Journal) -> QueueTree:
    recovered = journal.recover()
    tree = QueueTree() if recovered.state is None else QueueTree.restore(as_state(recovered))
    for event in events_of(recovered):
        tree.apply(event)
    return tree


def test_after_compaction_the_same_tree_comes_back(path: Path) -> None:
    journal = Journal.open(path, create=True)
    tree = QueueTree()
    for round_ in range(4):
        grow(journal, tree, 5)
        assert rebuilt(journal).dump() == tree.dump()
        journal.write_snapshot(journal.sequence, pack_state(tree.dump()))
        assert rebuilt(journal).dump() == tree.dump()
        assert journal.snapshot_sequence == 5 * (round_ + 1)
    grow(journal, tree, 3)
    journal.close()

    again = Journal.open(path)
    recovered = again.recover()
    assert recovered.state_sequence == 20
    assert len(recovered.events) == 3
    assert rebuilt(again).dump() == tree.dump()
    page = again.events(0, 100)
    assert [e.sequence for e in page.events] == list(range(16, 24))  # two snapshots and what follows the older one
    assert page.oldest == 16
    again.close()


def test_a_snapshot_of_a_moment_ago_may_be_written_late(path: Path) -> None:
    journal = Journal.open(path, create=True)
    tree = QueueTree()
    grow(journal, tree, 3)
    state = pack_state(tree.dump())
    grow(journal, tree, 2)
    journal.write_snapshot(3, state)
    journal.write_snapshot(3, state)
    assert rebuilt(journal).dump() == tree.dump()
    journal.close()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_damaged_newest_snapshot_loses_nothing(path: Path, count: int, caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal.open(path, create=True)
    tree = QueueTree()
    for _ in range(count):
        grow(journal, tree, 4)
        journal.write_snapshot(journal.sequence, pack_state(tree.dump()))
    grow(journal, tree, 2)
    change(path, "UPDATE snapshot SET body = ? WHERE sequence = ?", pack_state(QueueTree().dump()), 4 * count)
    assert rebuilt(journal).dump() == tree.dump()
    assert f"snapshot {4 * count} is damaged" in caplog.text
    if count > 1:
        change(path, "UPDATE snapshot SET chain = ? WHERE sequence = ?", b"x", 4 * (count - 1))
        if count > 2:
            with pytest.raises(JournalCorrupt, match="every snapshot is damaged"):
                rebuilt(journal)
    journal.close()


def test_events_are_given_in_pages_for_one_workload_or_for_all(path: Path) -> None:
    journal = Journal.open(path, create=True)
    for i in range(6):
        write(journal, submitted(i % 2))
    first = journal.events(0, 4)
    assert [e.sequence for e in first.events] == [1, 2, 3, 4]
    assert (first.next_cursor, first.more) == (4, True)
    second = journal.events(first.next_cursor, 4)
    assert [e.sequence for e in second.events] == [5, 6]
    assert (second.next_cursor, second.more) == (6, False)
    assert journal.events(6, 4).events == ()
    own = journal.events(0, 2, "w1")
    assert [e.sequence for e in own.events] == [2, 4]
    assert [e.sequence for e in journal.events(own.next_cursor, 2, "w1").events] == [6]
    journal.close()


# ---------------------------------------------------------------- backups


def test_a_backup_is_made_while_writing_goes_on_and_can_be_put_back(path: Path, tmp_path: Path) -> None:
    journal = Journal.open(path, create=True)
    for i in range(3):
        write(journal, submitted(i))
    copy = tmp_path / "backup.db"
    assert journal.backup(copy) == 3
    write(journal, submitted(3))
    with pytest.raises(JournalLocked):
        restore_backup(copy, path)
    crashed = copy_of_a_running_journal(path, tmp_path / "crashed")
    journal.close()

    restore_backup(copy, crashed)
    again = Journal.open(crashed, expected_id=journal.journal_id)
    assert events_of(again.recover()) == [submitted(i) for i in range(3)]
    assert write(again, submitted(7)) == 4
    again.close()
    assert crashed.with_name("journal.db-wal.before-restore").exists()


def test_a_backup_that_can_not_be_made_says_so_and_leaves_nothing(path: Path, tmp_path: Path) -> None:
    journal = Journal.open(path, create=True)
    with pytest.raises(JournalError, match="no backup at"):
        journal.backup(tmp_path / "missing" / "backup.db")
    journal.close()
    with pytest.raises(JournalError, match="no backup at"):
        restore_backup(tmp_path / "missing.db", path)


# ---------------------------------------------------------------- formats


def test_an_old_body_goes_through_every_migration_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def renamed(old: str, new: str) -> Callable[[Json], Json]:
        def migrate(data: Json) -> Json:
            assert isinstance(data, dict)
            return {new if key == old else key: value for key, value in data.items()}

        return migrate

    monkeypatch.setattr(journal_format, "FORMAT_VERSION", 3)
    event = NodeCordoned(NodeId("n"), "sick", None, 2.0)
    body = encode(event).replace('"reason"', '"cause"')
    migrations = {1: renamed("cause", "why"), 2: renamed("why", "reason")}
    assert value_of(1, body, migrations) == event
    assert value_of(3, encode(event), migrations) == event
    with pytest.raises(JournalError, match="no way from format 1 to 2"):
        value_of(1, body, {})
    with pytest.raises(JournalError, match="up to 3"):
        value_of(4, body, migrations)
    with pytest.raises(SpecError):
        value_of(2, body, migrations)
