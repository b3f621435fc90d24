"""Pages of a list of workloads that stay right while workloads come and change."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence

from rayorch.core.errors import SpecError
from rayorch.core.requests import ListRequest, WorkloadPage
from rayorch.core.types import Workload, WorkloadId

Place = tuple[float, WorkloadId]
"""(submitted_s, id): a workload's place in the order of submission, which it keeps for good."""

MAX_PAGE = 1_000


def check_limit(limit: int) -> None:
    """SpecError for a page size that is not from 1 to MAX_PAGE."""
    if not 1 <= limit <= MAX_PAGE:
        raise SpecError("limit", f"must be from 1 to {MAX_PAGE}, got {limit}")


def page(workloads: Mapping[WorkloadId, Workload], order: Sequence[Place], request: ListRequest) -> WorkloadPage:
    """Workloads beyond the cursor that pass the filter; `order` is sorted. O(workloads looked at).

    SpecError for a wrong limit or a cursor that no page gave.
    """
    check_limit(request.limit)
    places: Iterable[int]
    if request.newest_first:
        end = bisect.bisect_left(order, _place(request.cursor)) if request.cursor else len(order)
        places = range(end - 1, -1, -1)
    else:
        places = range(bisect.bisect_right(order, _place(request.cursor)) if request.cursor else 0, len(order))
    found: list[Workload] = []
    for i in places:
        workload = workloads[order[i][1]]
        if not request.filter.matches(workload):
            continue
        if len(found) == request.limit:
            return WorkloadPage(tuple(found), f"{found[-1].submitted_s!r} {found[-1].id}")
        found.append(workload)
    return WorkloadPage(tuple(found))


def _place(cursor: str) -> Place:
    submitted_s, space, workload = cursor.partition(" ")
    try:
        if not space or not math.isfinite(float(submitted_s)):
            raise ValueError(cursor)
        return float(submitted_s), WorkloadId(workload)
    except ValueError:
        raise SpecError("cursor", f"{cursor[:200]!r} is not the next_cursor of a page") from None
