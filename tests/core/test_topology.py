"""Which nodes share a domain."""

from __future__ import annotations

from rayorch.core.topology import Domain, Topology
from tests.scenes import node

NODES = [
    node("n1", rack="r1", zone="z1"),
    node("n2", rack="r1", zone="z2"),
    node("n3", rack="r1", zone="z1"),
    node("n4"),
]


def test_equal_values_below_different_parents_are_different_domains() -> None:
    found = Topology.of(NODES)
    assert found.at("rack") == (Domain("rack", "z1/r1", ("n1", "n3")), Domain("rack", "z2/r1", ("n2",)))  # type: ignore[arg-type]


def test_a_node_without_a_level_is_in_none_of_its_domains_but_is_one_itself() -> None:
    found = Topology.of(NODES)
    assert found.domain_of("rack", NODES[3].id) is None
    assert found.domain_of("node", NODES[3].id) == Domain("node", "n4", (NODES[3].id,))


def test_levels_run_inwards_and_end_with_the_node() -> None:
    found = Topology.of(NODES)
    assert found.levels == ("zone", "rack", "node")
    assert found.inwards_of(None) == ("node", "rack", "zone")
    assert found.inwards_of("rack") == ("node", "rack")
    assert found.inwards_of("switch") == ()
