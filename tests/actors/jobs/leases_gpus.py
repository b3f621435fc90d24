"""A notebook, as far as its cells go: it leases a gang of one GPU and asks an actor in it which one it has."""

import json
import os
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import rayorch


@ray.remote(num_gpus=1, num_cpus=0)
class Actor:
    def seen(self) -> tuple[list[Any], str | None]:
        return ray.get_gpu_ids(), os.environ.get("CUDA_VISIBLE_DEVICES")


with rayorch.connect() as client, client.gang([{"GPU": 1}], timeout=120) as group:
    strategy = PlacementGroupSchedulingStrategy(group)
    actor = Actor.options(scheduling_strategy=strategy).remote()  # type: ignore[attr-defined]
    print("FOUND " + json.dumps(ray.get(actor.seen.remote(), timeout=120)))
