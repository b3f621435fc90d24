"""The RayCluster: a head with rayorch beside it, and the worker groups.

The first container of a pod is Ray's; KubeRay writes its command. rayorch's server is a container of its own, so that
the kubelet restarts and probes it, and it connects to the head as a driver over the folder that both mount. The owners
run as actors in the head's container, where the journal's volume is mounted too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from rayorch.config.kuberay import names
from rayorch.config.kuberay.documents import Manifest, environment, manifest, secret_variable, without_empty
from rayorch.config.kuberay.values import GroupValues, KubeRayValues, Mode, TolerationValues
from rayorch.core.device_binding import device_resource
from rayorch.core.payload import Json
from rayorch.core.types import MODEL_LABEL

RAY_USER = 1000
"""Ray's own images run as it; both containers of the head must be the same user to share its sockets."""
DRAIN_MARGIN_S = 15
"""A node's drain ends so long before its pod is killed."""
HEAD_GRACE_S = 90
IDLE_S = 300
"""Ray's autoscaler gives an idle node back after so long, where a group says nothing else."""
GPU_RESOURCE = "nvidia.com/gpu"


def ray_cluster(values: KubeRayValues) -> Manifest:
    """The RayCluster object."""
    document = manifest("ray.io/v1 RayCluster", values.cluster, values.namespace, "cluster", {})
    metadata = document["metadata"]
    assert isinstance(metadata, dict)
    told = groups_annotation(values)
    if told:
        metadata["annotations"] = {names.GROUPS_ANNOTATION: told}
    document["spec"] = cluster_spec(values)
    return document


def groups_annotation(values: KubeRayValues) -> str:
    """What the CRD has no field for, as JSON by group; empty when there is nothing to say."""
    told: dict[str, dict[str, float]] = {}
    for group in values.groups:
        said: dict[str, float] = {}
        if group.spares:
            said["spares"] = group.spares
        if group.idle is not None:
            said["idleSeconds"] = group.idle
        if group.preference:
            said["preference"] = group.preference
        if said:
            told[group.name] = said
    return json.dumps(told, sort_keys=True) if told else ""


def cluster_spec(values: KubeRayValues, with_rayorch: bool = True) -> dict[str, Json]:
    """The spec of a RayCluster. Without rayorch it is a plain one with Ray's own dashboard: what a RayService needs."""
    in_tree = values.mode is Mode.RAY
    spec: dict[str, Json] = {"rayVersion": values.ray_version, "enableInTreeAutoscaling": in_tree}
    if in_tree:
        spec["autoscalerOptions"] = {
            "version": "v2",
            "upscalingMode": "Default",
            "idleTimeoutSeconds": IDLE_S,
            "resources": _same({"cpu": "500m", "memory": "1Gi"}),
        }
    if values.auth.ray_token:
        spec["authOptions"] = {"mode": "token", "secretName": names.ray_secret(values)}
    if values.redis.enabled:
        password: Json = {"name": names.redis_secret(values), "key": names.REDIS_PASSWORD_KEY}
        spec["gcsFaultToleranceOptions"] = {
            "redisAddress": names.redis_address(values),
            "redisPassword": {"valueFrom": {"secretKeyRef": password}},
        }
    spec["headGroupSpec"] = _head(values, with_rayorch)
    spec["workerGroupSpecs"] = [_worker_group(values, group) for group in values.groups]
    return spec


def _same(amounts: dict[str, Json]) -> Json:
    """Requests equal to limits: nothing of a Ray node is overcommitted."""
    return {"limits": dict(amounts), "requests": dict(amounts)}


# ---------------------------------------------------------------- the head


def _head(values: KubeRayValues, with_rayorch: bool) -> Json:
    """With rayorch, Ray's own dashboard is reachable inside the pod only: a job that goes there has gone past the
    queues."""
    dashboard_host = "127.0.0.1" if with_rayorch else "0.0.0.0"
    return {
        "serviceType": "ClusterIP",
        "rayStartParams": {
            "num-cpus": "0",
            "num-gpus": "0",
            "dashboard-host": dashboard_host,
            "dashboard-port": str(names.RAY_DASHBOARD_PORT),
        },
        "template": {
            "metadata": {"labels": {"rayorch.io/component": "head"}},
            "spec": _head_pod(values) if with_rayorch else _plain_head_pod(values),
        },
    }


def _head_pod(values: KubeRayValues) -> Json:
    """`shareProcessNamespace`: Ray finds the node that a driver belongs to by looking through the processes."""
    token: Json = {
        "secretName": names.gateway_secret(values),
        "items": [{"key": names.GATEWAY_TOKEN_KEY, "path": names.GATEWAY_TOKEN_KEY}],
        "defaultMode": 0o440,
    }
    home = [environment("RAYORCH_HOME", names.HOME)]
    return without_empty(
        {
            "serviceAccountName": names.account(values),
            **_placement(values),
            "terminationGracePeriodSeconds": HEAD_GRACE_S,
            "shareProcessNamespace": True,
            "containers": [_ray_head(values, values.gateway.port, _mounts(), home), _server(values)],
            "volumes": [
                {"name": "ray-logs", "emptyDir": {}},
                _shared_memory(values.head.memory),
                {"name": "journal", "persistentVolumeClaim": {"claimName": names.journal_claim(values)}},
                {"name": "documents", "configMap": {"name": names.documents_map(values)}},
                {"name": "gateway-token", "secret": token},
            ],
        }
    )


def _plain_head_pod(values: KubeRayValues) -> Json:
    return without_empty(
        {
            **_placement(values),
            "containers": [_ray_head(values, names.RAY_DASHBOARD_PORT, [SHARED_MOUNT], [])],
            "volumes": [_shared_memory(values.head.memory)],
        }
    )


def _placement(values: KubeRayValues) -> dict[str, Json]:
    """What both kinds of heads have."""
    head = values.head
    return {
        "imagePullSecrets": _pull_secrets(values),
        "restartPolicy": _restart_policy(values),
        "securityContext": {**_pod_security(), "fsGroup": RAY_USER},
        "nodeSelector": dict(head.node_selector),
        "tolerations": _tolerations(head.tolerations),
    }


def _restart_policy(values: KubeRayValues) -> str:
    """Autoscaler v2 allows nothing but Never. Where we decide, a pod whose Ray node was drained must stay until the
    operator is told to take it: otherwise it would replace it, and delete another one when the count falls."""
    return "Never" if values.mode is Mode.RAY else "Always"


def _half(memory: str) -> str:
    """Half of an amount of memory, for /dev/shm: what lies there counts against the container's limit."""
    number = memory.rstrip("kMGTPi")
    suffix = memory[len(number) :]
    whole = float(number) / 2
    return f"{int(whole)}{suffix}" if whole == int(whole) else f"{whole:g}{suffix}"


SHARED_MOUNT: Json = {"name": "shared-mem", "mountPath": "/dev/shm"}


def _shared_memory(memory: str, size: str | None = None) -> Json:
    return {"name": "shared-mem", "emptyDir": {"medium": "Memory", "sizeLimit": size or _half(memory)}}


def _mounts() -> list[Json]:
    """What Ray's container and ours share: Ray's session, its objects, and the journal. KubeRay gives its autoscaler
    the volume `ray-logs` too."""
    return [
        {"name": "ray-logs", "mountPath": "/tmp/ray"},
        SHARED_MOUNT,
        {"name": "journal", "mountPath": names.HOME},
    ]


def _ray_head(values: KubeRayValues, dashboard_port: int, mounts: list[Json], env: list[Json]) -> Json:
    """Ray's container. KubeRay sends jobs to the port that is named "dashboard", whoever listens there in the pod."""
    ports = {
        "gcs-server": names.GCS_PORT,
        names.DASHBOARD_PORT_NAME: dashboard_port,
        "client": names.CLIENT_PORT,
        "serve": names.SERVE_PORT,
        "metrics": names.METRICS_PORT,
    }
    return without_empty(
        {
            "name": names.HEAD_CONTAINER,
            "image": values.image,
            "ports": [{"name": name, "containerPort": port} for name, port in ports.items()],
            "env": env,
            "resources": _same({"cpu": values.head.cpu, "memory": values.head.memory}),
            "securityContext": _security(),
            "volumeMounts": mounts,
        }
    )


def _server(values: KubeRayValues) -> Json:
    """rayorch's server: it waits for the control store, then attaches to it."""
    port = values.gateway.port
    address = f"127.0.0.1:{names.GCS_PORT}"
    files = f"--file {names.DOCUMENTS}/cluster.yaml --file {names.DOCUMENTS}/queues.yaml"
    wait = f"until ray health-check --address {address} >/dev/null 2>&1; do sleep 2; done; "
    served = f"--serve-port {names.SERVE_PORT} " if values.gateway.serve else ""
    command = f"python -P -m rayorch.server --address {address} --host 0.0.0.0 --port {port} {served}--leave-running "
    command += files
    kept = _KEPT_ALIVE.format(command=command)
    script = wait + (f"exec {command}" if _restart_policy(values) == "Always" else kept)
    env = [
        environment("RAYORCH_HOME", names.HOME),
        environment("RAYORCH_TOKEN_FILE", f"{names.TOKENS}/{names.GATEWAY_TOKEN_KEY}"),
        *_CLUSTER_VARIABLES,
    ]
    if values.auth.ray_token:
        # KubeRay injects these into Ray's container only.
        env.append(environment("RAY_AUTH_MODE", "token"))
        env.append(secret_variable("RAY_AUTH_TOKEN", names.ray_secret(values), names.RAY_TOKEN_KEY))
        env.append(secret_variable("RAYORCH_JOBS_TOKEN", names.ray_secret(values), names.RAY_TOKEN_KEY))
    else:
        env.append(environment("RAY_AUTH_MODE", "disabled"))
    return {
        "name": names.SERVER_CONTAINER,
        "image": values.image,
        "command": ["/bin/bash", "-c"],
        "args": [script],
        "env": env,
        "resources": _same({"cpu": values.head.server_cpu, "memory": values.head.server_memory}),
        "securityContext": _security(),
        "startupProbe": {**_probe("/healthz", port, 5), "failureThreshold": 120},
        "livenessProbe": {**_probe("/healthz", port, 10), "failureThreshold": 6},
        "readinessProbe": {**_probe("/readyz", port, 5), "failureThreshold": 3},
        "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", "sleep 5"]}}},
        "volumeMounts": [
            *_mounts(),
            {"name": "documents", "mountPath": names.DOCUMENTS, "readOnly": True},
            {"name": "gateway-token", "mountPath": names.TOKENS, "readOnly": True},
        ],
    }


_KEPT_ALIVE = (
    "trap 'kill -TERM $! 2>/dev/null; wait $!; exit 0' TERM INT; while true; do {command} & wait $!; sleep 2; done"
)
"""Where the pod's restart policy is Never, the kubelet would not start the server again."""

_CLUSTER_VARIABLES: tuple[Json, ...] = tuple(
    {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
    for name, path in (
        ("RAY_CLUSTER_NAME", f"metadata.labels['{names.CLUSTER_LABEL}']"),
        ("RAY_CLUSTER_NAMESPACE", "metadata.namespace"),
    )
)
"""Which RayCluster this pod is of; KubeRay gives the same to Ray's container."""


def _probe(path: str, port: int, period_s: int) -> dict[str, Json]:
    return {"httpGet": {"path": path, "port": port}, "periodSeconds": period_s, "timeoutSeconds": 5}


# ---------------------------------------------------------------- workers


def _worker_group(values: KubeRayValues, group: GroupValues) -> Json:
    spec: dict[str, Json] = {
        "groupName": group.name,
        "replicas": group.wanted,
        "minReplicas": group.min,
        "maxReplicas": group.max,
        "numOfHosts": group.hosts,
    }
    if values.mode is Mode.RAY and group.idle is not None:
        spec["idleTimeoutSeconds"] = int(group.idle)
    if values.mode is Mode.RAY and group.preference:
        spec["priority"] = -group.preference  # Ray's autoscaler takes the largest first
    spec["labels"] = _ray_labels(group)
    spec["rayStartParams"] = _start_params(group)
    spec["template"] = {
        "metadata": {"labels": {"rayorch.io/component": "worker"}},
        "spec": _worker_pod(values, group),
    }
    return spec


def _ray_labels(group: GroupValues) -> Json:
    """Labels of each of the group's Ray nodes; KubeRay puts them on its pods as well."""
    labels: dict[str, Json] = {names.GROUP_LABEL: group.name}
    if group.model is not None:
        labels[MODEL_LABEL] = group.model
    labels[names.MARKET_LABEL] = "spot" if group.spot else "on-demand"
    return labels | dict(group.labels)


def _start_params(group: GroupValues) -> Json:
    """One resource for each GPU lets a gang be given particular devices. The quotes are for the shell that KubeRay's
    command goes through; the operator itself reads the JSON between them."""
    if not (group.gpus and group.exact_devices):
        return {}
    devices = json.dumps({device_resource(index): 1 for index in range(group.gpus)})
    return {"resources": f"'{devices}'"}


def _worker_pod(values: KubeRayValues, group: GroupValues) -> Json:
    amounts: dict[str, Json] = {"cpu": group.cpu, "memory": group.memory}
    tolerations = _tolerations(group.tolerations)
    if group.gpus:
        amounts[GPU_RESOURCE] = str(group.gpus)
        tolerations.append({"key": GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"})
    drain_s = int(group.grace) - DRAIN_MARGIN_S
    env = [environment("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", str(drain_s))]
    if values.storage_path is not None:
        env.append(environment("RAYORCH_STORAGE_PATH", values.storage_path))
    container: dict[str, Json] = {
        "name": names.WORKER_CONTAINER,
        "image": values.image,
        "env": env,
        "resources": _same(amounts),
        "securityContext": _security(),
        "volumeMounts": [SHARED_MOUNT],
    }
    return without_empty(
        {
            "imagePullSecrets": _pull_secrets(values),
            "restartPolicy": _restart_policy(values),
            "terminationGracePeriodSeconds": int(group.grace),
            "automountServiceAccountToken": False,
            "securityContext": _pod_security(),
            "nodeSelector": dict(group.node_selector),
            "tolerations": tolerations,
            "containers": [container],
            "volumes": [_shared_memory(group.memory, group.shared_memory)],
        }
    )


# ---------------------------------------------------------------- parts


def _pull_secrets(values: KubeRayValues) -> list[Json]:
    return [{"name": values.image_pull_secret}] if values.image_pull_secret else []


def _pod_security() -> dict[str, Json]:
    return {"runAsNonRoot": True, "runAsUser": RAY_USER, "seccompProfile": {"type": "RuntimeDefault"}}


def _security() -> Json:
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _tolerations(given: Sequence[TolerationValues]) -> list[Json]:
    return [without_empty({"key": t.key, "operator": t.operator, "value": t.value, "effect": t.effect}) for t in given]
