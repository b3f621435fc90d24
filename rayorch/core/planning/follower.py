"""What is kept of every node of a view, and looks again at those that have changed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rayorch.core.types import NodeId

if TYPE_CHECKING:
    from rayorch.core.planning.index import View


class Follower(ABC):
    """`seen`: how much of the view's log it has looked at. `due`: nodes that changed otherwise."""

    __slots__ = ("_view", "due", "seen")

    def __init__(self, view: View) -> None:
        self._view = view
        self.seen = len(view.log)
        self.due: set[NodeId] = set()

    def refresh(self) -> None:
        """Look at the nodes that have changed."""
        log = self._view.log
        if self.due or self.seen < len(log):
            due = self.due.union(log[self.seen :])
            self.seen, self.due = len(log), set()
            # A node that is on its way is charged, too, and takes nothing here.
            self._look_at(filter(self._view.topology.paths.__contains__, due))

    @abstractmethod
    def _look_at(self, nodes: Iterable[NodeId]) -> None:
        """These are as the view has them now."""
