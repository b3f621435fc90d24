"""The log store's files and the pump that fills them."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from rayorch.actors.logs import KEEP_YOUNG_S, LogFiles, LogLimits, LogPump, LogSettings, LogStoreShell, whole_text
from rayorch.core.errors import SpecError
from rayorch.core.types import WorkloadId

W = WorkloadId("team/w")


def test_an_append_that_is_repeated_changes_nothing_and_one_beyond_the_end_is_not_taken(tmp_path: Path) -> None:
    files = LogFiles(tmp_path)
    assert files.append(W, 1, 0, b"hello ") == 6
    assert files.append(W, 1, 0, b"hello ") == 6
    assert files.append(W, 1, 3, b"lo world") == 11
    assert files.append(W, 1, 50, b"gap") == 11
    assert files.read(W, 1, 0, 100) == (0, b"hello world")
    assert files.read(W, 1, -5, 100) == (6, b"world")
    assert (tmp_path / "team/w/1.log").read_bytes() == b"hello world"
    assert LogFiles(tmp_path).append(W, 1, 11, b"!") == 12


def test_of_a_long_log_the_newest_part_is_kept_under_the_same_offsets(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, LogLimits(attempt_bytes=200))
    written = b"".join(b"line %05d\n" % i for i in range(100))
    for at in range(0, len(written), 44):
        files.append(W, 1, at, written[at : at + 44])
    for reader in (files, LogFiles(tmp_path, LogLimits(attempt_bytes=200))):
        start, kept = reader.read(W, 1, 0, 10_000)
        assert written[start:] == kept
        assert 100 < len(kept) <= 300
        assert reader.size(W, 1) == len(written)
    assert sum(f.stat().st_size for f in tmp_path.rglob("*.log*")) <= 300


def test_old_logs_go_first_when_all_together_are_too_large_and_young_ones_stay(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, LogLimits(total_bytes=1500))
    for attempt in (1, 2, 3):
        files.append(W, attempt, 0, bytes(1000))
        files.finish(W, attempt)
    files.append(WorkloadId("idle"), 1, 0, b"x")
    files.finish(WorkloadId("idle"), 1)
    long_ago_s = time.time() - 2 * KEEP_YOUNG_S
    os.utime(files.path(WorkloadId("idle"), 1), (long_ago_s - 200.0,) * 2)
    for attempt, age_s in ((1, 100.0), (2, 0.0)):
        os.utime(files.path(W, attempt), (long_ago_s - age_s, long_ago_s - age_s))
    files.prune(time.time())
    assert [files.path(W, a).exists() for a in (1, 2, 3)] == [False, False, True]
    assert files.size(W, 1) == 0
    assert [files.finished(W, a) for a in (1, 2, 3)] == [False, False, True]
    assert not (tmp_path / "idle").exists()


def test_of_a_forgotten_workload_nothing_is_left_and_its_next_life_begins_empty(tmp_path: Path) -> None:
    files, other = LogFiles(tmp_path), WorkloadId("other")
    for attempt in (1, 2):
        files.append(W, attempt, 0, b"old")
        files.finish(W, attempt)
    files.append(other, 1, 0, b"kept")
    files.forget(W)
    files.forget(WorkloadId("unknown"))
    assert sorted(f.name for f in tmp_path.rglob("*") if f.is_file()) == ["1.log"]
    assert files.append(W, 1, 0, b"new") == 3 and not files.finished(W, 1)
    assert files.read(other, 1, 0, 10) == (0, b"kept")


def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError):
        LogFiles(tmp_path / "logs").append(WorkloadId("../../x"), 1, 0, b"y")


def test_a_character_is_never_cut_in_two() -> None:
    data = "grüße €".encode()
    for cut in range(len(data) + 1):
        text, used = whole_text(data[:cut], more_follows=True)
        assert text == data[:used].decode() and cut - used < 4
    assert whole_text(b"\xff\xe2", more_follows=False) == ("��", 2)


async def test_a_follower_is_woken_by_new_output_and_by_the_end(tmp_path: Path) -> None:
    store: Any = LogStoreShell(LogSettings("main", str(tmp_path)))
    await store.append(W, 1, 0, b"one\n")
    chunk = await store.follow(W, 1, 0, 100.0)
    assert (chunk.text, chunk.next_offset, chunk.ended) == ("one\n", 4, False)
    waiting = asyncio.create_task(store.follow(W, 1, 4, 100.0))
    await asyncio.sleep(0.02)
    await store.append(W, 1, 4, b"two\n")
    assert (await waiting).text == "two\n"
    waiting = asyncio.create_task(store.follow(W, 1, 8, 100.0))
    await asyncio.sleep(0.02)
    await store.finish(W, 1)
    assert (await waiting).ended
    restarted: Any = LogStoreShell(LogSettings("main", str(tmp_path)))
    assert (await restarted.read(W, 1, 0)).ended
    assert not (await store.follow(W, 2, 0, 0.05)).ended


class FakeStore:
    """A store in memory that can be closed, and can lose everything."""

    def __init__(self) -> None:
        self.data = b""
        self.open = True
        self.lose_next_answer = False

    async def send(self, offset: int, data: bytes) -> int:
        if not self.open:
            raise ConnectionError("restarting")
        if offset <= len(self.data):
            self.data += data[len(self.data) - offset :]
        if self.lose_next_answer:
            self.lose_next_answer = False
            raise ConnectionError("the answer is lost")
        return len(self.data)


async def test_the_pump_brings_everything_once_and_in_order_even_if_an_answer_is_lost() -> None:
    store = FakeStore()
    store.lose_next_answer = True
    pump = LogPump(store.send)
    parts = [b"part %d\n" % i for i in range(2000)]
    for part in parts:
        pump.write(part)
    await pump.close(60.0)
    assert store.data == b"".join(parts)


async def test_output_that_finds_no_store_is_dropped_oldest_first_and_the_log_says_so() -> None:
    store = FakeStore()
    pump = LogPump(store.send, buffer_bytes=1000)
    store.open = False
    for i in range(100):
        pump.write(b"%099d\n" % i)
    await asyncio.sleep(0.5)
    store.open = True
    await pump.close(60.0)
    lines = store.data.decode().splitlines()
    assert any(line.startswith("[rayorch: ") and "dropped" in line for line in lines)
    assert lines[-1] == f"{99:099d}"
    numbers = [int(line) for line in lines if line.isdigit()]
    assert numbers == sorted(numbers) and len(numbers) < 100


async def test_the_end_of_much_output_needs_few_calls_so_that_it_arrives_in_the_seconds_that_an_end_has() -> None:
    store, sizes = FakeStore(), []

    async def send(offset: int, data: bytes) -> int:
        sizes.append(len(data))
        return await store.send(offset, data)

    pump = LogPump(send)
    for _ in range(1600):
        pump.write(b"y" * 65536)
    pump.write(b"last words\n")
    await pump.close(60.0)
    assert store.data.endswith(b"last words\n")
    assert len(sizes) <= 6, sizes


async def test_a_store_that_has_lost_its_files_is_written_on_from_where_it_is() -> None:
    store = FakeStore()
    pump = LogPump(store.send)
    pump.write(b"before\n")
    while not store.data:
        await asyncio.sleep(0.02)
    store.data = b""
    pump.write(b"after\n")
    await pump.close(60.0)
    assert store.data == b"after\n"
