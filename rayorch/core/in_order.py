"""A copy's values in the order of their keys, kept in order: a change costs a search, not a sort."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Generic, Protocol, Self, TypeVar


class Sortable(Protocol):
    """A key that can be told to be before another."""

    def __lt__(self, other: Self, /) -> bool:
        """Whether it is before the other."""
        ...


K = TypeVar("K", bound=Sortable)
V = TypeVar("V")

FEW = 64
"""Up to so many new or missing keys are put in, or taken out, one by one; of more the whole is made anew."""


class InOrder(Generic[K, V]):
    """The values of `copy`, which others change: after that, `touch` says which keys could have changed."""

    def __init__(self, copy: Mapping[K, V]) -> None:
        self._copy = copy
        self._keys: list[K] = sorted(copy)
        self._values = [copy[key] for key in self._keys]
        self._row: tuple[V, ...] | None = None

    def touch(self, keys: Iterable[K]) -> None:
        """Under these keys the copy has, or had, another value than before, or it has lost or got one."""
        come: list[K] = []
        gone: list[int] = []
        for key in set(keys):
            place = bisect_left(self._keys, key)
            known = place < len(self._keys) and self._keys[place] == key
            if key not in self._copy:
                if known:
                    gone.append(place)
            elif not known:
                come.append(key)
            elif self._values[place] is not self._copy[key]:
                self._values[place] = self._copy[key]
                self._row = None
        if come or gone:
            self._row = None
            self._move(come, gone)

    def _move(self, come: list[K], gone: list[int]) -> None:
        if len(come) + len(gone) > FEW:
            self._keys = sorted(self._copy)
            self._values = [self._copy[key] for key in self._keys]
            return
        for place in sorted(gone, reverse=True):
            del self._keys[place]
            del self._values[place]
        for key in come:
            place = bisect_left(self._keys, key)
            self._keys.insert(place, key)
            self._values.insert(place, self._copy[key])

    @property
    def row(self) -> tuple[V, ...]:
        """All values. The same object as the last time when nothing has changed since."""
        if self._row is None:
            self._row = tuple(self._values)
        return self._row
