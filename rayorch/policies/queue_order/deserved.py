"""Deserved shares first: who stays within its queue's share, then priority, then the queue that uses least of its own.

Borrowers come last whatever their priority, because what they take can be reclaimed: started first, they would only be
stopped again in the next turn.
"""

from __future__ import annotations

from rayorch.core.ordering import OrderView, QueueHead, SortKey


def key(head: QueueHead, view: OrderView) -> SortKey:
    """The smallest key goes first."""
    return (int(head.borrows), -head.priority, head.quota.share(head.queue))
