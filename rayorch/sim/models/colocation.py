"""How fast work goes on a GPU that it shares, and how much of one each kind should therefore ask for.

Two jobs on one GPU slow each other down, by how much depends on both: measured pairs say it (Narayanan 2020 measured
those of 26 kinds of training). From these `shares` finds a part of a GPU for every kind, so that what fits on one
device by its parts goes well together: then seats by parts, which look at nothing else, pack only such pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from rayorch.core.resources import GPU, UNIT, Resources
from rayorch.sim.trace.model import Ask, Trace, TraceJob

PARTS = (0.34, 0.42, 0.5, 0.58, 0.66)
"""What a kind that may be packed asks for: two that add up to at most 1 share a GPU, three never do."""
WHOLE = 1.0
CROWDED = 0.05
"""How fast work is beside what it does not fit beside (its memory, as a rule): it ends, but nobody wants that."""


@dataclass(frozen=True, slots=True)
class Colocation:
    """`pairs`: (kind, kind beside it) -> how fast the first is, of what it is alone. `unknown`: of pairs that were not
    measured, where a kind is not known at all; of two known kinds without a measurement it is `CROWDED`."""

    pairs: Mapping[tuple[str, str], float]
    unknown: float = 0.5
    _kinds: frozenset[str] = field(init=False, repr=False, compare=False, default=frozenset())

    def __post_init__(self) -> None:
        object.__setattr__(self, "_kinds", frozenset(kind for kind, _ in self.pairs))

    @property
    def kinds(self) -> tuple[str, ...]:
        """What was measured, by name."""
        return tuple(sorted(self._kinds))

    def beside(self, kind: str, other: str) -> float:
        """How fast one is beside another, in (0, 1]."""
        found = self.pairs.get((kind, other))
        if found is not None:
            return min(1.0, max(CROWDED, found))
        return CROWDED if kind in self._kinds and other in self._kinds else self.unknown

    def rate(self, kind: str, others: Iterable[str]) -> float:
        """Beside all of these: each slows it as it would alone (more than two were not measured)."""
        rate = 1.0
        for other in others:
            rate *= self.beside(kind, other)
        return rate

    def together(self, kind: str, other: str) -> float:
        """What both do on one GPU, of what one alone does on it; above 1 sharing gains."""
        return self.beside(kind, other) + self.beside(other, kind)

    @staticmethod
    def measured(
        alone: Mapping[tuple[str, int], float],
        packed: Mapping[tuple[tuple[str, int], tuple[str, int]], tuple[float, float]],
    ) -> Colocation:
        """Of throughputs alone and in pairs, of jobs of one GPU (`sim.readers.gavel.read_throughputs`)."""
        pairs: dict[tuple[str, str], float] = {}
        for (one, other), (first, second) in packed.items():
            if one[1] == other[1] == 1 and alone.get(one) and alone.get(other):
                pairs[one[0], other[0]] = first / alone[one]
                pairs[other[0], one[0]] = second / alone[other]
        return Colocation(pairs)


def shares(colocation: Colocation, gains: float, slowest: float = 0.0) -> dict[str, float]:
    """A part of a GPU for each kind, so that all that fit together gain at least that (`together`).

    `slowest`: and each of them is at least so fast. As many such pairs fit as can be found by changing one kind at a
    time, from nobody shares on; in the order of names, so that the same table gives the same parts.
    """
    kinds = colocation.kinds
    good = {
        (a, b)
        for a in kinds
        for b in kinds
        if colocation.together(a, b) >= gains and min(colocation.beside(a, b), colocation.beside(b, a)) >= slowest
    }
    found = dict.fromkeys(kinds, WHOLE)
    changed = True
    while changed:
        changed = False
        for kind in kinds:
            best = max((_fits(kind, part, found, good), -part) for part in (*PARTS, WHOLE))
            if best[0] > _fits(kind, found[kind], found, good):
                found[kind], changed = -best[1], True
    shared = {a for a in kinds for b in kinds if fit(found[a], found[b])}
    return {kind: part if kind in shared else WHOLE for kind, part in found.items()}


def _fits(kind: str, part: float, parts: Mapping[str, float], good: set[tuple[str, str]]) -> int:
    """With how many kinds, itself too, it shares well at that part; -1 where it would share with one that it should
    not. That it could share at all is better than that it could not, whoever is there."""
    if part == WHOLE:
        return 0
    beside = [other for other in parts if fit(part, part if other == kind else parts[other])]
    if any((kind, other) not in good for other in beside):
        return -1
    return 2 * len(beside) + 1


def fit(one: float, other: float) -> bool:
    """Whether two parts fit on one GPU, as exactly as the books count."""
    return round(one * UNIT) + round(other * UNIT) <= UNIT


def may_pack(job: TraceJob) -> bool:
    """Whether it is one member with one GPU: no other was measured in pairs."""
    return job.ask.members == 1 and not job.ask.elastic and job.ask.each.gpu_units == UNIT


def packed(trace: Trace, parts: Mapping[str, float]) -> Trace:
    """The trace where jobs of one member with one GPU ask for the part of their kind; the others as they are."""
    asks: dict[tuple[Resources, float], Ask] = {}

    def of(job: TraceJob) -> TraceJob:
        part = parts.get(job.name, WHOLE)
        if part >= WHOLE or not may_pack(job):
            return job
        if (job.ask.each, part) not in asks:
            each = Resources.of_units({**dict(job.ask.each.items), GPU: round(part * UNIT)})
            asks[job.ask.each, part] = replace(job.ask, each=each)
        return replace(job, ask=asks[job.ask.each, part])

    return replace(trace, jobs=tuple(of(job) for job in trace.jobs))
