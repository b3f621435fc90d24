"""Runs that are kept go on where a benchmark was stopped, also in the middle of a line."""

from __future__ import annotations

from pathlib import Path

from benchmarks.played.kept import Kept


def test_what_was_kept_is_there_again_and_half_a_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "runs"
    Kept(path).put(("default", "fgd", 42), {100: 95.25, 130: 95.5})
    with path.open("a") as file:
        file.write('{"list": "defau')

    again = Kept(path)
    again.put(("default", "fgd", 43), {100: 95.0})

    assert Kept(path).done == {("default", "fgd", 42): {100: 95.25, 130: 95.5}, ("default", "fgd", 43): {100: 95.0}}


def test_without_a_file_they_are_kept_in_memory() -> None:
    kept = Kept(None)
    kept.put(("default", "fgd", 42), {100: 95.25})
    assert kept.done[("default", "fgd", 42)] == {100: 95.25}
