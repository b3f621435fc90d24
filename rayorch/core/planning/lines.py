"""Who waits, in lines: workloads of one queue that ask for the same thing, in the order of the queue.

What holds for one of a line holds for those behind it, so a turn looks at the first of each line, and at the next one
only when the first has got what it asks for. The lines are kept from turn to turn; what has changed is put in its
place. A key of the profile's order that depends on the time is computed anew in every turn (`core.ordering.basis_of`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import merge

from rayorch.core.forecast import Seen
from rayorch.core.ordering import SortKey
from rayorch.core.planning.claims import Gang, gang_of
from rayorch.core.planning.lengths import Lengths
from rayorch.core.types import QueueId, Workload, WorkloadId

Entry = tuple[SortKey, Workload]
"""A workload behind its key within the queue; keys end with the id, so workloads are never compared."""

Key = Callable[[Workload, Gang], SortKey]

MOST_GANGS = 10_000
"""Kinds of gangs that are remembered beyond those that are in use."""

_identity = id


class Line:
    """See the module. `entries` is sorted; `top`: no workload of it has a higher priority.

    `owner`: whose they all are, where that matters.
    """

    __slots__ = ("entries", "gang", "owner", "queue", "top")

    def __init__(self, queue: QueueId, gang: Gang, owner: str) -> None:
        self.queue = queue
        self.gang = gang
        self.owner = owner
        self.entries: list[Entry] = []
        self.top = -(2**63)


@dataclass(slots=True)
class _Place:
    workload: Workload
    line: Line
    key: SortKey


class Docket:
    """All lines. One that is empty is dropped. `special`: those whose gate must be looked at in every turn. `arrays`:
    records of arrays, which never start and stand in no line.

    Where a queue limits what each owner holds, each owner has lines of its own.
    """

    def __init__(
        self, is_special: Callable[[Workload], bool], by_owner: Callable[[QueueId], bool], seen: Seen | None = None
    ) -> None:
        self._is_special = is_special
        self._by_owner = by_owner
        self._seen = seen if seen is not None else Seen()
        self._lengths: Lengths | None = None
        self._gangs: dict[tuple[object, ...], Gang] = {}
        self._lines: dict[QueueId, dict[tuple[int, str], Line]] = {}
        self._places: dict[WorkloadId, _Place] = {}
        self.special: dict[WorkloadId, Workload] = {}
        self.arrays: dict[WorkloadId, Workload] = {}

    def __len__(self) -> int:
        return len(self._places)

    def lines(self) -> Iterator[tuple[QueueId, list[Line]]]:
        """The lines of each queue that has some, by queue."""
        for queue in sorted(self._lines):
            yield queue, list(self._lines[queue].values())

    def only(self, queue: QueueId) -> bool:
        """Whether nobody waits in any other queue."""
        return self._lines.keys() == {queue}

    @property
    def sole(self) -> QueueId | None:
        """The queue in which all wait; None: there are several, or none."""
        return next(iter(self._lines)) if len(self._lines) == 1 else None

    def first(self, queue: QueueId) -> Workload | None:
        """Who stands first of all in the lines of a queue."""
        lines = self._lines.get(queue)
        return min(line.entries[0] for line in lines.values())[1] if lines else None

    def in_order(self, queue: QueueId) -> Iterator[tuple[Workload, Line]]:
        """All of the lines of a queue, in its order."""
        for _, workload in merge(*(line.entries for line in self._lines[queue].values())):
            yield workload, self._places[workload.spec.id].line

    def place(self, id: WorkloadId) -> tuple[Line, SortKey, Workload] | None:
        """Where a workload stands, None for one that does not wait."""
        found = self._places.get(id)
        return None if found is None else (found.line, found.key, found.workload)

    def gang(self, workload: Workload) -> Gang:
        """What the workload asks for; equal ones are one object."""
        spec = workload.spec
        key = (spec.roles, spec.groups, spec.kind, spec.topology, spec.accelerators)
        gang = self._gangs.get(key)
        if gang is None:
            if len(self._gangs) > MOST_GANGS:
                used = {_identity(line.gang) for lines in self._lines.values() for line in lines.values()}
                self._gangs = {k: g for k, g in self._gangs.items() if _identity(g) in used}
            gang = self._gangs[key] = gang_of(spec)
        return gang

    @property
    def lengths(self) -> Lengths:
        """The same by how long they will run; kept from the first time on that somebody asks."""
        if self._lengths is None:
            self._lengths = Lengths(self._seen)
            for place in self._places.values():
                self._lengths.put(place.workload)
        return self._lengths

    # ------------------------------------------------------------ changes

    def put(self, workloads: Iterable[Workload], key: Key) -> None:
        """These wait now; none of them did before, as far as the docket knows."""
        fresh: dict[int, tuple[Line, list[Entry]]] = {}
        for workload in workloads:
            if workload.spec.array is not None:
                self.arrays[workload.spec.id] = workload
                continue
            gang, queue, id = self.gang(workload), workload.spec.queue, workload.spec.id
            lines = self._lines.setdefault(queue, {})
            owner = workload.spec.owner if self._by_owner(queue) else ""
            line = lines.get((_identity(gang), owner))
            if line is None:
                line = lines[_identity(gang), owner] = Line(queue, gang, owner)
            entry = (key(workload, gang), workload)
            self._places[id] = _Place(workload, line, entry[0])
            if self._lengths is not None:
                self._lengths.put(workload)
            line.top = max(line.top, workload.spec.priority)
            if self._is_special(workload):
                self.special[id] = workload
            fresh.setdefault(_identity(line), (line, []))[1].append(entry)
        for line, entries in fresh.values():
            if len(entries) < 4 and line.entries:
                for entry in entries:
                    insort(line.entries, entry)
            else:
                line.entries = sorted([*line.entries, *entries])

    def drop(self, ids: Iterable[WorkloadId]) -> None:
        """These wait no longer (those that did not are passed over)."""
        for id in ids:
            self.arrays.pop(id, None)
            place = self._places.pop(id, None)
            if place is None:
                continue
            self.special.pop(id, None)
            if self._lengths is not None:
                self._lengths.drop(id)
            line = place.line
            del line.entries[bisect_left(line.entries, (place.key,))]
            if not line.entries:
                lines = self._lines[line.queue]
                del lines[_identity(line.gang), line.owner]
                if not lines:
                    del self._lines[line.queue]

    def reorder(self, key: Key) -> None:
        """Other keys hold now."""
        for lines in self._lines.values():
            for line in lines.values():
                line.entries = sorted((key(workload, line.gang), workload) for _, workload in line.entries)
                for found, workload in line.entries:
                    self._places[workload.spec.id].key = found
