"""A user's script that knows nothing of rayorch: GPU tasks, an actor and nested tasks, none with a strategy."""

import json
import os
import sys

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ray.init()


def here() -> str:
    group = ray.util.get_current_placement_group()
    return group.id.hex() if group is not None else ""


@ray.remote(num_gpus=1)
def task() -> str:
    return here()


@ray.remote(num_gpus=1)
class Actor:
    def where(self) -> str:
        return here()


@ray.remote(num_cpus=1)
def parent() -> tuple[str, str]:
    return here(), ray.get(task.remote())


@ray.remote(num_gpus=3)
def too_large() -> None: ...


@ray.remote(num_gpus=1, num_cpus=0)
def elsewhere() -> str:
    return here()


found: dict[str, object] = {"tasks": ray.get([task.remote() for _ in range(4)], timeout=120)}
actor = Actor.remote()  # type: ignore[attr-defined]
found["actor"] = ray.get(actor.where.remote(), timeout=120)
ray.kill(actor)
found["parent"], found["nested"] = ray.get(parent.remote(), timeout=120)
try:
    too_large.remote()
except Exception as error:  # noqa: BLE001 - shown in the test's failure
    found["too_large"] = str(error)
gpu_node = next(node["NodeID"] for node in ray.nodes() if node["Resources"].get("GPU"))
own = NodeAffinitySchedulingStrategy(gpu_node, soft=False)
stays = elsewhere.options(scheduling_strategy=own).remote()
found["own_strategy_waits"] = not ray.wait([stays], timeout=2)[0]
ray.cancel(stays)
found["reserved"] = [g["name"] for g in ray.util.placement_group_table().values() if g["state"] == "CREATED"]
found["hook"] = os.environ["RAY_RUNTIME_ENV_HOOK"]
print("FOUND " + json.dumps(found))
print("on stderr", file=sys.stderr)
