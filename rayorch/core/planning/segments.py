"""How many of a row of equal units go to each of several domains. Pure arithmetic on capacities.

Together: the smallest domain that takes all of them, so that large ones stay whole; else the domains that take most,
and for what is left the smallest that suffices, so that as few as possible are used (after Kueue's best fit).
Balanced: each of the domains that are used takes as equal a part as can be. The least part is made as large as
possible, then the number of domains as small as possible, then the domains as tight as possible (after Kueue's balanced
placement, which does this for one level; here for any).
"""

from __future__ import annotations

from collections.abc import Sequence

from rayorch.core.policy import SortKey


def together(capacities: Sequence[int], ranks: Sequence[SortKey], need: int) -> dict[int, int] | None:
    """Units by domain; None when there is no room for all. `ranks`: of equally good domains the smallest goes first."""
    left = set(range(len(capacities)))
    found: dict[int, int] = {}
    while need > 0:
        enough = [i for i in left if capacities[i] >= need]
        if enough:
            found[min(enough, key=lambda i: (ranks[i], i))] = need
            return found
        able = [i for i in left if capacities[i] > 0]
        if not able:
            return None
        largest = min(able, key=lambda i: (-capacities[i], ranks[i], i))
        found[largest] = capacities[largest]
        need -= capacities[largest]
        left.remove(largest)
    return found


def balanced(capacities: Sequence[int], ranks: Sequence[SortKey], need: int) -> dict[int, int] | None:
    """The same in parts as equal as can be, where one domain does not take all."""
    if need <= 0 or any(capacity >= need for capacity in capacities):
        return together(capacities, ranks, need)
    order = sorted((i for i in range(len(capacities)) if capacities[i]), key=lambda i: (capacities[i], ranks[i], i))
    sizes = [capacities[i] for i in order]
    best: tuple[int, int, int] | None = None  # least part (negative), number of domains, where they begin
    for number in range(2, min(need, len(order)) + 1):
        window = sum(sizes[-number:])
        if window < need:
            continue
        least = min(sizes[-number], need // number)
        if best is not None and -best[0] >= least:
            continue
        start = len(order) - number
        while start > 0 and sizes[start - 1] >= least and window - sizes[start + number - 1] + sizes[start - 1] >= need:
            window += sizes[start - 1] - sizes[start + number - 1]
            start -= 1
        best = (-least, number, start)
    if best is None:
        return None
    chosen = order[best[2] : best[2] + best[1]]
    return _level(chosen, capacities, need)


def _level(chosen: Sequence[int], capacities: Sequence[int], need: int) -> dict[int, int]:
    """`need` units over the chosen domains, smallest first: each takes its part of what is left, or all it can."""
    found: dict[int, int] = {}
    for position, index in enumerate(chosen):
        part = -(-need // (len(chosen) - position)) if position == len(chosen) - 1 else need // (len(chosen) - position)
        found[index] = min(part, capacities[index])
        need -= found[index]
    return found
