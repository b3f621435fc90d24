"""KubeRay: a RayCluster's worker groups as where nodes come from. See docs/kuberay.md.

Importing this costs nothing: the `kubernetes` client is loaded with the first request.

What it sends, and so the least that its service account must be allowed, in the cluster's namespace only:

    apiGroups   resources     verbs                       resourceNames
    ray.io      rayclusters   get list watch patch        the RayCluster's name
    ray.io      rayjobs       list
    (core)      pods          list watch

`list` and `watch` of the RayCluster carry the field selector metadata.name=NAME, which is what lets a rule with
resourceNames permit them. Status, secrets, events and nodes are never read or written.
"""

from rayorch.adapters.kuberay.api import ApiError, KubeRaySettings
from rayorch.adapters.kuberay.client import ClusterState, KubeRayClient
from rayorch.adapters.kuberay.groups import GROUPS_ANNOTATION

__all__ = [
    "GROUPS_ANNOTATION",
    "ApiError",
    "ClusterState",
    "KubeRayClient",
    "KubeRaySettings",
]
