"""Kueue without fair sharing: who stays within its queue's share before who borrows, then priority, then age.

As `deserved`, but queues that use little of their share have no right to go first.
"""

from __future__ import annotations

from rayorch.core.ordering import OrderView, QueueHead, SortKey, by_class


@by_class
def key(head: QueueHead, view: OrderView) -> SortKey:
    """The smallest key goes first; the head's own key follows."""
    return (int(head.borrows), -head.priority)
