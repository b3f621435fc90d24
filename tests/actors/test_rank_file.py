"""The file by which a command learns where its ranks are."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from rayorch.actors.rank_file import RankFile
from rayorch.core.grants import Grant, Seat
from rayorch.core.types import Resources, WorkloadId


def seat(index: int, rank: int, channel: int | None = None) -> Seat:
    return Seat("worker", index, f"n{index}", "aa", index, Resources(), rank=rank, path="z1/r2", channel=channel)


def test_it_lists_the_seats_by_rank_and_follows_the_grant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = RankFile.make(Grant(WorkloadId("w"), 1, 1, (seat(0, 1), seat(1, 0, 7))))
    assert made is not None
    first = json.loads(made.path.read_text())
    assert [(entry["rank"], entry["node"], entry["channel"]) for entry in first] == [(0, "n1", 7), (1, "n0", None)]
    assert first[0] == {
        "role": "worker",
        "rank": 0,
        "index": 1,
        "node": "n1",
        "path": "z1/r2",
        "group": "aa",
        "bundle": 1,
        "channel": 7,
    }
    assert made.follow(Grant(WorkloadId("w"), 1, 2, (seat(0, 0),)))
    assert len(json.loads(made.path.read_text())) == 1
    made.remove()
    assert list(tmp_path.iterdir()) == []


def test_work_runs_without_it_where_there_is_no_place_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert RankFile.make(Grant(WorkloadId("w"), 1, 1, (seat(0, 0),))) is None
