"""What the RayCluster needs around it: account and rights, volume, documents, network rules, Service, Redis."""

from __future__ import annotations

import yaml

from rayorch.config.kuberay import names
from rayorch.config.kuberay.documents import Manifest, manifest, secret_variable, without_empty
from rayorch.config.kuberay.values import KubeRayValues, Mode
from rayorch.core.payload import Json


def namespace(values: KubeRayValues) -> Manifest:
    """The namespace, with the label by which its own pods may be let in."""
    document = manifest("v1 Namespace", values.namespace, values.namespace, "namespace", {})
    metadata = document["metadata"]
    assert isinstance(metadata, dict)
    metadata.pop("namespace")
    return document


def account_and_rights(values: KubeRayValues) -> list[Manifest]:
    """What rayorch may do in Kubernetes, and no more: read its own RayCluster, see pods and RayJobs beside it, and in
    mode ours patch that one RayCluster. In mode ray it never writes."""
    name, place = names.account(values), values.namespace
    verbs: list[Json] = ["get", "list", "watch"]
    own: Json = {
        "apiGroups": ["ray.io"],
        "resources": ["rayclusters"],
        "resourceNames": [values.cluster],
        "verbs": [*verbs, "patch"] if values.mode is Mode.OURS else verbs,
    }
    jobs: Json = {"apiGroups": ["ray.io"], "resources": ["rayjobs"], "verbs": ["list"]}
    pods: Json = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
    subject: Json = {"kind": "ServiceAccount", "name": name, "namespace": place}
    role: Json = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    group = "rbac.authorization.k8s.io/v1"
    return [
        manifest("v1 ServiceAccount", name, place, "head", {"automountServiceAccountToken": True}),
        manifest(f"{group} Role", name, place, "head", {"rules": [own, jobs, pods]}),
        manifest(f"{group} RoleBinding", name, place, "head", {"roleRef": role, "subjects": [subject]}),
    ]


def journal_volume(values: KubeRayValues) -> Manifest:
    """The journal's volume; it outlives the RayCluster, and with it what was accepted."""
    spec = without_empty(
        {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": values.journal.storage_class,
            "resources": {"requests": {"storage": values.journal.size}},
        }
    )
    name = names.journal_claim(values)
    return manifest("v1 PersistentVolumeClaim", name, values.namespace, "journal", {"spec": spec})


def documents(values: KubeRayValues) -> Manifest:
    """The Cluster and Queue documents that the server reads when it starts. The queues in them are set again at every
    start; others are set by `rayorch apply`."""
    pools: list[Json] = [
        without_empty(
            {
                "name": group.name,
                "match": {names.GROUP_LABEL: group.name},
                "gpusPerNode": group.gpus or None,
                "resources": {"CPU": float(_cores(group.cpu))},
                "maxNodes": group.max * group.hosts,
            }
        )
        for group in values.groups
    ]
    timing: dict[str, Json] = {} if values.lease_s is None else {"timing": {"lease": f"{values.lease_s:g}s"}}
    cluster: Json = {
        "apiVersion": "rayorch/v1",
        "kind": "Cluster",
        "metadata": {"name": values.cluster},
        "spec": {
            "topology": list(values.levels),
            "nodeProvider": "kuberay",
            "kuberay": {"cluster": values.cluster, "namespace": values.namespace},
            "nodePools": pools,
            **timing,
        },
    }
    gpus = sum(group.gpus * group.max * group.hosts for group in values.groups)
    parts = values.queue.split("/")
    queues = [
        {
            "apiVersion": "rayorch/v1",
            "kind": "Queue",
            "metadata": {"name": "/".join(parts[: n + 1])},
            "spec": {"deserved": {"GPU": gpus}},
        }
        for n in range(len(parts))
    ]
    data: Json = {
        "cluster.yaml": yaml.safe_dump(cluster, sort_keys=False),
        "queues.yaml": yaml.safe_dump_all(queues, sort_keys=False),
    }
    return manifest("v1 ConfigMap", names.documents_map(values), values.namespace, "documents", {"data": data})


def _cores(quantity: str) -> float:
    return float(quantity[:-1]) / 1000 if quantity.endswith("m") else float(quantity)


def gateway_service(values: KubeRayValues) -> Manifest:
    """A name for the gateway and for Serve's HTTP. KubeRay's own head service has the ports too, under Ray's names."""
    ports: list[Json] = [{"name": "http", "port": values.gateway.port, "targetPort": values.gateway.port}]
    if values.gateway.serve:
        ports.append({"name": "serve", "port": names.SERVE_PORT, "targetPort": names.SERVE_PORT})
    spec: Json = {"type": "ClusterIP", "selector": _head_labels(values), "ports": ports}
    return manifest("v1 Service", names.gateway_service(values), values.namespace, "gateway", {"spec": spec})


# ---------------------------------------------------------------- network


def _head_labels(values: KubeRayValues) -> dict[str, Json]:
    return {names.CLUSTER_LABEL: values.cluster, names.NODE_TYPE_LABEL: "head"}


def _tcp(*ports: int) -> list[Json]:
    return [{"protocol": "TCP", "port": port} for port in ports]


def network_policies(values: KubeRayValues) -> list[Manifest]:
    """Ray's ports are for the cluster's own pods only: whoever reaches one may run anything. The gateway, Serve's HTTP
    and Ray's metrics are for those who carry the label, the gateway also for KubeRay's operator."""
    if not values.network.enabled:
        return []
    cluster = names.CLUSTER_LABEL
    inside: Json = {"from": [{"podSelector": {"matchLabels": {cluster: values.cluster}}}]}
    label: Json = {values.network.client_label: "true"}
    clients: list[Json] = [{"namespaceSelector": {"matchLabels": label}}, {"podSelector": {"matchLabels": label}}]
    operator_name: Json = {"kubernetes.io/metadata.name": values.network.operator_namespace}
    operator: Json = {"namespaceSelector": {"matchLabels": operator_name}}
    head: list[Json] = [
        inside,
        {"from": [operator, *clients], "ports": _tcp(values.gateway.port)},
        {"from": clients, "ports": _tcp(names.SERVE_PORT, names.METRICS_PORT)},
    ]
    worker_labels: Json = {cluster: values.cluster, names.NODE_TYPE_LABEL: "worker"}
    rules: list[tuple[str, Json, list[Json]]] = [
        ("head", _head_labels(values), head),
        ("workers", worker_labels, [inside, {"from": clients, "ports": _tcp(names.SERVE_PORT, names.METRICS_PORT)}]),
    ]
    if _own_redis(values):
        rules.append(("redis", {"app.kubernetes.io/name": names.redis_service(values)}, [_to_redis(values)]))
    return [
        manifest(
            "networking.k8s.io/v1 NetworkPolicy",
            f"{values.cluster}-{suffix}",
            values.namespace,
            "network",
            {"spec": {"podSelector": {"matchLabels": selector}, "policyTypes": ["Ingress"], "ingress": ingress}},
        )
        for suffix, selector, ingress in rules
    ]


def _to_redis(values: KubeRayValues) -> Json:
    """From the head, and from the job by which KubeRay empties the store when the cluster is deleted."""
    kinds: Json = {"key": names.NODE_TYPE_LABEL, "operator": "In", "values": ["head", "redis-cleanup"]}
    selector: Json = {"matchLabels": {names.CLUSTER_LABEL: values.cluster}, "matchExpressions": [kinds]}
    return {"from": [{"podSelector": selector}], "ports": _tcp(names.REDIS_PORT)}


# ---------------------------------------------------------------- Redis


def _own_redis(values: KubeRayValues) -> bool:
    return values.redis.enabled and values.redis.address is None


def redis(values: KubeRayValues) -> list[Manifest]:
    """One Redis with a volume for Ray's control store: with it, running gangs survive the loss of the head's pod."""
    if not _own_redis(values):
        return []
    name, place = names.redis_service(values), values.namespace
    labels: Json = {"app.kubernetes.io/name": name}
    probe: Json = {
        "exec": {"command": ["/bin/sh", "-c", 'redis-cli -a "$REDIS_PASSWORD" --no-auth-warning ping | grep -q PONG']},
        "periodSeconds": 10,
        "timeoutSeconds": 5,
    }
    container: Json = {
        "name": "redis",
        "image": values.redis.image,
        "command": ["/bin/sh", "-c"],
        "args": ['exec redis-server --appendonly yes --dir /data --requirepass "$REDIS_PASSWORD"'],
        "env": [secret_variable("REDIS_PASSWORD", names.redis_secret(values), names.REDIS_PASSWORD_KEY)],
        "ports": [{"name": "redis", "containerPort": names.REDIS_PORT}],
        "resources": {"limits": {"cpu": "1", "memory": "2Gi"}, "requests": {"cpu": "250m", "memory": "512Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "readinessProbe": probe,
        "livenessProbe": probe,
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    pod: Json = {
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 999,
            "fsGroup": 999,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
    }
    claim: Json = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": values.redis.size}}},
    }
    body: Json = {
        "serviceName": name,
        "replicas": 1,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
        "volumeClaimTemplates": [claim],
    }
    port: Json = {"name": "redis", "port": names.REDIS_PORT, "targetPort": names.REDIS_PORT}
    service: Json = {"clusterIP": "None", "selector": labels, "ports": [port]}
    return [
        manifest("v1 Service", name, place, "redis", {"spec": service}),
        manifest("apps/v1 StatefulSet", name, place, "redis", {"spec": body}),
    ]
