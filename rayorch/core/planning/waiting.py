"""Who waits and why, as a plan tells it: held for each class of equal workloads, made into words when somebody asks.

A turn over 100,000 waiting workloads decides a few hundred times that something can't start. What that means for each
of them is worked out here from the plan's own books, which nobody changes any more once the plan is made.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from rayorch.core.decisions import Wait
from rayorch.core.planning.lines import Entry
from rayorch.core.types import WorkloadId

V = TypeVar("V")
Waits = Mapping[WorkloadId, tuple[Wait, ...]]


@dataclass(eq=False, slots=True)
class Verdict:
    """Why a shape finds no place in its queue in this turn. `lacks_room`: quota alone would have let it start.

    `make`: works the reasons out. `more`: what others have to add.
    """

    make: Callable[[], tuple[Wait, ...]]
    lacks_room: bool
    more: tuple[Wait, ...] = ()
    _made: tuple[Wait, ...] | None = None

    @property
    def waits(self) -> tuple[Wait, ...]:
        """The reasons."""
        if self._made is None:
            self._made = self.make()
        return (*self._made, *self.more) if self.more else self._made


@dataclass(frozen=True, slots=True)
class Segment:
    """The rest of a line, all of whom wait for the same reasons; `apart`: those of them who have their own."""

    entries: Sequence[Entry]
    verdict: Verdict


class Lazy(Mapping[WorkloadId, V]):
    """A mapping over all that wait. It is pickled and copied as a plain dict."""

    def __reduce__(self) -> tuple[object, ...]:
        return dict, (dict(self),)

    def __repr__(self) -> str:
        return repr(dict(self))


class Listed(Lazy[V]):
    """One that has a list of all of them."""

    @abstractmethod
    def _all(self) -> Mapping[WorkloadId, object]:
        """All that wait, in order."""

    def __contains__(self, id: object) -> bool:
        return id in self._all()

    def __iter__(self) -> Iterator[WorkloadId]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


class WaitBook(Listed[tuple[Wait, ...]]):
    """All reasons of each workload that does not start; first those that have their own, then line by line."""

    def __init__(self) -> None:
        self._own: dict[WorkloadId, tuple[Wait, ...] | Verdict] = {}
        self._more: dict[WorkloadId, tuple[Wait, ...]] = {}
        self._segments: list[Segment] = []
        self._left: set[WorkloadId] = set()
        self._index: dict[WorkloadId, tuple[Wait, ...] | Verdict] | None = None

    def put(self, id: WorkloadId, waits: tuple[Wait, ...] | Verdict) -> None:
        """A workload's own reasons."""
        self._own[id] = waits
        self._index = None

    def put_line(self, segment: Segment) -> None:
        """The same reasons for all of these, but for those that have their own."""
        self._segments.append(segment)
        self._index = None

    def add(self, id: WorkloadId, waits: tuple[Wait, ...]) -> None:
        """Further reasons of one that waits."""
        self._more[id] = (*self._more.get(id, ()), *waits)

    def discard(self, id: WorkloadId) -> None:
        """It does not wait."""
        self._left.add(id)
        self._index = None

    def _all(self) -> dict[WorkloadId, tuple[Wait, ...] | Verdict]:
        index = self._index
        if index is None:
            index = dict(self._own)
            for segment in self._segments:
                verdict = segment.verdict
                for _, workload in segment.entries:
                    index.setdefault(workload.spec.id, verdict)
            for id in self._left:
                index.pop(id, None)
            self._index = index
        return index

    def __getitem__(self, id: WorkloadId) -> tuple[Wait, ...]:
        found = self._all()[id]
        waits = found.waits if isinstance(found, Verdict) else found
        more = self._more.get(id)
        return (*waits, *more) if more else waits


@dataclass(eq=False)
class Estimates(Listed[float | None]):
    """When each of those that wait should start, None where nothing is known."""

    book: WaitBook
    known: dict[WorkloadId, float] = field(default_factory=dict)

    def _all(self) -> WaitBook:
        return self.book

    def __getitem__(self, id: WorkloadId) -> float | None:
        if id not in self.book:
            raise KeyError(id)
        return self.known.get(id)


@dataclass(eq=False)
class Positions(Listed[int]):
    """The place of each of those that wait, from 1; `order` gives all of them in order."""

    order: Callable[[], Iterator[WorkloadId]]
    _made: dict[WorkloadId, int] | None = None

    def _all(self) -> dict[WorkloadId, int]:
        made = self._made
        if made is None:
            made = self._made = {id: place for place, id in enumerate(self.order(), start=1)}
        return made

    def __getitem__(self, id: WorkloadId) -> int:
        return self._all()[id]


class Overlaid(Lazy[tuple[Wait, ...]]):
    """Reasons with further ones on top, of those that wait already and of others."""

    def __init__(
        self, below: Mapping[WorkloadId, tuple[Wait, ...]], more: Mapping[WorkloadId, tuple[Wait, ...]]
    ) -> None:
        self._below = below
        self._more = more

    def __getitem__(self, id: WorkloadId) -> tuple[Wait, ...]:
        more = self._more.get(id)
        return self._below[id] if more is None else (*self._below.get(id, ()), *more)

    def __contains__(self, id: object) -> bool:
        return id in self._more or id in self._below

    def __iter__(self) -> Iterator[WorkloadId]:
        yield from self._below
        yield from (id for id in self._more if id not in self._below)

    def __len__(self) -> int:
        return len(self._below) + sum(id not in self._below for id in self._more)
