"""Who provides nodes: from what the Cluster document says, and from the pod that this process runs in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rayorch.actors.group_facts import GroupWishes
from rayorch.actors.node_groups import GroupSettings
from rayorch.adapters.kuberay import KubeRaySettings
from rayorch.config import ClusterSettings, KubeRaySection, Pool
from rayorch.core.capacity import GroupName, NodeGroup
from rayorch.core.errors import SpecError
from rayorch.core.node_groups import GroupKnobs
from rayorch.core.policy import Profile
from rayorch.core.types import MODEL_LABEL

CLUSTER_VARIABLE, NAMESPACE_VARIABLE = "RAY_CLUSTER_NAME", "RAY_CLUSTER_NAMESPACE"
"""KubeRay sets the first in each pod of a RayCluster; our manifests set both beside the server."""
IN_POD_VARIABLE = "KUBERNETES_SERVICE_HOST"
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def group_settings(
    cluster: ClusterSettings,
    profile: Profile,
    levels: tuple[str, ...],
    environment: Mapping[str, str],
    namespace_file: Path = NAMESPACE_FILE,
) -> GroupSettings | None:
    """How to look after node groups, None where nobody provides nodes. SpecError when the RayCluster is not known."""
    settings = GroupSettings(
        kuberay=None,
        knobs=GroupKnobs.of(profile),
        wishes=tuple(GroupWishes(p.name, p.spares, p.idle_s, p.preference) for p in cluster.pools),
        levels=levels,
    )
    in_pod = bool(environment.get(CLUSTER_VARIABLE) and environment.get(IN_POD_VARIABLE))
    match cluster.node_provider:
        case "none":
            return None
        case "ray":
            return replace(settings, declared=tuple(_declared(pool) for pool in cluster.pools))
        case "auto" if cluster.kuberay is None and not in_pod:
            return None
    section = cluster.kuberay or KubeRaySection()
    name = section.cluster or environment.get(CLUSTER_VARIABLE)
    if not name:
        raise SpecError("spec.kuberay.cluster", f"is missing, and {CLUSTER_VARIABLE} is not set: this is no pod of one")
    namespace = section.namespace or environment.get(NAMESPACE_VARIABLE) or _own_namespace(namespace_file) or "default"
    kuberay = KubeRaySettings(name, namespace, section.kubeconfig, section.context)
    return replace(settings, kuberay=kuberay)


def _declared(pool: Pool) -> NodeGroup:
    """A node type of Ray's autoscaler, under the same name there."""
    shape = pool.shape()
    return NodeGroup(
        name=GroupName(pool.name),
        total=shape.total,
        replicas=0,
        max_replicas=shape.max_count,
        labels=shape.labels,
        model=dict(shape.labels).get(MODEL_LABEL, ""),
        preference=pool.preference or 0,
        autoscaler_labels=shape.labels,
    )


def _own_namespace(path: Path) -> str:
    """The namespace of the pod that this process runs in, empty elsewhere."""
    return path.read_text().strip() if path.is_file() else ""
