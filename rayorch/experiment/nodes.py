"""The simulated cluster: from "64x8:H100", from a file of documents, or as the trace has it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rayorch.config import Pool
from rayorch.core.capacity import GroupName, NodeGroup
from rayorch.core.errors import SpecError
from rayorch.core.types import CPU, GPU, MODEL_LABEL, UNIT, Device, NodeId, NodeSpec, QueueSpec, Resources
from rayorch.experiment.documents import cluster_in, documents_in, queues_in
from rayorch.sim.trace.model import Trace
from rayorch.sim.trace.supply import Supply

FIELD = "--cluster"
PROVISION = "--provision"
MOST_NODES = 200_000
MOST_GPUS = 1024
AMPLE = {CPU: 1_000_000.0, "memory": 1e14}
"""What the nodes of a short form have beside GPUs: so much that only GPUs can be short."""

_PART = re.compile(r"(\d+)x(\d+)(?::([A-Za-z0-9._-]+))?\Z")


@dataclass(frozen=True, slots=True)
class Machines:
    """`words`: how it is called in a report. `queues`: where its file has some. `pools`: its nodes by kind, where it
    consists of kinds."""

    nodes: tuple[NodeSpec, ...]
    words: str
    queues: tuple[QueueSpec, ...] = ()
    pools: tuple[PoolNodes, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolNodes:
    """So many nodes of one kind, like `node`. `spares`, `idle_s`, `preference`: as a node group has them."""

    name: str
    node: NodeSpec
    most: int
    spares: int = 0
    idle_s: float | None = None
    preference: int = 0


def supplies_of(machines: Machines, least: int = 0) -> tuple[Supply, ...]:
    """The cluster's pools as node groups that begin with `least` nodes (and their spares), and grow to what they are.

    SpecError where the cluster does not consist of pools, or a pool is smaller than that.
    """
    if not machines.pools:
        raise SpecError(PROVISION, "needs nodes of a short form without --racks, or pools of a Cluster document")
    found = []
    for pool in machines.pools:
        if not 0 <= least <= pool.most:
            raise SpecError("--min-nodes", f"must be 0 to {pool.most}, which {pool.name} may have, got {least}")
        group = NodeGroup(
            GroupName(pool.name),
            pool.node.total,
            min(pool.most, least + pool.spares),
            least,
            pool.most,
            labels=tuple(sorted({**dict(pool.node.labels), **dict(pool.node.topology)}.items())),
            model=pool.node.model,
            spares=pool.spares,
            idle_s=pool.idle_s,
            preference=pool.preference,
        )
        found.append(Supply(group, pool.node))
    return tuple(found)


def gpus_in(nodes: Iterable[NodeSpec]) -> float:
    """All GPUs of the nodes."""
    return sum(node.total.gpu_units for node in nodes) / UNIT


def machines_of(spec: str | Sequence[NodeSpec] | None, trace: Trace, racks: int | None = None) -> Machines:
    """What to simulate; None: the machines that the trace names.

    A text is the short form, or the path of a file with a Cluster document (and queues, if it likes). `racks`: of the
    short form, in equal runs. SpecError for what can't be read, for no GPUs at all, and for a trace without machines.
    """
    if spec is None:
        if not trace.nodes:
            raise SpecError(FIELD, f"{trace.name} names no machines; say which, for example 64x8:H100")
        found = Machines(trace.nodes, f"the {len(trace.nodes)} machines of the trace")
    elif not isinstance(spec, str):
        found = Machines(tuple(spec), f"{len(spec)} nodes")
    elif Path(spec).suffix in (".yaml", ".yml") or Path(spec).is_file():
        found = from_file(Path(spec))
    else:
        found = from_words(spec, racks)
    if not found.nodes:
        raise SpecError(FIELD, f"has no nodes: {found.words}")
    return found


def from_words(spec: str, racks: int | None = None) -> Machines:
    """ "64x8:H100": 64 nodes of 8 GPUs; several kinds are separated by commas ("6x4:T4,2x8:A100")."""
    kinds: list[tuple[int, int, str]] = []
    for part in spec.split(","):
        match = _PART.match(part.strip())
        if match is None:
            raise SpecError(FIELD, f"must be NODESxGPUS[:MODEL], several by commas, or a YAML file; got {spec!r}")
        count, gpus = int(match[1]), int(match[2])
        if not 1 <= count <= MOST_NODES or not 1 <= gpus <= MOST_GPUS:
            raise SpecError(FIELD, f"takes 1 to {MOST_NODES} nodes of 1 to {MOST_GPUS} GPUs, got {part.strip()!r}")
        kinds.append((count, gpus, match[3] or ""))
    total = sum(count for count, _, _ in kinds)
    if total > MOST_NODES:
        raise SpecError(FIELD, f"takes at most {MOST_NODES} nodes, got {total}")
    if racks is not None and not 1 <= racks <= total:
        raise SpecError("--racks", f"must be 1 to {total}, got {racks}")
    nodes: list[NodeSpec] = []
    pools: list[PoolNodes] = []
    for n, (count, gpus, model) in enumerate(kinds):
        node = _node(0, Resources.of({GPU: gpus, **AMPLE}), model, None)
        pools.append(PoolNodes(f"{(model or 'nodes').lower()}-{n}", node, count))
        for _ in range(count):
            rack = None if racks is None else len(nodes) * racks // total
            nodes.append(_node(len(nodes), Resources.of({GPU: gpus, **AMPLE}), model, rack))
    if racks is not None:
        return Machines(tuple(nodes), f"{spec} in {racks} racks")
    return Machines(tuple(nodes), spec, pools=tuple(pools))


def _node(number: int, total: Resources, model: str, rack: int | None) -> NodeSpec:
    name = f"n{number:06d}"
    gpus = total.gpu_units // UNIT
    return NodeSpec(
        NodeId(name),
        name,
        total,
        devices=tuple(Device(n, model) for n in range(gpus)),
        labels=((MODEL_LABEL, model),) if model else (),
        topology=() if rack is None else (("rack", f"r{rack:04d}"),),
    )


def from_file(path: Path) -> Machines:
    """The pools of the file's one Cluster document, each as large as it can be; and its queues."""
    documents = documents_in(path, FIELD)
    cluster = cluster_in(documents, path, FIELD).to_core()
    nodes: list[NodeSpec] = []
    pools: list[PoolNodes] = []
    for n, pool in enumerate(cluster.pools):
        if pool.max_count is None:
            raise SpecError(
                f"spec.nodePools[{n}].maxNodes", f"{pool.name} must say how many nodes are simulated ({path})"
            )
        nodes += [_of_pool(pool, cluster.topology, len(nodes) + k) for k in range(pool.max_count)]
        if pool.max_count:
            node, rest = _of_pool(pool, cluster.topology, 0), (pool.spares or 0, pool.idle_s, pool.preference or 0)
            pools.append(PoolNodes(pool.name, node, pool.max_count, *rest))
    return Machines(tuple(nodes), f"{cluster.name} ({len(nodes)} nodes)", queues_in(documents), tuple(pools))


def _of_pool(pool: Pool, topology: tuple[str, ...], number: int) -> NodeSpec:
    """A node of a pool. CPU and memory that the document does not name are ample."""
    missing = {name: amount for name, amount in AMPLE.items() if not pool.total.units(name)}
    labels = dict(pool.labels)
    node = _node(number, pool.total + Resources.of(missing), labels.get(MODEL_LABEL, ""), None)
    levels = tuple((level, labels[level]) for level in topology if level in labels)
    return NodeSpec(
        node.id, node.name, node.total, devices=node.devices, labels=pool.labels, topology=levels, group=pool.name
    )
