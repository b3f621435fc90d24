"""Start Serve with our placement; deploy, watch and remove applications. Called by the runner; every wait is bounded.

All functions block: an async actor calls them in a thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import ray
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put
from ray.util.placement_group import placement_group_table

from rayorch.adapters.ray_names import ON_HEAD
from rayorch.adapters.ray_serve.builder import AppBuilder, AppSpec, DeployedApp, RunnerRef
from rayorch.adapters.ray_serve.seats import group_of_row
from rayorch.core.errors import ClusterError, SpecError
from rayorch.core.grants import Grant
from rayorch.core.payload import Payload
from rayorch.core.reports import SeatInUse
from rayorch.core.types import WorkloadSpec

CALLBACK_VARIABLE = "RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH"
CALLBACK_PATH = "rayorch.adapters.ray_serve.controller_callback"
START_ATTEMPTS = 3
START_TIMEOUT_S = 120.0
CALL_TIMEOUT_S = 30.0
DEPLOY_TIMEOUT_S = 300.0
"""Importing the user's module, with its environment to be set up first."""
UNDEPLOY_TIMEOUT_S = 120.0
POLL_S = 0.1

_KV_NAMESPACE = b"rayorch"
_KV_INSTALLED = b"serve-callback-installed-in"
_KV_OWNER = "serve-app-owner/"

log = logging.getLogger(__name__)


def controller_callback() -> None:
    """Called by Serve in its controller's process, before anything else is set up there, also after a restart."""
    from rayorch.adapters.ray_serve.scheduler import install

    install()
    _internal_kv_put(_KV_INSTALLED, _own_actor_id().encode(), overwrite=True, namespace=_KV_NAMESPACE)


def _own_actor_id() -> str:
    actor_id = ray.get_runtime_context().get_actor_id()
    assert actor_id is not None, "Serve calls this in its controller, which is an actor"
    return actor_id


# ---------------------------------------------------------------- Serve itself


def ensure_serve_started(http_host: str = "127.0.0.1", http_port: int = 8000, proxy_location: str = "HeadOnly") -> None:
    """Start Serve with our placement, or attach to it. Idempotent, also for callers at the same time.

    HTTP options count only for the one that starts it. Raises ClusterError when Serve runs without our placement: its
    controller can't be changed while it runs.
    """
    for attempt in range(START_ATTEMPTS):
        controller = _controller()
        if controller is not None:
            _check_installed(controller)
            return
        try:
            _start(http_host, http_port, proxy_location)
        except Exception as error:  # someone else may have started it just now; then the name is taken
            log.info("attempt %d to start Serve failed: %r", attempt + 1, error)
            if attempt + 1 == START_ATTEMPTS and _controller() is None:
                raise ClusterError(f"could not start Serve: {error}") from error
    controller = _controller()
    if controller is None:
        raise ClusterError(f"Serve did not stay up in {START_ATTEMPTS} attempts to start it")
    _check_installed(controller)


def _start(http_host: str, http_port: int, proxy_location: str) -> None:
    from ray import serve

    serve.start(
        proxy_location=proxy_location,
        http_options={"host": http_host, "port": http_port},
        controller_options={"runtime_env": {"env_vars": {CALLBACK_VARIABLE: CALLBACK_PATH}}},
    )


def _controller() -> Any | None:
    from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

    try:
        return ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
    except ValueError:
        return None


def _running_controller() -> Any:
    controller = _controller()
    if controller is None:
        raise ClusterError("Serve is not running on this cluster")
    return controller


def _call(reference: Any, what: str, timeout_s: float = CALL_TIMEOUT_S) -> Any:
    try:
        return ray.get(reference, timeout=timeout_s)
    except ray.exceptions.RayError as error:
        raise ClusterError(f"{what}: {error}") from error


def _check_installed(controller: Any) -> None:
    _call(controller.check_alive.remote(), "Serve's controller does not answer", START_TIMEOUT_S)
    installed_in = _internal_kv_get(_KV_INSTALLED, namespace=_KV_NAMESPACE) or b""
    if installed_in.decode() != controller._actor_id.hex():
        raise ClusterError(
            "Serve is already running on this cluster without rayorch's placement, so its replicas would take GPUs "
            "that nobody granted. Shut it down (`serve shutdown`) and let rayorch start it."
        )


# ---------------------------------------------------------------- applications


def app_spec(workload: WorkloadSpec) -> AppSpec:
    """The application that a workload of kind serve describes. Raises SpecError.

    With one role, `payload.deployment` names its deployment; with several, each role is named after its own.
    """
    payload = Payload.of_text(workload.payload)
    name = payload.app_name or str(workload.id)
    if not payload.import_path:
        raise SpecError("payload.import_path", "must be given")
    if "#" in name:
        raise SpecError("payload.app_name", "must not contain '#'")
    one = len(workload.roles) == 1
    roles = tuple((role, payload.deployment if one else role.name) for role in workload.roles)
    return AppSpec(name, payload.import_path, roles, payload.args, payload.runtime_env, payload.route_prefix or None)


def deploy(
    spec: AppSpec,
    grant: Grant,
    runner_name: str,
    namespace: str = "rayorch",
    timeout_s: float = DEPLOY_TIMEOUT_S,
) -> DeployedApp:
    """Deploy the application under a grant and return before its replicas run (see `app_status`).

    Serve's controller follows the named runner from then on. Repeating it is harmless, and a new attempt may take over
    an application of the same name. Raises SpecError when the application is at fault, or its name is that of another
    workload's; ClusterError otherwise.
    """
    _running_controller()
    _claim(spec.name, runner_name, namespace)
    seats: dict[str, int] = {}
    for seat in grant.seats:
        seats[seat.role] = seats.get(seat.role, 0) + 1
    _end_builder(spec.name, namespace)
    builder = _start_builder(spec, namespace)
    runner = RunnerRef(runner_name, namespace, grant.lease_s)
    answer = builder.deploy.remote(spec, seats, runner)
    deployed, field, message = _call(answer, f"could not deploy {spec.name}", timeout_s)
    if deployed is None:
        _end_builder(spec.name, namespace)
        raise SpecError(field, message)
    assert isinstance(deployed, DeployedApp)
    return deployed


def _claim(app: str, runner: str, namespace: str) -> None:
    """Note whose application it is. SpecError while it is another workload's: both would drive, and remove, one app."""
    key = f"{_KV_OWNER}{app}".encode()
    owner = (_internal_kv_get(key, namespace=_KV_NAMESPACE) or b"").decode()
    workload = runner.rpartition("/")[0]  # without the attempt
    if owner and owner.rpartition("/")[0] != workload and _lives(owner, namespace):
        raise SpecError("payload.app_name", f"application {app!r} belongs to {owner}, which is running")
    _internal_kv_put(key, runner.encode(), overwrite=True, namespace=_KV_NAMESPACE)


def _lives(actor: str, namespace: str) -> bool:
    try:
        ray.get_actor(actor, namespace=namespace)
    except ValueError:
        return False
    return True


def _builder_name(app: str) -> str:
    return f"serve-app/{app}"


def _start_builder(spec: AppSpec, namespace: str) -> Any:
    try:
        return (
            ray.remote(AppBuilder)
            .options(
                name=_builder_name(spec.name),
                namespace=namespace,
                lifetime="detached",
                num_cpus=0,
                resources=ON_HEAD,
                runtime_env=dict(spec.runtime_env),
            )
            .remote()
        )
    except (ValueError, TypeError) as error:
        raise SpecError("runtime_env", str(error)) from error


def _end_builder(app: str, namespace: str) -> None:
    """End the builder's process if there is one, and wait until its name is free."""
    deadline_s = time.monotonic() + CALL_TIMEOUT_S
    while True:
        try:
            ray.kill(ray.get_actor(_builder_name(app), namespace=namespace))
        except ValueError:
            return
        if time.monotonic() > deadline_s:
            raise ClusterError(f"actor {_builder_name(app)} does not end")
        time.sleep(POLL_S)


def undeploy(app: str, namespace: str = "rayorch", timeout_s: float = UNDEPLOY_TIMEOUT_S) -> None:
    """Remove an application: requests are drained, then its groups are gone. Nothing to do is no error.

    Raises ClusterError when groups are left at the timeout.
    """
    deadline_s = time.monotonic() + timeout_s
    controller = _controller()
    if controller is not None:
        _call(controller.delete_apps.remote([app]), f"could not delete {app}")
        while app_status(app).state != "NOT_DEPLOYED" or _live_groups(app):
            if time.monotonic() > deadline_s:
                raise ClusterError(f"{app} is still {app_status(app).state} after {timeout_s:g} s")
            time.sleep(POLL_S)
    _end_builder(app, namespace)
    _internal_kv_del(f"{_KV_OWNER}{app}".encode(), namespace=_KV_NAMESPACE)


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica; `node_id` is empty until it has a place. `state` is Serve's (STARTING, RUNNING, STOPPING …)."""

    deployment: str
    replica_id: str
    state: str
    node_id: str


@dataclass(frozen=True, slots=True)
class AppStatus:
    """`state` is Serve's (DEPLOYING, RUNNING, DEPLOY_FAILED, UNHEALTHY, DELETING) or NOT_DEPLOYED.

    RUNNING says nothing about replicas that wait for a seat; `replicas` do.
    """

    state: str
    message: str
    replicas: tuple[ReplicaStatus, ...] = ()

    def running(self, deployment: str | None = None) -> int:
        """How many replicas answer requests, of one deployment or of all."""
        return sum(r.state == "RUNNING" and deployment in (None, r.deployment) for r in self.replicas)


def app_status(app: str) -> AppStatus:
    """How an application does. Raises ClusterError when Serve's controller does not answer."""
    controller = _controller()
    if controller is None:
        return AppStatus("NOT_DEPLOYED", "Serve is not running")
    details: Mapping[str, Any] = _call(controller.get_serve_instance_details.remote(), "Serve's controller is silent")
    found = details["applications"].get(app)
    if found is None:
        return AppStatus("NOT_DEPLOYED", "")
    messages = [str(found["message"]), *(str(d["message"]) for d in found["deployments"].values())]
    replicas = tuple(
        ReplicaStatus(name, str(replica["replica_id"]), _word(replica["state"]), str(replica.get("node_id") or ""))
        for name, deployment in sorted(found["deployments"].items())
        for replica in deployment["replicas"]
    )
    return AppStatus(_word(found["status"]), "\n".join(m for m in messages if m), replicas)


def _word(state: Any) -> str:
    return str(state.value if isinstance(state, Enum) else state)


def seats_in_use(app: str, roles: Mapping[str, str] | None = None) -> tuple[SeatInUse, ...]:
    """The places that an application's replicas really use now, from Ray's own table. `roles`: deployment → role.

    A group that is not placed yet is left out, one that is being drained is in.
    """
    roles = roles or {}
    return tuple(
        SeatInUse(
            roles.get(group.deployment, group.deployment),
            node,
            group.group_id,
            group.name,
            devices=devices,
            exact=bool(devices),
        )
        for group in _live_groups(app)
        for node, devices in group.uses
        if node
    )


def _live_groups(app: str) -> tuple[Any, ...]:
    try:
        rows = placement_group_table().values()
    except Exception as error:  # the GCS client raises several unrelated classes
        raise ClusterError(f"could not read Ray's placement groups: {error}") from error
    found = [group for row in rows if (group := group_of_row(row, app)) is not None]
    return tuple(sorted(found, key=lambda group: (group.deployment, group.group_id)))
