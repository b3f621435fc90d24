"""Applications as users write them: plain Ray Serve, nothing of rayorch."""

import asyncio
import os
from typing import Any

import ray
from ray import serve


@serve.deployment(ray_actor_options={"num_gpus": 1, "num_cpus": 0.5}, max_ongoing_requests=2)
class Model:
    """Answers after `?s=` seconds with where it runs; `?die=1` ends its process."""

    async def __call__(self, request: Any) -> dict[str, Any]:
        if request.query_params.get("die"):
            os._exit(1)
        await asyncio.sleep(float(request.query_params.get("s", "0")))
        context = ray.get_runtime_context()
        return {"pid": os.getpid(), "node": context.get_node_id(), "gpus": ray.get_gpu_ids()}


@serve.deployment(ray_actor_options={"num_cpus": 0.1})
class Front:
    """An entrance without GPUs."""

    def __init__(self, model: Any) -> None:
        self._model = model

    async def __call__(self, request: Any) -> Any:
        return await self._model.where.remote()


@serve.deployment(
    ray_actor_options={"num_gpus": 1, "num_cpus": 0.1},
    placement_group_bundles=[{"GPU": 1, "CPU": 0.1}, {"GPU": 1}],
)
class Pair:
    """A replica of two GPUs in two bundles."""

    async def where(self) -> dict[str, Any]:
        group = ray.util.get_current_placement_group()
        return {"node": ray.get_runtime_context().get_node_id(), "bundles": len(group.bundle_specs)}


app = Model.bind()
gang = Model.options(gang_scheduling_config={"gang_size": 2}, num_replicas=2).bind()
pair = Front.bind(Pair.bind())


def broken(args: dict[str, Any]) -> Any:
    """A builder that fails."""
    raise RuntimeError(f"no model at {args['path']}")
