"""Which group or segment of a gang finds no domain, and by how much, for a gang whose members alone would fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rayorch.core.planning.groups import Cell
from rayorch.core.planning.nest import EVERYWHERE, times
from rayorch.core.planning.seats import Search
from rayorch.core.topology import Domain
from rayorch.core.types import UNIT


@dataclass(frozen=True, slots=True)
class Lack:
    """What does not fit, in words and in numbers of `unit`."""

    detail: str
    need: float
    have: float
    unit: str


def lacks(layout: Cell, search: Search) -> list[Lack]:
    """Every group and row of segments that would not fit if it were alone; the innermost ones where others lie in them.

    One entry that says so where each of them would fit and all together do not.
    """
    found = list(_lacks(layout, 1, search))
    if found:
        return found
    parts = sum(count for _, count in layout.inside)
    return [Lack("each of its groups and segments would fit, all of them together do not", max(1, parts), 0, "groups")]


def _lacks(cell: Cell, count: int, search: Search) -> Iterator[Lack]:
    inner = [lack for part, number in cell.inside for lack in _lacks(part, number, search)]
    yield from inner
    level = cell.topology.required
    if inner or level is None:
        return
    there = search.on(cell.accelerators[0]) if len(cell.accelerators) == 1 else search
    fits = times(cell, Domain(EVERYWHERE, "", search.topology.nodes), there, count)
    if fits >= count:
        return
    if cell.role:
        detail = f"{count} segments of {cell.role} are needed, {fits} fit: {cell.count} members of each in one {level}"
        yield Lack(detail, count, fits, "segments")
        return
    name = f"group {cell.group}" if cell.group else "it"
    domains = search.topology.at(level)
    have = max((there.free_gpu_units(domain.nodes) for domain in domains), default=0) / UNIT
    detail = f"{name} would not fit within one {level}: the freest of {len(domains)} has {have:g} GPU free"
    yield Lack(detail, cell.gpu_units / UNIT, have, "GPU")
