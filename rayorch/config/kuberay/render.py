"""All objects of a cluster, in the order in which `kubectl apply` should see them."""

from __future__ import annotations

import secrets

from rayorch.config.kuberay import names, surroundings
from rayorch.config.kuberay.cluster import ray_cluster
from rayorch.config.kuberay.documents import Manifest, manifest
from rayorch.config.kuberay.samples import ray_job, ray_service
from rayorch.config.kuberay.values import KubeRayValues

TOKEN_BYTES = 32
PARTS = ("cluster", "job", "service")


def render(values: KubeRayValues, part: str = "cluster") -> tuple[Manifest, ...]:
    """The manifests of one part: the cluster with all around it, the sample RayJob, or the sample RayService.

    Secrets are not among them: what is rendered may be kept in git. See `render_secrets`.
    """
    match part:
        case "cluster":
            return (
                surroundings.namespace(values),
                *surroundings.account_and_rights(values),
                surroundings.journal_volume(values),
                surroundings.documents(values),
                *surroundings.redis(values),
                surroundings.gateway_service(values),
                *surroundings.network_policies(values),
                ray_cluster(values),
            )
        case "job":
            return (ray_job(values),)
        case "service":
            return (ray_service(values),)
    raise ValueError(f"there is no part {part}; there are {', '.join(PARTS)}")


def render_secrets(values: KubeRayValues) -> tuple[Manifest, ...]:
    """The Secrets that the manifests refer to, with fresh tokens each time; those that have names of their own in the
    values exist already and are left out."""
    wanted = [(names.gateway_secret(values), names.GATEWAY_TOKEN_KEY, values.auth.gateway_secret)]
    if values.auth.ray_token:
        wanted.append((names.ray_secret(values), names.RAY_TOKEN_KEY, values.auth.ray_secret))
    if values.redis.enabled:
        wanted.append((names.redis_secret(values), names.REDIS_PASSWORD_KEY, values.redis.password_secret))
    return tuple(
        manifest(
            "v1 Secret",
            name,
            values.namespace,
            "secret",
            {"type": "Opaque", "stringData": {key: secrets.token_hex(TOKEN_BYTES)}},
        )
        for name, key, given in wanted
        if given is None
    )
