"""The Cluster document: the settings of one instance. Nodes, who provides them, policies and timings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from rayorch.config.eviction import DefragmentSection, EvictionSection, PackingSection
from rayorch.config.fields import Amounts, Countables, Duration, Items, Model, Name, Version, resources
from rayorch.config.models import ModelsSection
from rayorch.config.ordering import OrderingSection
from rayorch.config.placement import PlacementSection
from rayorch.config.profile import Knob, ProfileSettings, load_profile
from rayorch.config.timing import BackfillSection, ReservationsSection
from rayorch.core.admission import NodeShape
from rayorch.core.errors import SpecError
from rayorch.core.policy import Profile
from rayorch.core.queue_rules import check_countables
from rayorch.core.types import CPU, GPU, MAX_UNITS, Resources

FACTORS = ("provision_deadline_factor",)
"""Timings that are no lengths of time."""

MANY_NODES = 10**6
"""Stands for a pool without a declared maximum."""


class NameOnly(Model):
    """Metadata of a cluster."""

    name: Name


class NodePool(Model):
    """Nodes of one shape, `match`ed by labels; `max_nodes` is how many there can be, for what never fits.

    Where the pool has the name of a node group: `spares` idle replicas of it are kept, the others go when they have
    been idle for `idle`, and of several groups that would do, the one with the smallest `preference` grows first.
    """

    name: Name
    match: Mapping[str, str] = Field(default_factory=dict)
    resources: Amounts = Field(default_factory=dict)
    gpus_per_node: Annotated[int, Field(ge=0, le=1024)] = 0
    max_nodes: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    spares: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    idle: Duration | None = None
    preference: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] | None = None


class KubeRay(Model):
    """The RayCluster whose groups give the nodes. In a pod of it, what is left out is that RayCluster."""

    cluster: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    namespace: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    kubeconfig: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    context: Annotated[str, Field(min_length=1, max_length=253)] | None = None


NodeProvider = Literal["auto", "kuberay", "ray", "none"]


class Policies(Model):
    """`preset`: the profile to begin with, by name. The others stand in place of its policies: the name of one of ours
    (usage, las:promoting_key), or an import string, "module:function"."""

    preset: str = "default"
    name: Name | None = None
    order: str | None = None
    queue_order: str | None = None
    score: str | None = None
    device: str | None = None
    victims: str | None = None
    train_size: str | None = None
    serve_size: str | None = None
    recover: str | None = None
    scale: str | None = None
    moves: str | None = None


class Timing(Model):
    """The knobs of `core.policy.Profile`; what is left out is the default."""

    start_deadline: Duration | None = None
    block_node: Duration | None = None
    lease: Duration | None = None
    lease_margin: Duration | None = None
    grow_cooldown: Duration | None = None
    repair_hold: Duration | None = None
    scale_down_delay: Duration | None = None
    retry_backoff: Duration | None = None
    retry_backoff_max: Duration | None = None
    failure_settle: Duration | None = None
    node_idle: Duration | None = None
    provision: Duration | None = None
    provision_deadline_factor: Annotated[float, Field(ge=1, le=1000)] | None = None
    group_backoff: Duration | None = None
    group_backoff_max: Duration | None = None


class ClusterSpec(Model):
    """`topology`: label keys from the outermost level inwards. `node_provider`: who adds and removes nodes.

    `countables`: how much the cluster has of what no node has (licences, watts).
    """

    node_pools: Items[NodePool] = ()
    node_provider: NodeProvider = "auto"
    kuberay: KubeRay | None = None
    topology: Items[str] = ()
    policies: Policies = Policies()
    ordering: OrderingSection = OrderingSection()
    backfill: BackfillSection = BackfillSection()
    reservations: ReservationsSection = ReservationsSection()
    models: ModelsSection = ModelsSection()
    placement: PlacementSection = PlacementSection()
    eviction: EvictionSection = EvictionSection()
    defragment: DefragmentSection = DefragmentSection()
    packing: PackingSection = PackingSection()
    timing: Timing = Timing()
    preemption: bool | None = None
    even_growth: bool | None = None
    countables: Countables = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pool:
    """Nodes of one shape. `max_count` None: no limit is known."""

    name: str
    total: Resources
    max_count: int | None
    labels: tuple[tuple[str, str], ...]
    spares: int | None = None
    idle_s: float | None = None
    preference: int | None = None

    def shape(self) -> NodeShape:
        """What the door counts with. CPU and memory that the document does not name are not what limits a pool."""
        unnamed = {name: MAX_UNITS for name in (CPU, "memory") if not self.total.units(name)}
        most = MANY_NODES if self.max_count is None else self.max_count
        return NodeShape(self.total + Resources.of_units(unnamed), most, self.labels)


@dataclass(frozen=True, slots=True)
class KubeRaySection:
    """Which RayCluster, and how to reach its API server; None: what the surroundings say."""

    cluster: str | None = None
    namespace: str | None = None
    kubeconfig: str | None = None
    context: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """What a Cluster document says, in core's words. `node_provider`: "auto", "kuberay", "ray" (its autoscaler) or
    "none"; "auto" is the RayCluster that is named, or whose pod this is, else nobody."""

    name: str
    pools: tuple[Pool, ...] = ()
    topology: tuple[str, ...] = ()
    profile: ProfileSettings = field(default_factory=ProfileSettings)
    node_provider: NodeProvider = "auto"
    kuberay: KubeRaySection | None = None
    countables: Resources = Resources()

    def load_profile(self) -> Profile:
        """The policies in force; SpecError names one, or a preset, that does not exist."""
        return load_profile(self.profile)


class ClusterDocument(Model):
    """The settings of one rayorch instance."""

    api_version: Version
    kind: Literal["Cluster"]
    metadata: NameOnly
    spec: ClusterSpec = ClusterSpec()

    def to_core(self) -> ClusterSettings:
        """In core's words; SpecError for bad amounts. Policies are imported by `load_profile` only."""
        policies = self.spec.policies.model_dump(exclude_none=True)
        name, preset = policies.pop("name", ""), policies.pop("preset")
        knobs: dict[str, Knob] = {
            knob if knob in FACTORS else f"{knob}_s": value
            for knob, value in self.spec.timing.model_dump(exclude_none=True).items()
        }
        for knob in ("preemption", "even_growth"):
            if (value := getattr(self.spec, knob)) is not None:
                knobs[knob] = value
        pools = tuple(_pool(pool, f"spec.nodePools[{n}]") for n, pool in enumerate(self.spec.node_pools))
        names = [pool.name for pool in pools]
        for n, pool_name in enumerate(names):
            if pool_name in names[:n]:
                raise SpecError(f"spec.nodePools[{n}].name", f"{pool_name} is given twice")
        kuberay = self.spec.kuberay
        if kuberay is not None and self.spec.node_provider in ("ray", "none"):
            raise SpecError("spec.nodeProvider", f"{self.spec.node_provider} and a kuberay section exclude each other")
        return ClusterSettings(
            self.metadata.name,
            pools,
            self.spec.topology,
            ProfileSettings(
                name,
                policies,
                knobs,
                preset,
                self.spec.ordering.to_knobs(),
                self.spec.models.to_knobs(),
                self.spec.eviction.to_knobs(),
                self.spec.backfill.to_knobs(),
                self.spec.reservations.to_knobs(),
                self.spec.placement.to_core("spec.placement"),
                self.spec.defragment.to_knobs(),
                self.spec.packing.to_knobs(),
            ),
            self.spec.node_provider,
            None if kuberay is None else KubeRaySection(**kuberay.model_dump()),
            _countables(self.spec.countables),
        )


def _countables(amounts: Mapping[str, float]) -> Resources:
    found = resources(amounts, "spec.countables")
    check_countables(found, "spec.countables")
    return found


def _pool(pool: NodePool, field: str) -> Pool:
    total = resources(pool.resources, f"{field}.resources")
    if pool.gpus_per_node:
        if total.gpu_units:
            raise SpecError(f"{field}.gpusPerNode", "and resources.GPU say the same twice")
        total = total + Resources.of({GPU: pool.gpus_per_node})
    labels = tuple(sorted(pool.match.items()))
    return Pool(pool.name, total, pool.max_nodes, labels, pool.spares, pool.idle, pool.preference)
