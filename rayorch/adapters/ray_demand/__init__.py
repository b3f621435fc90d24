"""The one request for capacity that Ray's autoscaler hears.

Ray keeps a single global request and the last writer wins, and Ray Data and Train write it through a detached
actor named `AutoscalingCoordinator`. So we start that actor ourselves, before anyone else does: it goes on
serving them, and adds our gangs to each request that it sends.
"""

from __future__ import annotations

from typing import Any

import ray

from rayorch.adapters.ray_names import ON_HEAD

ACTOR_NAME = "AutoscalingCoordinator"
ACTOR_NAMESPACE = "AutoscalingCoordinator"


def ensure_coordinator() -> Any:
    """The coordinator actor, created if nobody has. A stock one that is already there is replaced, and one of a former
    version of ours: its requesters repeat their requests within seconds, and it keeps nothing else."""
    try:
        handle: Any = ray.get_actor(ACTOR_NAME, namespace=ACTOR_NAMESPACE)
    except ValueError:
        return _create()
    if hasattr(handle, "holds_gangs_by_instance"):
        return handle
    ray.kill(handle)
    return _create()


def _create() -> Any:
    from rayorch.adapters.ray_demand.coordinator import GangCoordinator  # imports Ray Data, and that is slow

    actor_class: Any = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(GangCoordinator)
    return actor_class.options(
        name=ACTOR_NAME,
        namespace=ACTOR_NAMESPACE,
        get_if_exists=True,
        lifetime="detached",
        resources=ON_HEAD,
    ).remote()
