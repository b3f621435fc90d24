"""Comparing queues level by level: siblings first where their paths part, as a tournament down the tree would."""

from __future__ import annotations

from collections.abc import Callable

from rayorch.core.ordering import SortKey
from rayorch.core.quota import Quota
from rayorch.core.types import QueueId, QueueSpec


def along_path(quota: Quota, queue: QueueId, value: Callable[[QueueSpec], float]) -> SortKey:
    """(value, id) of each queue on the path, from the top: of two queues those decide that are siblings.

    The id follows each value, so that below equal ones children of different parents are not compared.
    """
    key: list[float | str] = []
    for spec in reversed(quota.path(queue)):
        key += (value(spec), spec.id)
    return tuple(key)
