"""The names under which the owners are found, and how to find them."""

from __future__ import annotations

import logging
from typing import Any

import ray

from rayorch.adapters.ray_names import ON_HEAD
from rayorch.core.errors import ClusterError
from rayorch.core.types import WorkloadId

log = logging.getLogger(__name__)

NAMESPACE = "rayorch"


def on_head() -> dict[str, float]:
    """What an actor asks for to be on the head, also after the head was replaced."""
    return dict(ON_HEAD)


def queues_name(instance: str) -> str:
    """The queue owner's actor name."""
    return f"queues/{instance}"


def inventory_name(instance: str) -> str:
    """The node inventory's actor name."""
    return f"inventory/{instance}"


def allocator_name(instance: str) -> str:
    """The gang allocator's actor name."""
    return f"allocator/{instance}"


def controller_name(instance: str) -> str:
    """The controller's actor name."""
    return f"controller/{instance}"


def logs_name(instance: str) -> str:
    """The log store's actor name."""
    return f"logs/{instance}"


def agent_name(instance: str, node: str) -> str:
    """The name of one node's agent."""
    return f"agent/{instance}/{node}"


def runner_prefix(instance: str) -> str:
    """What the names of all runners of an instance start with."""
    return f"runner/{instance}/"


def runner_name(instance: str, workload: WorkloadId, attempt: int) -> str:
    """The name of one attempt's runner."""
    return f"{runner_prefix(instance)}{workload}/{attempt}"


def attempt_of_runner(instance: str, name: str) -> tuple[WorkloadId, int] | None:
    """(workload, attempt) of a runner's name, None for any other actor's."""
    prefix = runner_prefix(instance)
    if not name.startswith(prefix):
        return None
    workload, _, attempt = name[len(prefix) :].rpartition("/")
    return (WorkloadId(workload), int(attempt)) if workload and attempt.isdigit() else None


def owner_options(name: str) -> dict[str, Any]:
    """Ray's options of an actor that is the only one of its name, outlives who started it, and is always restarted.

    Calls are repeated without bound, which ends with the actor: each of its methods may be repeated.
    """
    return {
        "name": name,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": -1,
    }


def find(name: str) -> Any:
    """The handle of a named actor; ClusterError when there is none."""
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError as error:
        raise ClusterError(f"no actor named {name!r} in namespace {NAMESPACE!r}: is rayorch up?") from error


def find_or_none(name: str) -> Any:
    """The handle of a named actor, None when there is none."""
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None


def is_restart() -> bool:
    """Whether Ray has restarted this actor: then its journal exists, or something is very wrong."""
    if not ray.is_initialized():
        return False
    context = ray.get_runtime_context()
    return context.get_actor_id() is not None and bool(context.was_current_actor_reconstructed)
