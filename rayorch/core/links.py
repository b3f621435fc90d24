"""Which of a node's free GPUs go together: those that reach each other by NVLink, without breaking up others."""

from __future__ import annotations

from collections.abc import Sequence


def best_linked(free: Sequence[int], count: int, links: Sequence[frozenset[int]]) -> list[int]:
    """`count` of the `free` positions, in order: with most links among them, then fewest to those that stay free.

    `links`: the positions that each position reaches. Grown greedily from every free one, O(free² × count): exact on
    bridged pairs and on meshes whose groups are alike. Ties end in the lowest positions.
    """
    if count <= 0:
        return []
    best: tuple[int, int, list[int]] | None = None
    for seed in free:
        chosen = [seed]
        others = [p for p in free if p != seed]
        while len(chosen) < count and others:
            inside = set(chosen)
            remaining = set(others)
            take = min(others, key=lambda p: (-len(links[p] & inside), len(links[p] & remaining), p))
            chosen.append(take)
            others.remove(take)
        chosen.sort()
        inside = set(chosen)
        among = sum(len(links[p] & inside) for p in chosen) // 2
        cut = sum(len(links[p] & set(others)) for p in chosen)
        found = (-among, cut, chosen)
        if best is None or found < best:
            best = found
    return best[2] if best is not None else []
