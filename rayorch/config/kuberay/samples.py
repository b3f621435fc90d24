"""What is submitted to the cluster: a RayJob that enters a queue, and a RayService beside it."""

from __future__ import annotations

import yaml

from rayorch.config.kuberay import names
from rayorch.config.kuberay.cluster import cluster_spec
from rayorch.config.kuberay.documents import Manifest, manifest, without_empty
from rayorch.config.kuberay.values import MAX_JOB_NAME, GroupValues, KubeRayValues, Mode
from rayorch.core.payload import Json

SERVED_APP = "rayorch.serve_apps.echo:app"

_TRAIN = """\
python - <<'END'
import ray.train
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model


def loop():
    model = prepare_model(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    device = ray.train.torch.get_device()
    for step in range(100):
        loss = model(torch.randn(64, 16, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ray.train.report({"step": step, "loss": loss.item()})


TorchTrainer(loop, scaling_config=ScalingConfig(num_workers=WORKERS, use_gpu=True)).fit()
END
"""
_COUNT = 'python -c "import ray; ray.init(); print(ray.get(ray.remote(lambda: 6 * 7).remote()))"\n'
WORKERS = 2


def ray_job(values: KubeRayValues) -> Manifest:
    """A RayJob in HTTP mode: the operator posts it to the port named "dashboard", which is our gateway, and asks there
    how it is. It makes no cluster and no submitter pod. Metadata names the queue and the gang."""
    group = next((g for g in values.groups if g.gpus), None)
    spec: Json = {
        "submissionMode": "HTTPMode",
        "clusterSelector": {names.CLUSTER_LABEL: values.cluster},
        "entrypoint": _TRAIN.replace("WORKERS", str(WORKERS)) if group else _COUNT,
        "metadata": _gang(values, group),
    }
    return manifest("ray.io/v1 RayJob", _short(values, "train"), values.namespace, "sample", {"spec": spec})


def _gang(values: KubeRayValues, group: GroupValues | None) -> Json:
    if group is None:
        return {"rayorch.queue": values.queue, "rayorch.workers": "1", "rayorch.cpus": "1"}
    return {
        "rayorch.queue": values.queue,
        "rayorch.kind": "train",
        "rayorch.workers": str(WORKERS),
        "rayorch.gpus": str(group.gpus),
        "rayorch.cpus": "8",
        "rayorch.accelerators": group.model or "",
        "rayorch.grace": "60s",
        "rayorch.retries": "3",
    }


def ray_service(values: KubeRayValues) -> Manifest:
    """A RayService: a cluster of its own that KubeRay makes, upgrades and scales by Ray's autoscaler, without queues.

    Serving that shares GPUs with training is a ServeApp document in the RayCluster instead.
    """
    group = next((g for g in values.groups if not g.spot), values.groups[0])
    groups = (group.model_copy(update={"spares": 0, "exact_devices": False}),)
    plain = values.model_copy(update={"mode": Mode.RAY, "groups": groups, "redis": values.redis_off()})
    gpus = min(1, group.gpus)
    deployment: dict[str, Json] = {
        "name": "Echo",
        "autoscaling_config": {"min_replicas": 1, "max_replicas": 4, "target_ongoing_requests": 5},
        "ray_actor_options": without_empty({"num_cpus": 1, "num_gpus": gpus or None}),
    }
    application: Json = {
        "name": "echo",
        "route_prefix": "/",
        "import_path": SERVED_APP,
        "deployments": [deployment],
    }
    body: Json = {
        "upgradeStrategy": {"type": "NewCluster"},
        "serveConfigV2": yaml.safe_dump({"applications": [application]}, sort_keys=False),
        "rayClusterConfig": cluster_spec(plain, with_rayorch=False),
    }
    return manifest("ray.io/v1 RayService", _short(values, "serve"), values.namespace, "sample", {"spec": body})


def _short(values: KubeRayValues, suffix: str) -> str:
    """A name within KubeRay's limit for these kinds."""
    return f"{values.cluster[: MAX_JOB_NAME - len(suffix) - 1]}-{suffix}"
