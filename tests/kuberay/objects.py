"""RayClusters and RayJobs for tests."""

from __future__ import annotations

from typing import Any

from tests.kuberay.store import Thing


def worker_group(name: str = "gpu", replicas: int | None = 1, low: int = 0, high: int = 8, **more: Any) -> Thing:
    """One entry of workerGroupSpecs; its nodes have 8 CPUs and 4 GPUs unless `limits` says otherwise."""
    limits = more.pop("limits", {"cpu": "8", "nvidia.com/gpu": "4"})
    selector = more.pop("selector", None)
    spec: Thing = {"containers": [{"name": "ray", "image": "rayproject/ray:2.60.0", "resources": {"limits": limits}}]}
    if selector:
        spec["nodeSelector"] = selector
    group: Thing = {"groupName": name, "minReplicas": low, "maxReplicas": high, "template": {"spec": spec}, **more}
    if replicas is not None:
        group["replicas"] = replicas
    return group


def ray_cluster(*groups: Thing, name: str = "demo", annotations: dict[str, str] | None = None, **spec: Any) -> Thing:
    """A RayCluster with these worker groups, one of them by default."""
    head = {"template": {"spec": {"containers": [{"name": "ray-head", "image": "rayproject/ray:2.60.0"}]}}}
    meta: Thing = {"name": name}
    if annotations:
        meta["annotations"] = annotations
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": meta,
        "spec": {
            "rayVersion": "2.60.0",
            "headGroupSpec": head,
            "workerGroupSpecs": list(groups or (worker_group(),)),
            **spec,
        },
    }


def ray_job(name: str, cluster: str = "demo", **spec: Any) -> Thing:
    """A RayJob that runs on an existing cluster."""
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name},
        "spec": {"entrypoint": "python train.py", "clusterSelector": {"ray.io/cluster": cluster}, **spec},
    }
