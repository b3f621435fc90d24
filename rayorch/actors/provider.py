"""Who provides nodes: from what the Cluster document says, and from the pod that this process runs in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rayorch.actors.node_groups import GroupSettings, GroupWishes
from rayorch.adapters.kuberay import KubeRaySettings
from rayorch.config import ClusterSettings, KubeRaySection
from rayorch.core.errors import SpecError
from rayorch.core.node_groups import GroupKnobs
from rayorch.core.policy import Profile

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
            return settings
        case "auto" if cluster.kuberay is None and not in_pod:
            return None
    section = cluster.kuberay or KubeRaySection()
    name = section.cluster or environment.get(CLUSTER_VARIABLE)
    if not name:
        raise SpecError("spec.kuberay.cluster", f"is missing, and {CLUSTER_VARIABLE} is not set: this is no pod of one")
    namespace = section.namespace or environment.get(NAMESPACE_VARIABLE) or _own_namespace(namespace_file) or "default"
    kuberay = KubeRaySettings(name, namespace, section.kubeconfig, section.context)
    return GroupSettings(kuberay, settings.knobs, settings.wishes, levels)


def _own_namespace(path: Path) -> str:
    """The namespace of the pod that this process runs in, empty elsewhere."""
    return path.read_text().strip() if path.is_file() else ""
