"""Deserved shares first: who stays within its queue's share, then priority, then the queue that uses least of its own.

Borrowers come last whatever their priority, because what they take can be reclaimed: started first, they would only be
stopped again in the next turn. Of those that borrow, the queue with the larger `surplus_priority` goes first: the
uppermost on the path that would hold more than its share.
"""

from __future__ import annotations

from rayorch.core.ordering import OrderView, QueueHead, SortKey, by_class


@by_class
def key(head: QueueHead, view: OrderView) -> SortKey:
    """The smallest key goes first."""
    surplus = head.quota.surplus_priority(head.queue, head.resources) if head.borrows else 0
    return (int(head.borrows), -surplus, -head.priority, head.quota.share(head.queue))
