"""Builds a user's Serve application and deploys it with our overrides, in a process that has the user's environment.

The process stays until the application is undeployed: as a detached actor it keeps the packages of the runtime
environment from being collected while no replica lives.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray._private import ray_constants

from rayorch.adapters.ray_serve.policy import POLICY_PATH
from rayorch.adapters.ray_serve.seats import HELD_LABEL
from rayorch.core.device_binding import device_index
from rayorch.core.errors import SpecError
from rayorch.core.sharing import asks_of_ray
from rayorch.core.types import GPU, Resources, Role, total

DEVICES_SETUP = "rayorch.adapters.ray_devices.install"
METRICS_INTERVAL_S = 1.0
"""How often proxies and replicas tell Serve's controller their requests."""
LOOK_BACK_S = 2.0
"""Over which time Serve averages them."""


@dataclass(frozen=True, slots=True)
class AppSpec:
    """A Serve application as a workload.

    `roles`: pairs of a role and the deployment whose replicas are its members; an empty deployment means the only
    one that asks for GPUs. `runtime_env` as Ray understands it. The user's code is not changed.
    """

    name: str
    import_path: str
    roles: tuple[tuple[Role, str], ...]
    args: Mapping[str, Any]
    runtime_env: Mapping[str, Any]
    route_prefix: str | None = "/"

    @property
    def version(self) -> str:
        """Equal for equal code, arguments and environment: deploying it again then restarts nothing."""
        text = json.dumps([self.import_path, self.args, self.runtime_env], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class RunnerRef:
    """Where Serve's controller finds the grant, and how long it serves on without an answer [s]."""

    name: str
    namespace: str
    lease_s: float


@dataclass(frozen=True, slots=True)
class DeployedApp:
    """What was deployed: `roles` maps each granted deployment to its role."""

    name: str
    roles: tuple[tuple[str, str], ...]


class AppBuilder:
    """The detached actor of one application; see the module."""

    def deploy(self, spec: AppSpec, seats: Mapping[str, int], runner: RunnerRef) -> tuple[DeployedApp | None, str, str]:
        """Build and hand over to Serve, without waiting for replicas. `seats` counts them by role.

        Returns (what was deployed, "", "") or (None, field, message) when the application itself is at fault.
        """
        try:
            return _deploy(spec, seats, runner), "", ""
        except SpecError as error:
            return None, error.field, error.message


def _deploy(spec: AppSpec, seats: Mapping[str, int], runner: RunnerRef) -> DeployedApp:
    from ray.serve._private.build_app import build_app
    from ray.serve._private.client import ServeControllerClient
    from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
    from ray.serve.exceptions import RayServeException

    application = load_application(spec)
    built = build_app(
        application,
        name=spec.name,
        route_prefix=spec.route_prefix,
        default_runtime_env=dict(ray.get_runtime_context().runtime_env),
    )
    roles = match_roles(spec, tuple(built.deployments))
    deployments = [
        granted(d, roles[d.name], spec, seats.get(roles[d.name].name, 0), runner)
        if d.name in roles
        else d.options(version=spec.version, _internal=True)
        for d in built.deployments
    ]
    client = ServeControllerClient(ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE))
    try:
        client.deploy_applications(
            [replace(built, deployments=deployments)],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )
    except RayServeException as error:  # two entrances, or a route that another application has
        raise SpecError("route_prefix", str(error).strip().splitlines()[-1]) from error
    return DeployedApp(spec.name, tuple(sorted((d, role.name) for d, role in roles.items())))


def load_application(spec: AppSpec) -> Any:
    """The application at "module:app", built with `args` where it is a builder. SpecError for whatever goes wrong."""
    from ray.serve._private.api import call_user_app_builder_with_args_if_necessary as call_builder

    module_name, colon, attribute = spec.import_path.partition(":")
    if not (module_name and colon and attribute):
        raise SpecError("import_path", f'must look like "module:app", got {spec.import_path!r}')
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
        return call_builder(found, dict(spec.args))
    except Exception as error:  # the user's code: anything can come out of it
        raise SpecError("import_path", f"{spec.import_path}: {error!r}\n{traceback.format_exc(limit=-3)}") from error


def match_roles(spec: AppSpec, deployments: tuple[Any, ...]) -> dict[str, Role]:
    """Which deployment holds which role. SpecError when GPUs are asked for beside the roles, or beyond them."""
    asked = {d.name: requests_of(d) for d in deployments}
    wanting = [name for name, bundles in asked.items() if total(bundles).gpu_units]
    roles: dict[str, Role] = {}
    for role, named in spec.roles:
        if not named and len(wanting) != 1:
            raise SpecError("deployment", f"must name one of {sorted(asked)}: {len(wanting)} of them ask for GPUs")
        name = named or wanting[0]
        if name not in asked:
            raise SpecError("deployment", f"{name!r} is not one of {sorted(asked)}")
        needs = total(asked[name])
        grants = asks_of_ray(role.bundle, (0,))  # an instance is a GPU to Serve
        for resource, units in needs:
            if device_index(resource) is not None:
                raise SpecError(
                    f"deployments.{name}.{resource}",
                    f"names one GPU of a node; ask for {GPU}, the scheduler chooses which",
                )
            has = grants.units(resource)
            if units > has and (has or resource == GPU):
                raise SpecError(
                    f"roles.{role.name}",
                    f"a replica of {name} asks {needs.to_floats()}, the role grants {role.bundle.to_floats()}",
                )
        roles[name] = role
    strays = sorted(set(wanting) - set(roles))
    if strays:
        raise SpecError("roles", f"deployments {strays} ask for GPUs but have no role")
    return roles


def requests_of(deployment: Any) -> tuple[Resources, ...]:
    """What one replica asks for, by bundle; one bundle when it names none."""
    config = deployment._replica_config
    bundles = config.placement_group_bundles or [config.resource_dict]
    return tuple(Resources.of(bundle, deployment.name) for bundle in bundles)


def granted(deployment: Any, role: Role, spec: AppSpec, seats: int, runner: RunnerRef) -> Any:
    """The deployment as Serve gets it: bundles that only our placement can place, replicas as many as granted."""
    config, replica = deployment._deployment_config, deployment._replica_config
    where = f"deployments.{deployment.name}"
    if replica.max_replicas_per_node is not None:
        raise SpecError(f"{where}.max_replicas_per_node", "can't be combined with a grant, which chooses the nodes")
    if replica.placement_group_strategy in ("SPREAD", "STRICT_SPREAD"):
        raise SpecError(f"{where}.placement_group_strategy", "a granted replica lies on one node: use PACK")
    bundles = [bundle.to_floats() for bundle in requests_of(deployment)]
    gang_size = config.gang_scheduling_config.gang_size if config.gang_scheduling_config else 1
    if gang_size > 1 and len(bundles) > 1:
        raise SpecError(f"{where}.placement_group_bundles", "a member of a gang of replicas has one bundle")
    actor_options = dict(replica.ray_actor_options)
    actor_options["runtime_env"] = with_devices_setup(actor_options.get("runtime_env") or {})
    own = replica.placement_group_bundle_label_selector or [{} for _ in bundles]
    options: dict[str, Any] = {} if gang_size > 1 else {"placement_group_strategy": "STRICT_PACK"}
    return deployment.options(
        ray_actor_options=actor_options,
        placement_group_bundles=bundles,
        placement_group_bundle_label_selector=[{**selector, HELD_LABEL: "by-grant"} for selector in own],
        autoscaling_config=_autoscaling(deployment, role, spec, seats, gang_size, runner),
        max_surge_percent=0,  # a replacement needs a seat of its own, so the old replica leaves first
        version=spec.version,
        _internal=True,
        **options,
    )


def with_devices_setup(runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """The environment of a replica with the hook by which it sees the GPUs of its seat; one of the user's stays."""
    variables = dict(runtime_env.get("env_vars") or {})
    variables.setdefault(ray_constants.WORKER_PROCESS_SETUP_HOOK_ENV_VAR, DEVICES_SETUP)
    return {**runtime_env, "env_vars": variables}


def _autoscaling(deployment: Any, role: Role, spec: AppSpec, seats: int, gang_size: int, runner: RunnerRef) -> Any:
    from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

    own = deployment._deployment_config.autoscaling_config
    policy = AutoscalingPolicy(
        policy_function=POLICY_PATH,
        policy_kwargs={
            "app": spec.name,
            "deployment": deployment.name,
            "role": role.name,
            "runner": runner.name,
            "namespace": runner.namespace,
            "lease_s": runner.lease_s,
            "gang_size": gang_size,
        },
    )
    with warnings.catch_warnings():
        # Ray prefers environment variables for the interval, which would bind all applications to one value.
        warnings.simplefilter("ignore", DeprecationWarning)
        most = max(role.max_count, seats, 1)
        return AutoscalingConfig(
            min_replicas=gang_size,  # at 0, Serve's fast path for a cold start would bypass the policy
            initial_replicas=max(seats // gang_size, 1) * gang_size,
            max_replicas=2 * most,  # replicas that leave their seats last count until they are gone
            target_ongoing_requests=own.target_ongoing_requests if own else AutoscalingConfig().target_ongoing_requests,
            upscale_delay_s=0,
            downscale_delay_s=0,
            metrics_interval_s=METRICS_INTERVAL_S,
            look_back_period_s=LOOK_BACK_S,
            policy=policy,
        )
