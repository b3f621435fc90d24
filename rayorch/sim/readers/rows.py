"""What all readers share: opening files, counting lines, refusing rows, and putting a trace together.

A reader goes through its file once. A row that can't be used is refused with its line and why; it never raises. A file
that is not of the form at all is an error (SpecError) that says what was expected.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TextIO, TypeVar, cast

from rayorch.core.errors import SpecError
from rayorch.core.resources import CPU, GPU, MODEL_LABEL, UNIT, Resources
from rayorch.core.types import Device, NodeId, NodeSpec, QueueSpec
from rayorch.sim.trace.model import Ask, BadRow, Trace, TraceJob

Row = TypeVar("Row")
MEMORY = "memory"
MIB = 1 << 20
GIB = 1 << 30
GZIP_MAGIC = b"\x1f\x8b"
ENCODING = "utf-8-sig"
"""UTF-8, with a mark of the byte order at the beginning or without."""
UNREADABLE = (OSError, EOFError, zlib.error)
"""What a file raises that breaks off or is damaged."""
LONGEST_S = 100 * 365.25 * 86_400.0
"""No time of a trace is farther away than a century; what is, is a wrong unit or garbage."""
MOST = 10_000_000
"""No job has more GPUs, CPUs or members than this."""

SUCCEEDED, FAILED, CANCELLED = "succeeded", "failed", "cancelled"


class Refused(ValueError):
    """One row can't be used; the text says why."""


def open_text(path: str | Path) -> TextIO:
    """The file as text, unpacked where it is gzip (by its first bytes, not by its name). Bytes that are no UTF-8 are
    replaced, so that they refuse a row and not the file."""
    path = Path(path)
    if not path.is_file():
        raise SpecError(str(path), "is not a file")
    with path.open("rb") as file:
        packed = file.read(2) == GZIP_MAGIC
    if packed:
        return cast(TextIO, gzip.open(path, "rt", encoding=ENCODING, errors="replace", newline=""))
    return path.open(encoding=ENCODING, errors="replace", newline="")


def lines_of(path: str | Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, line without its end). A packed file that breaks off is a SpecError."""
    try:
        with open_text(path) as file:
            for number, line in enumerate(file, 1):
                yield number, line.rstrip("\r\n")
    except UNREADABLE as error:
        raise SpecError(str(path), f"can't be read to its end: {error}") from error


def json_of(path: str | Path, expected: str) -> object:
    """What a JSON file holds, packed or not. SpecError for one that is none, with what was expected."""
    try:
        with open_text(path) as file:
            return json.load(file)
    except (ValueError, RecursionError, *UNREADABLE) as error:
        raise SpecError(str(path), f"is not JSON: {error}; expected {expected}") from error


def first_lines(path: str | Path, count: int = 5) -> list[str]:
    """The first lines, at most `count`, each cut at 2,000 characters."""
    found: list[str] = []
    try:
        with open_text(path) as file:
            while len(found) < count and (line := file.readline(2_000)):
                found.append(line.rstrip("\r\n"))
    except UNREADABLE as error:
        raise SpecError(str(path), f"can't be read: {error}") from error
    return found


class Table:
    """A file of separated columns with a header: `for line, row in table`, `row` by the names of the columns.

    SpecError without a header, or where it lacks one of `columns`. Rows with too few or too many cells are refused.
    """

    def __init__(
        self,
        path: str | Path,
        columns: Sequence[str],
        builder: TraceBuilder,
        separator: str = ",",
        header: Sequence[str] | None = None,
    ) -> None:
        self._builder = builder
        self._lines = lines_of(path)
        self._separator = separator
        if header is None:
            first = next(self._lines, None)
            if first is None:
                raise SpecError(str(path), f"is empty; expected a header with {', '.join(columns)}")
            try:
                header = [name.strip().lstrip("\ufeff") for name in self._cells(first[1])]
            except csv.Error as error:
                raise SpecError(str(path), f"its header is not a row: {error}") from error
        missing = [name for name in columns if name not in header]
        if missing:
            raise SpecError(str(path), f"has no column {missing[0]}; expected {', '.join(columns)}")
        self.header = tuple(header)

    def _cells(self, line: str) -> list[str]:
        if '"' not in line:
            return line.split(self._separator)
        return next(csv.reader([line], delimiter=self._separator), [])

    def __iter__(self) -> Iterator[tuple[int, Mapping[str, str]]]:
        for number, line in self._lines:
            if not line.strip():
                continue
            try:
                cells = self._cells(line)
            except csv.Error as error:
                self._builder.refuse(number, f"is not a row: {error}")
                continue
            if len(cells) != len(self.header):
                self._builder.refuse(number, f"has {len(cells)} cells, expected {len(self.header)}")
                continue
            yield number, dict(zip(self.header, cells, strict=True))


# ---------------------------------------------------------------- cells


def number(text: str, what: str, least: float = 0.0, most: float = LONGEST_S) -> float:
    """A finite number within the bounds. Refused names `what`."""
    try:
        value = float(text)
    except ValueError:
        raise Refused(f"{what} is not a number: {text[:40]!r}") from None
    if not math.isfinite(value) or not least <= value <= most:
        raise Refused(f"{what} is {text.strip()[:40]}, expected {least:g} to {most:g}")
    return value


def optional(text: str, what: str, least: float = 0.0, most: float = LONGEST_S) -> float | None:
    """The same; None for an empty cell and for words that mean so."""
    return None if text.strip().lower() in EMPTY else number(text, what, least, most)


EMPTY = frozenset({"", "nan", "none", "null", "na", "n/a", "unknown", "-"})


def whole(text: str, what: str, least: int = 0, most: int = MOST) -> int:
    """A whole number within the bounds, also written as 4.0."""
    value = number(text, what, least, most)
    if value != int(value):
        raise Refused(f"{what} is not a whole number: {text[:40]!r}")
    return int(value)


def moment(text: str, what: str) -> float:
    """Seconds since the epoch of an ISO time, with or without zone (then taken as UTC), or of such a number."""
    text = text.strip()
    if text[4:5] != "-":
        try:
            return number(text, what)
        except Refused:
            raise Refused(f"{what} is not a time: {text[:40]!r}") from None
    try:
        found = datetime.fromisoformat(text)
        at_s = ((found if found.tzinfo is not None else found.replace(tzinfo=UTC)) - _EPOCH) / _SECOND
    except (ValueError, OverflowError):
        raise Refused(f"{what} is not a time: {text[:40]!r}") from None
    if at_s < 0:
        raise Refused(f"{what} is before 1970: {text[:40]!r}")
    return at_s


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)


def optional_moment(text: str, what: str) -> float | None:
    """The same; None for an empty cell and for words that mean so."""
    return None if text.strip().lower() in EMPTY else moment(text, what)


# ---------------------------------------------------------------- shapes


def members_of(gpus: int, per_node: int) -> tuple[int, int]:
    """(members, GPUs of each) for a trace that says only how many GPUs: all members are alike.

    `per_node` 0: members of one GPU, which may lie anywhere. Else the largest size that divides them and fits a node:
    24 GPUs on nodes of 8 are three members, 12 are two of 6.
    """
    if per_node <= 0 or gpus <= 1:
        return (gpus, 1) if gpus > 1 else (1, gpus)
    each = next(size for size in range(min(per_node, gpus), 0, -1) if gpus % size == 0)
    return gpus // each, each


def on_nodes(gpus: int, nodes: int, per_node: int) -> tuple[int, int]:
    """The same for a trace that also says on how many nodes: as many equal members, where they divide so. Without GPUs
    each node is a member."""
    if not gpus:
        return max(1, nodes), 0
    if nodes >= 1 and gpus % nodes == 0 and gpus >= nodes:
        return nodes, gpus // nodes
    return members_of(gpus, per_node)


def share(amount: float, members: int) -> float:
    """A member's part, rounded up to what amounts can be (1/10000), so that the parts are at least the whole."""
    return math.ceil(round(amount * UNIT, 6) / members) / UNIT


class TraceBuilder:
    """Collects jobs and refusals; equal shapes and texts are one object."""

    def __init__(self, name: str, source: str | Path = "") -> None:
        self._name = name
        self._source = str(source)
        self._jobs: list[TraceJob] = []
        self._refused: list[BadRow] = []
        self._asks: dict[object, Ask] = {}
        self._texts: dict[str, str] = {}
        self._ids: set[str] = set()

    def refuse(self, line: int, reason: str) -> None:
        """A row that can't be used."""
        self._refused.append(BadRow(line, self.text(reason)))

    def text(self, text: str) -> str:
        """The one object for an equal text."""
        return self._texts.setdefault(text, text)

    def ask(
        self,
        members: int,
        gpus: float = 0.0,
        cpus: float = 0.0,
        memory_bytes: float = 0.0,
        models: Sequence[str] = (),
        others: Mapping[str, float] | None = None,
        sizes: tuple[int, int] = (0, 0),
    ) -> Ask:
        """The shape of a gang of equal members; amounts are of one member. Refused for one that nothing can be.

        `sizes`: the fewest and most members of one that is elastic.
        """
        models = tuple(dict.fromkeys(model for model in models if model))
        extra = tuple(sorted((others or {}).items()))
        key = (members, gpus, cpus, memory_bytes, models, extra, sizes)
        known = self._asks.get(key)
        if known is None:
            if members < 1:
                raise Refused(f"has {members} members")
            amounts = {GPU: gpus, CPU: cpus, MEMORY: memory_bytes, **dict(extra)}
            try:
                each = Resources.of({name: amount for name, amount in amounts.items() if amount})
            except SpecError as error:
                raise Refused(f"asks for what can't be: {error}") from None
            if not each:
                raise Refused("asks for nothing")
            known = self._asks[key] = Ask(members, each, models, least=sizes[0], most=sizes[1])
        return known

    @property
    def refused(self) -> tuple[BadRow, ...]:
        """The refused rows so far, by line."""
        return tuple(sorted(self._refused, key=lambda row: row.line))

    def shape(self, ask: Ask) -> Ask:
        """The one object for an equal shape."""
        return self._asks.setdefault(ask, ask)

    def add(self, job: TraceJob) -> None:
        """A job. Refused for an id that was there before, or a time that can't be."""
        if job.id in self._ids:
            raise Refused(f"the id {job.id[:40]!r} was there before")
        if not math.isfinite(job.submit_s) or math.isnan(job.duration_s) or job.duration_s < 0:
            raise Refused(f"runs for {job.duration_s:g} s")
        self._ids.add(job.id)
        self._jobs.append(job)

    def each(self, rows: Iterable[tuple[int, Row]], read: Callable[[int, Row], None]) -> None:
        """Let `read` take every row; what it raises as Refused is noted with the line."""
        for line, row in rows:
            try:
                read(line, row)
            except Refused as error:
                self.refuse(line, str(error))

    def build(
        self,
        expected: str,
        from_zero: bool = False,
        nodes: tuple[NodeSpec, ...] = (),
        queues: tuple[QueueSpec, ...] = (),
        empty_ok: bool = False,
    ) -> Trace:
        """The trace, by time of submission. `from_zero`: times are moved so that the first job comes at 0.

        SpecError where there are rows and all were refused: then it is another file than `expected`.
        """
        jobs = self._jobs
        if not jobs and not empty_ok:
            first = next(iter(self._refused), None)
            why = f"; all {len(self._refused)} rows are refused, line {first.line}: {first.reason}" if first else ""
            raise SpecError(self._source, f"has no job; expected {expected}{why}")
        if from_zero and jobs:
            start_s = min(job.submit_s for job in jobs)
            for index, job in enumerate(jobs):
                jobs[index] = _moved(job, start_s)
        jobs.sort(key=lambda job: job.submit_s)  # stable: equal times keep the file's order
        return Trace(self._name, tuple(jobs), nodes, queues, self.refused, self._source)


def _moved(job: TraceJob, start_s: float) -> TraceJob:
    return replace(
        job,
        submit_s=job.submit_s - start_s,
        started_s=None if job.started_s is None else job.started_s - start_s,
        ended_s=None if job.ended_s is None else job.ended_s - start_s,
    )


def machine(id: str, total: Resources, gpus: int, model: str) -> NodeSpec:
    """A node with so many whole GPUs of a model; an empty model is not known."""
    return NodeSpec(
        NodeId(id),
        id,
        total,
        devices=tuple(Device(index, model) for index in range(gpus)),
        labels=((MODEL_LABEL, model),) if model else (),
    )


def machines_of(
    path: str | Path, columns: Sequence[str], read: Callable[[Mapping[str, str]], NodeSpec]
) -> tuple[NodeSpec, ...]:
    """A table of machines, one a row, sorted by id. SpecError with the line of the first wrong row, or without any."""
    builder = TraceBuilder("machines", path)
    found: list[NodeSpec] = []
    builder.each(Table(path, columns, builder), lambda _, row: found.append(read(row)))
    if builder.refused or not found:
        first = next(iter(builder.refused), None)
        why = f"line {first.line} {first.reason}" if first else "has no node"
        raise SpecError(str(path), f"{why}; expected columns {', '.join(columns)}")
    return tuple(sorted(found, key=lambda node: node.id))


def ran_s(started_s: float | None, ended_s: float | None) -> float:
    """How long it ran; Refused where it never started, has not ended, or ended before."""
    if started_s is None:
        raise Refused("never started")
    if ended_s is None:
        raise Refused("had not ended, so that how long it runs is not known")
    if ended_s < started_s:
        raise Refused(f"ended {started_s - ended_s:g} s before it started")
    return ended_s - started_s
