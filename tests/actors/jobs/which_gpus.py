"""A user's script: what does Ray say which GPUs its tasks and actors have? Arguments: GPUs of the one large actor."""

import json
import os
import sys
from typing import Any

import ray

ray.init()
large = int(sys.argv[1])


def seen() -> dict[str, Any]:
    accelerators = ray.get_runtime_context().get_accelerator_ids()["GPU"]
    return {
        "ids": ray.get_gpu_ids(),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "context": accelerators,
        "pid": os.getpid(),
    }


@ray.remote(num_cpus=0)
class Actor:
    def seen(self) -> dict[str, Any]:
        return seen()


@ray.remote(num_gpus=0.5, num_cpus=0)
def half() -> dict[str, Any]:
    return seen()


def actors(count: int, gpus: float) -> list[dict[str, Any]]:
    """What so many actors see that are alive at the same time."""
    alive = [Actor.options(num_gpus=gpus).remote() for _ in range(count)]  # type: ignore[attr-defined]
    found: list[dict[str, Any]] = ray.get([actor.seen.remote() for actor in alive], timeout=180)
    for actor in alive:
        ray.kill(actor)
    return found


found = {"large": actors(1, large), "single": actors(large, 1), "half": [ray.get(half.remote()) for _ in range(2)]}
print("FOUND " + json.dumps(found), flush=True)
if "stay" in sys.argv:
    keeper = Actor.options(num_gpus=large).remote()  # type: ignore[attr-defined]
    print("KEEPS " + json.dumps(ray.get(keeper.seen.remote())), flush=True)
    import time

    time.sleep(1000)
