"""What of a trace was not played, and why: rows that no reader could use, jobs that the door refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from rayorch.sim.trace.model import BadRow
from rayorch.sim.trace.outcome import TurnedAway

MOST_REASONS = 20
MOST_LINES = 20
"""What is kept of a run: so many reasons, and of each so many lines. The counts are of all."""
MOST_SAID = 5
"""What a note says: so many of both."""
MOST_OF_ID = 40
LONGEST = 200
"""Characters of a reason; some list all queues that there are."""


@dataclass(frozen=True, slots=True)
class RefusedRows:
    """Rows of a trace's file that were refused for one reason. `lines`: the first of them, from 1."""

    count: int
    reason: str
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RefusedJobs:
    """Jobs that were refused at the door for one reason. `id`, `line` (0: none) and `reason` are the first one's."""

    count: int
    reason: str
    id: str
    line: int


def rows_by_reason(rows: Iterable[BadRow]) -> tuple[RefusedRows, ...]:
    """The most frequent reasons first, then by line."""
    lines: dict[str, list[int]] = {}
    for row in rows:
        lines.setdefault(row.reason, []).append(row.line)
    found = [RefusedRows(len(at), _cut(reason), tuple(sorted(at)[:MOST_LINES])) for reason, at in lines.items()]
    return tuple(sorted(found, key=lambda one: (-one.count, one.lines, one.reason))[:MOST_REASONS])


def jobs_by_reason(turned_away: Iterable[TurnedAway]) -> tuple[RefusedJobs, ...]:
    """The same of jobs."""
    found = [RefusedJobs(one.count, _cut(one.reason), _cut(one.id), one.line) for one in turned_away]
    return tuple(sorted(found, key=lambda one: (-one.count, one.line, one.id, one.reason))[:MOST_REASONS])


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def lines_in_words(one: RefusedRows, most: int = MOST_LINES) -> str:
    """ "lines 3, 8, 9 and 40 more"."""
    shown = one.lines[:most]
    more = f" and {one.count - len(shown):,} more" if one.count > len(shown) else ""
    return f"line{'s' if one.count > 1 else ''} {', '.join(map(str, shown))}{more}"


def rows_in_words(found: Sequence[RefusedRows], count: int) -> str:
    """Of all `count` refused rows: where the first are, and why they can't be used."""
    said = [f"{lines_in_words(one, MOST_SAID)}: {one.reason}" for one in found[:MOST_SAID]]
    return "; ".join([*said, *_rest(count, found)])


def jobs_in_words(found: Sequence[RefusedJobs], count: int) -> str:
    """Of all `count` refused jobs: how many for each reason, and one of them."""
    said = [f"{one.count:,} ({_example(one)}): {one.reason}" for one in found[:MOST_SAID]]
    return "; ".join([*said, *_rest(count, found)])


def _example(one: RefusedJobs) -> str:
    at = f" in line {one.line}" if one.line else ""
    id = one.id if len(one.id) <= MOST_OF_ID else f"{one.id[: MOST_OF_ID - 1]}…"
    return f"{'such as ' if one.count > 1 else ''}{id!r}{at}"


def _rest(count: int, found: Sequence[RefusedRows] | Sequence[RefusedJobs]) -> list[str]:
    rest = count - sum(one.count for one in found[:MOST_SAID])
    return [f"{rest:,} more for other reasons"] if rest > 0 else []


# ---------------------------------------------------------------- read back


def rows_from(value: object) -> tuple[RefusedRows, ...]:
    """From JSON; TypeError, KeyError or ValueError for anything else."""
    given = cast("list[dict[str, object]]", value)
    return tuple(
        RefusedRows(_whole(one["count"]), str(one["reason"]), tuple(map(_whole, cast("list[object]", one["lines"]))))
        for one in given
    )


def jobs_from(value: object) -> tuple[RefusedJobs, ...]:
    """The same of jobs."""
    given = cast("list[dict[str, object]]", value)
    return tuple(
        RefusedJobs(_whole(one["count"]), str(one["reason"]), str(one["id"]), _whole(one["line"])) for one in given
    )


def _whole(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"expected a whole number, got {value!r}")
    return value
