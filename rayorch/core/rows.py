"""Tables of frozen objects, and what they hold at one moment, lent without a copy.

A snapshot of 100,000 workloads is asked for at every event, and nearly all of it is as it was. `Table.rows()` costs
nothing: the rows are put together when somebody goes through them, and `Rows.changed_since` tells what is new since an
earlier moment. They are lent: once the table has changed, rows that nobody has gone through before say so with an
error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, TypeVar, cast, overload

from rayorch.core.changes import ChangeLog

K = TypeVar("K")
T = TypeVar("T")


class Table(Generic[K, T]):
    """Objects by key. One writer; readers have rows."""

    def __init__(self) -> None:
        self._log: ChangeLog[K] = ChangeLog()
        self._by_key: dict[K, T] = {}
        self.version = 1

    @property
    def by_key(self) -> Mapping[K, T]:
        """All that it holds now."""
        return self._by_key

    def put(self, key: K, row: T) -> None:
        """This object is there from now on, in place of another with this key."""
        if self._by_key.get(key) is not row:
            self.version += 1
            self._by_key[key] = row
            self._log.touch(key, self.version)

    def drop(self, key: K) -> None:
        """No object with this key is there any more."""
        if key in self._by_key:
            self.version += 1
            del self._by_key[key]
            self._log.drop(key, self.version)

    def since(self, version: int) -> tuple[K, ...] | None:
        """What changed after that version; None when that is no longer known."""
        return self._log.since(version)

    def rows(self) -> tuple[T, ...]:
        """What it holds at this moment, sorted by key; for who reads it a tuple, in truth a `Rows`."""
        return cast("tuple[T, ...]", Rows(self))


class Rows(Sequence[T], Generic[K, T]):
    """See the module."""

    __slots__ = ("_made", "table", "version")

    def __init__(self, table: Table[K, T]) -> None:
        self.table = table
        self.version = table.version
        self._made: tuple[T, ...] | None = None

    def changed_since(self, version: int) -> tuple[K, ...] | None:
        """Keys of what is other now than at that version of the same table; None: that is no longer known."""
        self._check()
        return self.table.since(version)

    def _check(self) -> None:
        if self.version != self.table.version:
            raise RuntimeError("these rows were lent, and their table has changed since")

    def _all(self) -> tuple[T, ...]:
        if self._made is None:
            self._check()
            by_key = self.table.by_key
            self._made = tuple(by_key[key] for key in sorted(by_key))  # type: ignore[type-var]  # ids, all of one kind
        return self._made

    def __len__(self) -> int:
        return len(self.table.by_key) if self.version == self.table.version else len(self._all())

    def __iter__(self) -> Iterator[T]:
        return iter(self._all())

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        return self._all()[index]

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Rows | tuple) and self._all() == tuple(other))

    def __hash__(self) -> int:
        return hash(self._all())

    def __repr__(self) -> str:
        return repr(self._all())

    def __reduce__(self) -> tuple[object, ...]:
        return tuple, (self._all(),)
