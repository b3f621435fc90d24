"""The four documents of apiVersion rayorch/v1: Cluster, Queue, Workload, ServeApp.

Each is checked here for form and turned into core's values by `to_core()`; whether the cluster can take a
workload is the queue owner's question. HTTP takes the same documents as JSON.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal, cast

from pydantic import BeforeValidator, Field

from rayorch.config.devices import Sharing, mps_environment, with_mode
from rayorch.config.fields import (
    MAX_MEMBERS,
    Accelerators,
    Amounts,
    Countables,
    Duration,
    Items,
    Model,
    Name,
    Patience,
    Priority,
    QueuePath,
    Version,
    Workers,
    resources,
)
from rayorch.config.gangs import GangBody, Members, SegmentBody, Topology, gang_fields
from rayorch.config.queues import QueueDocument as QueueDocument
from rayorch.config.timing import TimingBody, timing_of
from rayorch.core.device_checks import check_member_devices
from rayorch.core.errors import SpecError
from rayorch.core.payload import Json, Payload
from rayorch.core.sharing import GPU_DEVICES, GPU_MEMORY, asks_of_ray, device_need
from rayorch.core.types import (
    CPU,
    GPU,
    MAX_UNITS,
    UNIT,
    Kind,
    QueueId,
    Resources,
    Role,
    WorkloadId,
    WorkloadSpec,
)
from rayorch.core.wellformed import check_accelerators

API_VERSION = "rayorch/v1"
WORKER = "worker"
REPLICA = "replica"
DRIVER = "driver"
MAX_TEXT = 64 * 1024


class WorkloadMetadata(Model):
    """`id` makes a submission idempotent; without it the name is the id. `annotations` come back unread."""

    name: Name
    queue: QueuePath
    id: Name | None = None
    annotations: Mapping[str, str] = Field(default_factory=dict)


# ---------------------------------------------------------------- Workload


class Gang(Model):
    """`workers` 2 or [2, 4]; with `min_workers`, `workers` is the most. `resources` are of each.

    `sharing`: how a part of a GPU must be kept apart from others on it; it goes to nodes that do that only.
    `segments`: consecutive workers that share a domain, from the outermost inwards. `countables`: what each draws of
    what the cluster has as a whole.
    """

    workers: Workers
    min_workers: Annotated[int, Field(ge=1)] | None = None
    resources: Amounts = Field(default_factory=lambda: {CPU: 1.0})
    sharing: Sharing | None = None
    segments: Items[SegmentBody] = ()
    countables: Countables = Field(default_factory=dict)

    def bundle(self, field: str) -> Resources:
        """What one member holds."""
        return _member(with_mode(self.resources, self.sharing, f"{field}.sharing"), f"{field}.resources")


class Preemption(Model):
    """Whether it may be stopped for others, how long its last checkpoint may take, how long it is left alone.

    `delay`: how long it waits for room before others are stopped for it. `stale_grace`: how long it runs below its
    minimum before it is ended; left out: as the cluster says.
    """

    allowed: bool = True
    grace: Duration = 30.0
    min_runtime: Duration = 0.0
    delay: Duration = 0.0
    stale_grace: Patience | None = None


def _command(value: object) -> object:
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        return shlex.join(value)
    return value


Command = Annotated[str, BeforeValidator(_command), Field(max_length=MAX_TEXT)]


class WorkloadBody(TimingBody, GangBody):
    """See `core.types.WorkloadSpec`. `runtime_env` is Ray's; `driver` is what the command itself needs.

    `bundles`, for kind gang and instead of `gang`: members of different shapes, in the order of the group's bundles.
    `accelerators`: H100, or [H100, A100], the preferred model first; all GPUs are of one. `any_model`: they are equally
    good.
    """

    kind: Literal["train", "job", "gang"] = "job"
    gang: Gang | None = None
    bundles: Items[Amounts] = ()
    driver: Amounts = Field(default_factory=lambda: {CPU: 1.0})
    accelerators: Accelerators = ()
    any_model: bool = False
    entrypoint: Command = ""
    function: str = ""
    runtime_env: Mapping[str, object] = Field(default_factory=dict)
    env: Mapping[str, str] = Field(default_factory=dict)
    priority: Priority = 0
    preemption: Preemption = Preemption()
    resizable: bool = True


class WorkloadDocument(Model):
    """A training run, a command, or a leased gang."""

    api_version: Version
    kind: Literal["Workload"]
    metadata: WorkloadMetadata
    spec: WorkloadBody

    def to_core(self, owner: str = "") -> WorkloadSpec:
        """In core's words; SpecError for what can't be right on any cluster."""
        body, kind = self.spec, Kind(self.spec.kind)
        check_accelerators(body.accelerators, "spec.accelerators")
        if kind is Kind.GANG and body.entrypoint:
            raise SpecError("spec.entrypoint", "a leased gang runs no command")
        if kind is not Kind.GANG and not body.entrypoint.strip():
            raise SpecError("spec.entrypoint", "is empty")
        if body.bundles and (kind is not Kind.GANG or body.gang is not None):
            raise SpecError("spec.bundles", "are for kind gang, instead of gang")
        if body.roles and (body.gang is not None or body.bundles):
            raise SpecError("spec.roles", "are in place of gang and of bundles")
        if kind is Kind.TRAIN and body.roles and WORKER not in {members.name for members in body.roles}:
            raise SpecError("spec.roles", f"need one that is named {WORKER!r}: Ray Train's workers are its members")
        if kind is not Kind.JOB and body.gang is None and not body.bundles and not body.roles:
            raise SpecError("spec.gang", f"is needed for kind {kind.value}")
        roles = _roles(kind, body)
        runtime_env = _runtime_env(body.runtime_env, body.env)
        if body.gang is not None and (limits := mps_environment(body.gang.bundle("spec.gang"))):
            own = cast(dict[str, Json], runtime_env.get("env_vars", {}))
            runtime_env["env_vars"] = {**limits, **own}
        takes = _taken_by_driver(body) if kind is not Kind.GANG else {}
        payload = Payload(
            body.entrypoint,
            runtime_env,
            dict(self.metadata.annotations),
            body.function,
            driver_role=DRIVER if takes else "",
            driver_resources=takes,
        )
        return WorkloadSpec(
            id=WorkloadId(self.metadata.id or self.metadata.name),
            name=self.metadata.name,
            kind=kind,
            queue=QueueId(self.metadata.queue),
            roles=roles,
            priority=body.priority,
            preemptible=body.preemption.allowed,
            resizable=body.resizable and kind is not Kind.GANG and _may_grow(body, roles),
            accelerators=body.accelerators,
            any_model=body.any_model,
            grace_s=body.preemption.grace,
            min_runtime_s=body.preemption.min_runtime,
            preemption_delay_s=body.preemption.delay,
            stale_grace_s=body.preemption.stale_grace,
            owner=owner,
            payload=payload.to_text(),
            **timing_of(body),
            **gang_fields(body),
        )


def _roles(kind: Kind, body: WorkloadBody) -> tuple[Role, ...]:
    """The members and, for a command, the place of the driver."""
    roles: list[Role] = _bundle_roles(body.bundles)
    if body.gang is not None:
        least, most = body.gang.workers
        if body.gang.min_workers is not None:
            if least != most:
                raise SpecError("spec.gang.minWorkers", "and a range of workers say the same twice")
            least = body.gang.min_workers
        if least > most:
            raise SpecError("spec.gang.minWorkers", f"{least} is above workers {most}")
        worker = _role(WORKER, body.gang.bundle("spec.gang"), least, most, "spec.gang")
        drawn = resources(body.gang.countables, "spec.gang.countables")
        segments = tuple(segment.to_core() for segment in body.gang.segments)
        roles.append(replace(worker, segments=segments, countables=drawn))
    roles += [_members(members, f"spec.roles[{n}]") for n, members in enumerate(body.roles)]
    driver = _member(body.driver, "spec.driver")
    _check_sees_gpus(driver, "spec.driver")
    if kind is not Kind.GANG and driver:
        roles.append(Role(DRIVER, driver, 1, 1))
    if not roles:
        raise SpecError("spec.driver", "is empty, and there is no gang")
    return tuple(roles)


def _members(members: Members, field: str) -> Role:
    if members.name == DRIVER:
        raise SpecError(f"{field}.name", f"{DRIVER!r} is the role of the command itself")
    least, most = members.workers
    amounts = with_mode(members.resources, members.sharing, f"{field}.sharing")
    role = _role(members.name, _member(amounts, f"{field}.resources"), least, most, field)
    return replace(
        role,
        group=members.group or "",
        segments=tuple(segment.to_core() for segment in members.segments),
        countables=resources(members.countables, f"{field}.countables"),
    )


def _may_grow(body: WorkloadBody, roles: tuple[Role, ...]) -> bool:
    """Whether it could hold more than it starts with."""
    return any(r.max_count > r.min_count for r in roles) or any(g.min_children is not None for g in body.groups)


def _taken_by_driver(body: WorkloadBody) -> dict[str, Json]:
    """What the command itself takes of its seat, so that it sees those devices and no others.

    CPUs and memory it shares with what it starts: Ray holds nobody to them.
    """
    driver = asks_of_ray(resources(body.driver, "spec.driver"), (0,)).to_floats()
    return {name: amount for name, amount in driver.items() if name not in (CPU, "memory")}


def _bundle_roles(bundles: tuple[Mapping[str, float], ...]) -> list[Role]:
    """One role for each run of equal bundles, so that the order stays."""
    if len(bundles) > MAX_MEMBERS:
        raise SpecError("spec.bundles", f"has {len(bundles)} entries, at most {MAX_MEMBERS}")
    roles: list[Role] = []
    for n, amounts in enumerate(bundles):
        bundle = _member(amounts, f"spec.bundles[{n}]")
        if not bundle:
            raise SpecError(f"spec.bundles[{n}]", "a member needs something")
        if roles and roles[-1].bundle == bundle:
            count = roles[-1].min_count + 1
            roles[-1] = Role(roles[-1].name, bundle, count, count)
        else:
            roles.append(Role(f"bundle-{n}", bundle, 1, 1))
    return roles


def _member(amounts: Mapping[str, float], field: str) -> Resources:
    """What one member holds: above one, GPUs are whole, because a fraction lies on one device."""
    bundle = resources(amounts, field)
    check_member_devices(bundle, field)
    return bundle


def _check_sees_gpus(bundle: Resources, field: str) -> None:
    """Whoever asks Ray for num_gpus with a number of his own can't have what the seat alone decides."""
    if device_need(bundle).shares:
        name = GPU_DEVICES if bundle.units(GPU_DEVICES) else GPU_MEMORY
        raise SpecError(f"{field}.{name}", "is for the members of a gang; here ask for GPUs or MIG instances")


def _check_gpus(units: int, field: str) -> None:
    if units > UNIT and units % UNIT:
        raise SpecError(field, f"must be whole above one GPU, got {units / UNIT:g}")


def _role(name: str, bundle: Resources, least: int, most: int, field: str) -> Role:
    if not bundle:
        raise SpecError(f"{field}.resources", "a member needs something")
    for resource, units in bundle:
        if units * most > MAX_UNITS:
            raise SpecError(f"{field}.resources.{resource}", f"{most} members overflow")
    return Role(name, bundle, least, most)


_RAY_NAMES = {"workingDir": "working_dir", "envVars": "env_vars", "pyModules": "py_modules"}


def _runtime_env(given: Mapping[str, object], env: Mapping[str, str]) -> dict[str, Json]:
    """In Ray's spelling, the plain environment merged in."""
    result: dict[str, Json] = {}
    for name, value in given.items():
        ray_name = _RAY_NAMES.get(name, name)
        if ray_name in result:
            raise SpecError(f"spec.runtimeEnv.{name}", "is given twice")
        result[ray_name] = _json(value, f"spec.runtimeEnv.{name}")
    variables = result.get("env_vars", {})
    if not isinstance(variables, dict) or not all(isinstance(v, str) for v in variables.values()):
        raise SpecError("spec.runtimeEnv.envVars", "must map names to text")
    for path, names in (("spec.runtimeEnv.envVars", variables), ("spec.env", env)):
        if wrong := [name for name in names if not name or "=" in name]:
            raise SpecError(path, f"{wrong[0]!r} is no name of an environment variable")
    if variables or env:
        result["env_vars"] = {**variables, **env}
    return result


def _json(value: object, field: str) -> Json:
    """The value, which has to travel as JSON: YAML can say .nan and .inf, JSON can't."""
    if isinstance(value, float) and not math.isfinite(value):
        raise SpecError(field, f"must be finite, got {value!r}")
    if isinstance(value, list):
        for n, item in enumerate(value):
            _json(item, f"{field}[{n}]")
    if isinstance(value, dict):
        for name, item in value.items():
            _json(item, f"{field}.{name}")
    return cast(Json, value)


# ---------------------------------------------------------------- ServeApp


class Replicas(Model):
    """`min` of them are the gang; the others come and go with demand. `gpus_per` and `resources` are of each."""

    min: Annotated[int, Field(ge=1, le=100_000)] = 1
    max: Annotated[int, Field(ge=1, le=100_000)] = 1
    gpus_per: Annotated[float, Field(ge=0)] = 0.0
    resources: Amounts = Field(default_factory=lambda: {CPU: 1.0})
    countables: Countables = Field(default_factory=dict)


class ServeBody(Model):
    """`import_path` names a Serve application or a builder of one, which gets `args`.

    `accelerators`: as of a Workload; all replicas are of one model.
    """

    import_path: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")]
    args: Mapping[str, object] = Field(default_factory=dict)
    deployment: str = ""
    route_prefix: Annotated[str, Field(pattern=r"^/")] = "/"
    runtime_env: Mapping[str, object] = Field(default_factory=dict)
    env: Mapping[str, str] = Field(default_factory=dict)
    replicas: Replicas = Replicas()
    topology: Topology = Topology()
    accelerators: Accelerators = ()
    any_model: bool = False
    priority: Priority = 0
    preemption: Preemption = Preemption(allowed=False)


class ServeAppDocument(Model):
    """A Ray Serve application as a workload."""

    api_version: Version
    kind: Literal["ServeApp"]
    metadata: WorkloadMetadata
    spec: ServeBody

    def to_core(self, owner: str = "") -> WorkloadSpec:
        """In core's words; SpecError for what can't be right on any cluster."""
        body, replicas = self.spec, self.spec.replicas
        check_accelerators(body.accelerators, "spec.accelerators")
        if replicas.min > replicas.max:
            raise SpecError("spec.replicas.min", f"{replicas.min} is above max {replicas.max}")
        bundle = _member(replicas.resources, "spec.replicas.resources")
        _check_sees_gpus(bundle, "spec.replicas.resources")
        if replicas.gpus_per and bundle.gpu_units:
            raise SpecError("spec.replicas.gpusPer", "and resources.GPU say the same twice")
        gpus = Resources.of({"gpusPer": replicas.gpus_per}, "spec.replicas")  # checked under its own name
        _check_gpus(gpus.units("gpusPer"), "spec.replicas.gpusPer")
        bundle = bundle + Resources.of_units({GPU: gpus.units("gpusPer")})
        role = _role(REPLICA, bundle, replicas.min, replicas.max, "spec.replicas")
        payload = Payload(
            runtime_env=_runtime_env(body.runtime_env, body.env),
            metadata=dict(self.metadata.annotations),
            import_path=body.import_path,
            args={name: _json(value, f"spec.args.{name}") for name, value in body.args.items()},
            app_name=self.metadata.name,
            route_prefix=body.route_prefix,
            deployment=body.deployment,
        )
        return WorkloadSpec(
            id=WorkloadId(self.metadata.id or self.metadata.name),
            name=self.metadata.name,
            kind=Kind.SERVE,
            queue=QueueId(self.metadata.queue),
            roles=(replace(role, countables=resources(replicas.countables, "spec.replicas.countables")),),
            priority=body.priority,
            preemptible=body.preemption.allowed,
            resizable=replicas.max > replicas.min,
            topology=body.topology.to_core(),
            accelerators=body.accelerators,
            any_model=body.any_model,
            grace_s=body.preemption.grace,
            min_runtime_s=body.preemption.min_runtime,
            preemption_delay_s=body.preemption.delay,
            stale_grace_s=body.preemption.stale_grace,
            owner=owner,
            payload=payload.to_text(),
        )
