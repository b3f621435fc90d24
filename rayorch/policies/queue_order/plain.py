"""No order of queues: their heads are compared by their own keys, as if there were one queue for all (Slurm)."""

from __future__ import annotations

from rayorch.core.ordering import OrderView, QueueHead, SortKey, by_class


@by_class
def key(head: QueueHead, view: OrderView) -> SortKey:
    """The heads' own keys follow."""
    return ()
