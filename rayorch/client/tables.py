"""What the client shows: lists of JSON objects that print as text and as a table, and convert to data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from rayorch.client.notebook import table
from rayorch.client.transport import JsonObject


class Rows(Sequence[JsonObject]):
    """A list of things of one kind, each a JSON object as the API gives it."""

    def __init__(self, items: Sequence[JsonObject], columns: Sequence[str], caption: str) -> None:
        self._items = tuple(items)
        self._columns = tuple(columns)
        self._caption = caption

    @overload
    def __getitem__(self, index: int) -> JsonObject: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[JsonObject]: ...

    def __getitem__(self, index: int | slice) -> JsonObject | Sequence[JsonObject]:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[JsonObject]:
        return iter(self._items)

    def __repr__(self) -> str:
        lines = [", ".join(f"{name}={item.get(name)}" for name in self._columns) for item in self._items]
        return "\n".join([f"{self._caption} ({len(self._items)})", *lines])

    def _repr_html_(self) -> str:
        return table(self._columns, ([item.get(name) for name in self._columns] for item in self._items), self._caption)

    def to_dict(self) -> list[JsonObject]:
        """Plain lists and dictionaries."""
        return list(self._items)


class Explanation:
    """Why a workload is where it is: `state`, `position`, `waits` (each with reason, detail, unblocks …)."""

    def __init__(self, data: JsonObject) -> None:
        self._data = data
        workload = data["workload"]
        waits = data["waits"]
        assert isinstance(workload, dict) and isinstance(waits, list)
        self.id = str(workload["id"])
        self.state = str(workload["state"])
        self.queue = str(workload["queue"])
        self.position = data["position"]
        self.waits: list[JsonObject] = [wait for wait in waits if isinstance(wait, dict)]

    def __repr__(self) -> str:
        place = f", position {self.position} in {self.queue}" if self.position else f" in {self.queue}"
        lines = [f"{self.id}: {self.state}{place}"]
        for wait in self.waits:
            unblocks = f" -> {wait['unblocks']}" if wait["unblocks"] else ""
            lines.append(f"  {'!' if wait['blocks'] else ' '} {wait['reason']}: {wait['detail']}{unblocks}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        columns = ("blocks", "reason", "detail", "unblocks")
        place = f", position {self.position}" if self.position else ""
        caption = f"{self.id}: {self.state} in {self.queue}{place}"
        return table(columns, ([wait[name] for name in columns] for wait in self.waits), caption)

    def to_dict(self) -> JsonObject:
        """As the API gave it."""
        return self._data
