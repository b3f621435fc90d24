"""Domains of nodes: which nodes share a zone, a rack, a switch. Built once per snapshot from the nodes' paths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rayorch.core.types import NodeId, NodeSpec

NODE_LEVEL = "node"
"""The innermost level, which every node has: the node itself."""


@dataclass(frozen=True, slots=True)
class Domain:
    """Nodes that share one value of a level. `name` is the path down to it ("z1/r3"), unique within the level."""

    level: str
    name: str
    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Topology:
    """All domains by level. `levels` runs from the outermost level inwards and ends with "node".

    `models`: the accelerator model of each node that has one (`NodeSpec.model`); `model_names`: each once, sorted.
    `unknown`: the nodes without a value of a level, for each level where there are any. `paths`: the domains that each
    node is in, as (level, name); that of all nodes is ("", "").
    """

    levels: tuple[str, ...]
    domains: Mapping[str, tuple[Domain, ...]]
    nodes: tuple[NodeId, ...]
    models: Mapping[NodeId, str] = field(default_factory=dict)
    unknown: Mapping[str, frozenset[NodeId]] = field(default_factory=dict)
    paths: Mapping[NodeId, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    model_names: tuple[str, ...] = ()
    _named: Mapping[tuple[str, str], Domain] = field(default_factory=dict, repr=False, compare=False)

    @staticmethod
    def of(nodes: Iterable[NodeSpec]) -> Topology:
        """The topology of these nodes.

        Equal values below different parents are different domains (rack r1 of zone z1 is not rack r1 of z2). A
        node without a level is in no domain of it. Where nodes disagree about the order of levels, the first
        node by id is followed.
        """
        ordered = sorted(nodes, key=lambda node: node.id)
        levels: list[str] = []
        members: dict[str, dict[str, list[NodeId]]] = {}
        paths: dict[NodeId, tuple[tuple[str, str], ...]] = {}
        for node in ordered:
            path, inside = "", [("", ""), (NODE_LEVEL, str(node.id))]
            for level, value in node.topology:
                if level not in levels:
                    levels.append(level)
                path = f"{path}/{value}" if path else value
                members.setdefault(level, {}).setdefault(path, []).append(node.id)
                inside.append((level, path))
            paths[node.id] = tuple(inside)
        domains = {
            level: tuple(Domain(level, name, tuple(ids)) for name, ids in sorted(groups.items()))
            for level, groups in members.items()
        }
        domains[NODE_LEVEL] = tuple(Domain(NODE_LEVEL, node.id, (node.id,)) for node in ordered)
        models = {node.id: model for node in ordered if (model := node.model)}
        ids = tuple(node.id for node in ordered)
        unknown: dict[str, frozenset[NodeId]] = {}
        for level in levels:
            known = {id for domain in domains[level] for id in domain.nodes}
            if len(known) < len(ids):
                unknown[level] = frozenset(id for id in ids if id not in known)
        named = {(domain.level, domain.name): domain for group in domains.values() for domain in group}
        names = tuple(sorted(set(models.values())))
        return Topology((*levels, NODE_LEVEL), domains, ids, models, unknown, paths, names, named)

    def at(self, level: str) -> tuple[Domain, ...]:
        """The domains of a level; none when no node has it."""
        return self.domains.get(level, ())

    def inwards_of(self, level: str | None) -> tuple[str, ...]:
        """Levels from the innermost out to `level` (None: all of them)."""
        if level is None:
            return tuple(reversed(self.levels))
        if level not in self.levels:
            return ()
        return tuple(reversed(self.levels[self.levels.index(level) :]))

    def of_model(self, model: str, nodes: Sequence[NodeId]) -> Sequence[NodeId]:
        """Those of the nodes whose GPUs are of the model; all of them for an empty one."""
        return [node for node in nodes if self.models.get(node) == model] if model else nodes

    def is_whole(self, domain: Domain) -> bool:
        """Whether it is one of these domains, and not a part of one."""
        return self._named.get((domain.level, domain.name)) is domain

    def domain_of(self, level: str, node: NodeId) -> Domain | None:
        """The domain of a level that the node is in."""
        for other, name in self.paths.get(node, ()):
            if other == level:
                return self._named.get((level, name))
        return None
