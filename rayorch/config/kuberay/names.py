"""The names by which the rendered objects refer to each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rayorch.config.kuberay.values import KubeRayValues

RAY_TOKEN_KEY = "auth_token"  # KubeRay's word
GATEWAY_TOKEN_KEY = "token"
REDIS_PASSWORD_KEY = "password"
HOME = "/var/lib/rayorch"
DOCUMENTS = "/etc/rayorch"
TOKENS = "/etc/rayorch-token"
CLUSTER_LABEL = "ray.io/cluster"
NODE_TYPE_LABEL = "ray.io/node-type"
GROUP_LABEL = "rayorch.io/group"
GROUPS_ANNOTATION = "rayorch.io/groups"
MARKET_LABEL = "ray.io/market-type"
RAY_GROUP_LABEL = "ray.io/node-group"  # Ray sets it on each node to the group's name
HEAD_CONTAINER = "ray-head"
SERVER_CONTAINER = "rayorch"
WORKER_CONTAINER = "ray-worker"
DASHBOARD_PORT_NAME = "dashboard"  # by which KubeRay finds where to send jobs
RAY_DASHBOARD_PORT = 8265
GCS_PORT = 6379
SERVE_PORT = 8000
METRICS_PORT = 8080
CLIENT_PORT = 10001
REDIS_PORT = 6379
DASHBOARD_AGENT_PORT = 52365
RAY_PORTS = (GCS_PORT, SERVE_PORT, METRICS_PORT, RAY_DASHBOARD_PORT, CLIENT_PORT, DASHBOARD_AGENT_PORT)


def account(values: KubeRayValues) -> str:
    """The head's ServiceAccount, and the Role that it has."""
    return f"{values.cluster}-rayorch"


def journal_claim(values: KubeRayValues) -> str:
    """The volume of the journal."""
    return f"{values.cluster}-rayorch"


def documents_map(values: KubeRayValues) -> str:
    """The ConfigMap of the Cluster and Queue documents."""
    return f"{values.cluster}-rayorch"


def ray_secret(values: KubeRayValues) -> str:
    """Where Ray's token is."""
    return values.auth.ray_secret or f"{values.cluster}-ray-token"


def gateway_secret(values: KubeRayValues) -> str:
    """Where the gateway's token is."""
    return values.auth.gateway_secret or f"{values.cluster}-rayorch-token"


def redis_secret(values: KubeRayValues) -> str:
    """Where Redis's password is."""
    return values.redis.password_secret or f"{values.cluster}-redis"


def redis_service(values: KubeRayValues) -> str:
    """The rendered Redis."""
    return f"{values.cluster}-redis"


def redis_address(values: KubeRayValues) -> str:
    """Where Ray finds Redis."""
    return values.redis.address or f"redis://{redis_service(values)}.{values.namespace}.svc:{REDIS_PORT}"


def gateway_service(values: KubeRayValues) -> str:
    """The Service in front of the gateway."""
    return f"{values.cluster}-rayorch"
