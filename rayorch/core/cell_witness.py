"""Domains for all cells that are owed, where larger ones first does not do: the best choice of all.

Where racks of two nodes lie in one zone and of four in another, it matters which zone stands for a cell of a zone.
Domains lie one in the other, so the best choices are found from the innermost outwards: for each domain all
combinations of cells that its inside gives, none of which another one is as good as in everything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from rayorch.core.cells import CellKind, Rank
from rayorch.core.ids import NodeId
from rayorch.core.topology import NODE_LEVEL, Domain

MOST_CHOICES = 256
"""Combinations that are kept for one domain; with more of them no better choice is looked for."""

Counts = tuple[int, ...]
"""How many cells of each kind."""

Chosen = tuple["Chosen", "Chosen"] | tuple[tuple[int, Domain], ...]
"""Which domains these are: two choices together, or (number of the kind, domain) one by one."""


def witness(
    owed: Mapping[CellKind, int],
    whole: Mapping[CellKind, Collection[Domain]],
    levels: tuple[str, ...],
    rank: Rank,
) -> dict[CellKind, tuple[Domain, ...]]:
    """For each kind as many of its `whole` domains as are owed, or all that there are, no two of which share a node.

    Larger cells first, since smaller ones fit beside them; of equal ones those in domains that are broken already, so
    that larger ones stay whole. Where that leaves a cell without a domain, the best choice of all (`best_witness`).
    `levels`: from the outermost inwards.
    """
    taken: set[NodeId] = set()
    found: dict[CellKind, tuple[Domain, ...]] = {}
    outer_first = {level: n for n, level in enumerate(levels)}
    kinds = sorted(owed, key=lambda kind: (outer_first.get(kind.level, len(levels)), kind))
    for kind in kinds:
        able = [domain for domain in whole.get(kind, ()) if taken.isdisjoint(domain.nodes)]
        found[kind] = tuple(sorted(able, key=lambda domain: (*rank(domain), domain.name))[: max(0, owed[kind])])
        taken.update(node for domain in found[kind] for node in domain.nodes)
    lacks = any(len(found[kind]) < owed[kind] for kind in kinds)
    outer = [kind for kind in kinds if owed[kind] > 0 and kind.level != NODE_LEVEL]
    if lacks and len(outer) > 1:
        return best_witness(kinds, owed, whole, rank) or found
    return found


def best_witness(
    kinds: Sequence[CellKind],
    owed: Mapping[CellKind, int],
    whole: Mapping[CellKind, Collection[Domain]],
    rank: Rank,
) -> dict[CellKind, tuple[Domain, ...]] | None:
    """As many of the first kind as can be had, then of the second, and so on; None where there are too many choices.

    No two domains share a node. Of several best choices one: the same one for the same domains.
    """
    caps = tuple(max(0, owed[kind]) for kind in kinds)
    sets: dict[frozenset[NodeId], list[tuple[int, Domain]]] = {}
    for n, kind in enumerate(kinds):
        for domain in whole.get(kind, ()) if caps[n] else ():
            sets.setdefault(frozenset(domain.nodes), []).append((n, domain))
    parents = _parents(sets)
    if parents is None:
        return None
    inside: dict[frozenset[NodeId] | None, list[frozenset[NodeId]]] = {}
    for one, parent in parents.items():
        inside.setdefault(parent, []).append(one)
    found: dict[frozenset[NodeId] | None, dict[Counts, Chosen]] = {}
    order: list[frozenset[NodeId] | None] = [*reversed(parents), None]
    for nodes in order:
        choices = _together(inside.get(nodes, ()), sets, inside, found, caps, rank)
        if choices is None:
            return None
        if nodes is not None:
            for n, domain in sets[nodes]:
                choices.setdefault(_one(n, len(caps)), ((n, domain),))
            choices = _undominated(choices)
        found[nodes] = choices
    best = max(found[None])
    chosen: dict[CellKind, list[Domain]] = {kind: [] for kind in kinds}
    for n, domain in _flat(found[None][best]):
        chosen[kinds[n]].append(domain)
    return {kind: tuple(chosen[kind][: caps[n]]) for n, kind in enumerate(kinds)}


def _parents(
    sets: Mapping[frozenset[NodeId], object],
) -> dict[frozenset[NodeId], frozenset[NodeId] | None] | None:
    """The smallest set around each, larger ones first; None where sets overlap in part."""
    around: dict[NodeId, frozenset[NodeId]] = {}
    parents: dict[frozenset[NodeId], frozenset[NodeId] | None] = {}
    for nodes in sorted(sets, key=lambda nodes: (-len(nodes), min(nodes))):
        outer = {around.get(node) for node in nodes}
        if len(outer) > 1:
            return None
        parents[nodes] = outer.pop()
        around.update(dict.fromkeys(nodes, nodes))
    return parents


def _together(
    members: Sequence[frozenset[NodeId]],
    sets: Mapping[frozenset[NodeId], list[tuple[int, Domain]]],
    inside: Mapping[frozenset[NodeId] | None, object],
    found: Mapping[frozenset[NodeId] | None, dict[Counts, Chosen]],
    caps: Counts,
    rank: Rank,
) -> dict[Counts, Chosen] | None:
    """What several domains give beside each other. Those of one kind with nothing inside count as so many of it."""
    alike: dict[int, list[Domain]] = {}
    choices: dict[Counts, Chosen] = {(0,) * len(caps): ()}
    for nodes in members:
        if len(sets[nodes]) == 1 and nodes not in inside:
            n, domain = sets[nodes][0]
            alike.setdefault(n, []).append(domain)
            continue
        choices = _sums(choices, found[nodes], caps)
        if len(choices) > MOST_CHOICES:
            return None
    for n, domains in sorted(alike.items()):
        first = sorted(domains, key=lambda domain: (*rank(domain), domain.name))[: caps[n]]
        row = tuple((n, domain) for domain in first)
        choices = _sums(choices, {_one(n, len(caps), len(first)): row}, caps)
    return choices


def _sums(one: Mapping[Counts, Chosen], other: Mapping[Counts, Chosen], caps: Counts) -> dict[Counts, Chosen]:
    sums: dict[Counts, Chosen] = {}
    for a, left in one.items():
        for b, right in other.items():
            both = tuple(min(cap, x + y) for cap, x, y in zip(caps, a, b, strict=True))
            sums.setdefault(both, (left, right))
    return _undominated(sums)


def _undominated(choices: Mapping[Counts, Chosen]) -> dict[Counts, Chosen]:
    """Those that no other one is as good as in everything."""
    kept: dict[Counts, Chosen] = {}
    for counts in sorted(choices, reverse=True):  # what is as good in everything comes before
        if not any(all(x >= y for x, y in zip(other, counts, strict=True)) for other in kept):
            kept[counts] = choices[counts]
    return kept


def _one(n: int, kinds: int, count: int = 1) -> Counts:
    return tuple(count if k == n else 0 for k in range(kinds))


def _flat(chosen: Chosen) -> Iterator[tuple[int, Domain]]:
    stack: list[object] = [chosen]
    while stack:
        top = stack.pop()
        assert isinstance(top, tuple)
        if len(top) == 2 and isinstance(top[0], int):
            yield top
        else:
            stack.extend(reversed(top))
