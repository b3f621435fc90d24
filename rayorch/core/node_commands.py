"""The part of the queue tree that takes commands about nodes: nothing new on them, work off them, open again."""

from __future__ import annotations

from collections.abc import Mapping

from rayorch.core.events import Event, NodeCordoned, NodeUncordoned
from rayorch.core.types import NodeId
from rayorch.core.wellformed import check_moment, check_text


class NodeCommands:
    """A base of the queue tree. Cordons are kept in its journal; the nodes themselves are the inventory's."""

    def __init__(self) -> None:
        super().__init__()
        self._cordons: dict[NodeId, NodeCordoned] = {}

    @property
    def cordons(self) -> Mapping[NodeId, NodeCordoned]:
        """The nodes that take nothing new."""
        return self._cordons

    def cordon(self, node: NodeId, reason: str, drain_by_s: float | None, now_s: float) -> tuple[Event, ...]:
        """Nothing new on the node; with `drain_by_s`, what is there must leave by then. SpecError."""
        check_text(node, "node")
        check_text(reason, "reason")
        if drain_by_s is not None:
            check_moment(drain_by_s, "drain_by_s")
        old = self._cordons.get(node)
        if old is not None and (old.reason, old.drain_by_s) == (reason, drain_by_s):
            return ()
        return (NodeCordoned(node, reason, drain_by_s, now_s),)

    def uncordon(self, node: NodeId, reason: str, now_s: float) -> tuple[Event, ...]:
        """The node may take work again."""
        check_text(reason, "reason")
        return (NodeUncordoned(node, reason, now_s),) if node in self._cordons else ()

    def _apply_cordon(self, event: NodeCordoned | NodeUncordoned) -> None:
        if isinstance(event, NodeCordoned):
            self._cordons[event.node] = event
        else:
            self._cordons.pop(event.node, None)
