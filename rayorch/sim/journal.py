"""What survives a simulated queue owner. A crash may tear the batch that is being written.

A batch is the events of one command. As with the real journal, it counts when all of it has reached the disk, and
what has reached it of a torn one is dropped when the journal is read.
"""

from __future__ import annotations

from typing import Protocol

from rayorch.core.codec import decode, encode
from rayorch.core.events import Event
from rayorch.core.queues import QueueTree


class SimJournal(Protocol):
    """The port; tests put the real format, and the real file, behind it."""

    def append(self, events: tuple[Event, ...]) -> None:
        """Write a batch; when this returns it is durable."""
        ...

    def tear(self, events: tuple[Event, ...], share: float) -> None:
        """The owner dies while it writes this batch, of which so much (0 to 1) reaches the disk; it is never read
        from again before `read`."""
        ...

    def read(self) -> tuple[QueueTree, int]:
        """After the owner's death: the tree that the journal gives, and how many events it holds in all."""
        ...

    def tail(self, count: int) -> list[str]:
        """The last events as text, for the story of a failure."""
        ...


class PlainJournal:
    """The events as lines of text in memory."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def append(self, events: tuple[Event, ...]) -> None:
        """SimJournal."""
        self.lines += [encode(event) for event in events]

    def tear(self, events: tuple[Event, ...], share: float) -> None:
        """SimJournal: a line is whole or not there."""
        if share >= 1:
            self.append(events)

    def read(self) -> tuple[QueueTree, int]:
        """SimJournal."""
        tree = QueueTree()
        for line in self.lines:
            tree.apply(decode(line))  # type: ignore[arg-type]  # nothing but events is written
        return tree, len(self.lines)

    def tail(self, count: int) -> list[str]:
        """SimJournal."""
        return self.lines[-count:]
