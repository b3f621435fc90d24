"""The environments of a job: of its runner's process, and of the driver that the runner starts."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray._private import ray_constants
from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR
from ray._private.utils import remove_ray_internal_flags_from_env
from ray.dashboard.modules.job.common import JOB_ID_METADATA_KEY, JOB_NAME_METADATA_KEY
from ray.runtime_env import RuntimeEnv

from rayorch.adapters.ray_job.hooks import CHAINED_ENV_HOOK, CHAINED_UV_RUN, DEVICES_SETUP
from rayorch.core.errors import SpecError
from rayorch.core.payload import Payload
from rayorch.core.types import GPU

ENV_HOOK = "rayorch.adapters.ray_job.runtime_env_hook"
TRAIN_CALLBACK = "rayorch.adapters.ray_train.GrantCallback"
WORKER_HOOK_FIELD = "worker_process_setup_hook"
PRIVATE_VARIABLES = (
    ray_constants.RAY_WORKER_NICENESS,
    ray_constants.WORKER_PROCESS_SETUP_HOOK_ENV_VAR,
)
"""Meant for the runner's process only, never for what it starts."""


@dataclass(frozen=True, slots=True)
class DriverIdentity:
    """What a driver is told of the attempt that it works for.

    `storage_path`: where checkpoints go by default. `rank_map`: the file that says where each rank is.
    """

    instance: str
    namespace: str
    workload: str
    attempt: int
    runner: str
    lease_s: float
    storage_path: str = ""
    rank_map: str = ""


def check_runtime_env(given: Mapping[str, Any]) -> None:
    """SpecError naming the field when Ray would refuse the environment as soon as something is started in it.

    Whether it can be made (packages that exist, a registry that answers) shows only on the node.
    """
    for name in ("pip", "uv", "conda"):
        value = given.get(name)
        if isinstance(value, str) and (name != "conda" or "/" in value or value.endswith((".yml", ".yaml"))):
            # Ray would read that file here, and it lies on the machine of whoever submitted the work.
            raise SpecError(f"runtime_env.{name}", f"names the file {value!r}; give what is in it")
    try:
        RuntimeEnv(**given)
    except (TypeError, ValueError) as error:
        text = " ".join(str(error).split())
        wrong = next((name for name in given if re.search(rf"\b{re.escape(name)}\b", text)), "")
        raise SpecError(f"runtime_env.{wrong}" if wrong else "runtime_env", f"Ray refuses it: {text}") from error


def runner_runtime_env(payload: Payload) -> dict[str, Any]:
    """The environment in which the runner's own process starts: the user's working directory, packages and variables.

    The driver inherits it. The user's worker hook is left out: it is for workers. SpecError as `check_runtime_env`.
    """
    check_runtime_env(payload.runtime_env)
    env: dict[str, Any] = {k: v for k, v in payload.runtime_env.items() if k != WORKER_HOOK_FIELD}
    users = env.get("env_vars")
    # Ray gives its workers a lower priority than its own processes; the driver is not a worker.
    added = {ray_constants.RAY_WORKER_NICENESS: "0"}
    if payload.driver_resources.get(GPU):
        # The command inherits what this process sees.
        added[ray_constants.WORKER_PROCESS_SETUP_HOOK_ENV_VAR] = DEVICES_SETUP
    env["env_vars"] = {**(users if isinstance(users, dict) else {}), **added}
    return env


def job_supervisor_env(
    payload: Payload, identity: DriverIdentity, base: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The driver's environment: `base`, what Ray's own job supervisor adds to it, and what rayorch adds."""
    env = dict(base)
    remove_ray_internal_flags_from_env(env)
    for name in PRIVATE_VARIABLES:
        env.pop(name, None)
    metadata = {JOB_ID_METADATA_KEY: identity.workload, JOB_NAME_METADATA_KEY: identity.workload}
    metadata |= {"rayorch_workload": identity.workload, "rayorch_attempt": str(identity.attempt)}
    job_config = {"runtime_env": dict(payload.runtime_env), "metadata": {**metadata, **payload.metadata}}
    env |= {
        RAY_JOB_CONFIG_JSON_ENV_VAR: json.dumps(job_config),
        ray_constants.RAY_ADDRESS_ENVIRONMENT_VARIABLE: ray.get_runtime_context().gcs_address,
        "PYTHONUNBUFFERED": "1",
        "RAYORCH_INSTANCE": identity.instance,
        "RAYORCH_NAMESPACE": identity.namespace,
        "RAYORCH_WORKLOAD": identity.workload,
        "RAYORCH_ATTEMPT": str(identity.attempt),
        "RAYORCH_RUNNER": identity.runner,
        "RAYORCH_LEASE_S": f"{identity.lease_s:g}",
    }
    if identity.storage_path:
        env.setdefault("RAYORCH_STORAGE_PATH", identity.storage_path)
    if identity.rank_map:
        env["RAYORCH_RANK_MAP"] = identity.rank_map
    env |= _hooks(env)
    users = payload.runtime_env.get("env_vars")
    if not (isinstance(users, dict) and "PATH" in users):
        # "python" means the interpreter that Ray runs here, also where nobody has activated its environment.
        env["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), env.get("PATH", os.defpath)])
    return env


def _hooks(env: Mapping[str, str]) -> dict[str, str]:
    """Ours in the places that Ray reads, the user's own where ours look for them."""
    added = {ray_constants.RAY_RUNTIME_ENV_HOOK: ENV_HOOK}
    users_hook = env.get(ray_constants.RAY_RUNTIME_ENV_HOOK, "")
    if users_hook and users_hook != ENV_HOOK:
        added[CHAINED_ENV_HOOK] = users_hook
    callbacks = [name.strip() for name in env.get("RAY_TRAIN_CALLBACKS", "").split(",")]
    added["RAY_TRAIN_CALLBACKS"] = ",".join([TRAIN_CALLBACK, *(n for n in callbacks if n and n != TRAIN_CALLBACK)])
    # Under `uv run` Ray calls its own hook in place of ours; ours calls it instead.
    if env.get("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "1").strip().lower() in ("1", "true"):
        added["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
        added[CHAINED_UV_RUN] = "1"
    return added
