"""Which domains stand for cells that are owed, against a search through all ways on small clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import event, given, settings
from hypothesis import strategies as st

from rayorch.core.cell_witness import best_witness, witness
from rayorch.core.cells import CellKind, domains_of
from rayorch.core.ids import NodeId
from rayorch.core.topology import Domain, Topology
from tests.scenes import node

LEVELS = ("zone", "rack", "node")
KINDS = tuple(CellKind(level, "") for level in LEVELS)


def no_rank(_: Domain) -> tuple[object, ...]:
    return ()


def uneven() -> dict[CellKind, tuple[Domain, ...]]:
    """Two zones of four nodes: one has two racks of two, the other one broken rack and two single nodes."""
    zones = [Domain("zone", f"z{z}", tuple(NodeId(f"n{4 * z + i}") for i in range(4))) for z in range(2)]
    racks = [Domain("rack", f"z0/r{r}", zones[0].nodes[2 * r : 2 * r + 2]) for r in range(2)]
    return {KINDS[0]: tuple(zones), KINDS[1]: tuple(racks), KINDS[2]: ()}


def test_the_zone_without_racks_stands_for_a_zone_where_both_are_owed() -> None:
    found = witness({KINDS[0]: 1, KINDS[1]: 2, KINDS[2]: 0}, uneven(), LEVELS, no_rank)
    assert [d.name for d in found[KINDS[0]]] == ["z1"]
    assert [d.name for d in found[KINDS[1]]] == ["z0/r0", "z0/r1"]


def test_the_outer_level_comes_first_where_not_all_can_be_had() -> None:
    found = witness({KINDS[0]: 2, KINDS[1]: 1, KINDS[2]: 0}, uneven(), LEVELS, no_rank)
    assert [len(found[kind]) for kind in KINDS] == [2, 0, 0]


def brute(owed: Sequence[int], whole: Mapping[CellKind, Sequence[Domain]]) -> tuple[int, ...]:
    """The best counts, the outermost kind first, by trying every subset in turn."""
    entries = [(n, d) for n, kind in enumerate(KINDS) for d in whole[kind]]
    best = (0,) * len(KINDS)

    def go(i: int, counts: tuple[int, ...], taken: frozenset[NodeId]) -> None:
        nonlocal best
        best = max(best, counts)
        for j in range(i, len(entries)):
            n, domain = entries[j]
            if counts[n] < owed[n] and taken.isdisjoint(domain.nodes):
                go(j + 1, tuple(c + (k == n) for k, c in enumerate(counts)), taken.union(domain.nodes))

    go(0, best, frozenset())
    return best


@st.composite
def clusters(draw: st.DrawFn) -> tuple[dict[CellKind, tuple[Domain, ...]], list[int]]:
    racks = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), min_size=2, max_size=4))
    paths = [(f"z{zone}", f"r{r}") for r, (zone, size) in enumerate(racks) for _ in range(size)]
    names = [NodeId(f"n{i}") for i in range(len(paths))]
    alive = {id for id in names if draw(st.integers(0, 5))}
    of: dict[CellKind, tuple[Domain, ...]] = {}
    for depth, kind in enumerate(KINDS[:2]):
        groups: dict[str, list[NodeId]] = {}
        for id, path in zip(names, paths, strict=True):
            groups.setdefault("/".join(path[: depth + 1]), []).append(id)
        sizes = [len(ids) for ids in groups.values()]
        usual = max(sizes, key=lambda size: (sizes.count(size), size))  # as all cells of a kind are alike
        of[kind] = tuple(
            Domain(kind.level, name, tuple(ids))
            for name, ids in sorted(groups.items())
            if alive.issuperset(ids) and len(ids) == usual
        )
    of[KINDS[2]] = tuple(Domain("node", id, (id,)) for id in sorted(alive))
    return of, [draw(st.integers(0, 2)), draw(st.integers(0, 3)), draw(st.integers(0, 3))]


@settings(max_examples=150, deadline=None)
@given(clusters())
def test_no_choice_is_better(cluster: tuple[dict[CellKind, tuple[Domain, ...]], list[int]]) -> None:
    whole, owed = cluster
    expected = brute(owed, whole)
    asked = dict(zip(KINDS, owed, strict=True))
    for found in (witness(asked, whole, LEVELS, no_rank), best_witness(KINDS, asked, whole, no_rank)):
        assert found is not None
        assert tuple(len(found[kind]) for kind in KINDS) == expected
        nodes = [id for domains in found.values() for d in domains for id in d.nodes]
        assert len(nodes) == len(set(nodes)), "a node stands for two cells"
        assert all(d in whole[kind] for kind, domains in found.items() for d in domains)
    event(f"all there: {list(expected) == owed}")


def test_cells_of_a_named_size_are_those_domains_alone() -> None:
    nodes = {n.id: n for n in (node("n0", 4), node("n1", 8), node("n2", 8), node("n3", 4), node("n4", 4))}
    topology = Topology.of(nodes.values())

    def names(gpus: int) -> list[str]:
        return [d.name for d in domains_of(CellKind("node", "", gpus), topology, nodes)]

    assert (names(0), names(4), names(8), names(2)) == (["n0", "n3", "n4"], ["n0", "n3", "n4"], ["n1", "n2"], [])
