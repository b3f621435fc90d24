"""Ray's job submission request as a workload, and a workload as Ray's job details."""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Mapping

from rayorch.config import WorkloadDocument, load_json, parse_document
from rayorch.core.errors import SpecError
from rayorch.core.payload import Json, Payload
from rayorch.core.types import State, Workload, WorkloadSpec
from rayorch.serve_apps.gateway.refusals import Refusal

QUEUE_HEADER = "x-rayorch-queue"
PREFIX = "rayorch."
QUEUE_LABEL = "rayorch.io/queue"
"""As Kubernetes writes it; taken in metadata too."""

_REQUEST_TYPES: Mapping[str, tuple[type, ...]] = {
    "entrypoint": (str,),
    "submission_id": (str,),
    "job_id": (str,),
    "runtime_env": (dict,),
    "metadata": (dict,),
    "entrypoint_num_cpus": (int, float),
    "entrypoint_num_gpus": (int, float),
    "entrypoint_memory": (int,),
    "entrypoint_resources": (dict,),
    "entrypoint_label_selector": (dict,),
}
_METADATA_KEYS = frozenset(
    PREFIX + name
    for name in (
        *("queue", "workers", "gpus", "cpus", "resources", "kind", "name", "priority"),
        *("preemptible", "grace", "min_runtime", "retries", "require", "prefer", "resizable", "accelerators"),
    )
)

_RAYS_FIELDS = (
    *(("metadata.id", "submission_id"), ("metadata.name", "submission_id"), ("metadata.annotations", "metadata")),
    *(("metadata.queue", "metadata.rayorch.queue"), ("spec.entrypoint", "entrypoint")),
    *(("spec.runtimeEnv.workingDir", "runtime_env.working_dir"), ("spec.runtimeEnv.envVars", "runtime_env.env_vars")),
    *(("spec.runtimeEnv.pyModules", "runtime_env.py_modules"), ("spec.runtimeEnv", "runtime_env")),
    *(("spec.driver.CPU", "entrypoint_num_cpus"), ("spec.driver.GPU", "entrypoint_num_gpus")),
    *(("spec.driver.memory", "entrypoint_memory"), ("spec.driver", "entrypoint_resources")),
    *(("spec.gang.resources.GPU", "metadata.rayorch.gpus"), ("spec.gang.resources.CPU", "metadata.rayorch.cpus")),
    *(("spec.gang.resources", "metadata.rayorch.resources"), ("spec.gang.workers", "metadata.rayorch.workers")),
    *(("spec.preemption.grace", "metadata.rayorch.grace"), ("spec.priority", "metadata.rayorch.priority")),
    *(("spec.preemption.minRuntime", "metadata.rayorch.min_runtime"), ("spec.retry.max", "metadata.rayorch.retries")),
    ("spec.accelerators", "metadata.rayorch.accelerators"),
    *(("spec.topology", "metadata.rayorch"), ("spec.kind", "metadata.rayorch.kind")),
)
"""(field of the document, field of Ray's request that it came from), the longer paths first."""

JOB_STATUS = {
    State.PENDING: "PENDING",
    State.RUNNING: "RUNNING",
    State.STOPPING: "RUNNING",
    State.SUCCEEDED: "SUCCEEDED",
    State.FAILED: "FAILED",
    State.CANCELLED: "STOPPED",
}
"""Ray's word for each of our states."""


def workload_of_request(body: bytes, queue_header: str | None, default_queue: str, owner: str) -> WorkloadSpec:
    """What `ray job submit` asks for, as a workload.

    The gang comes from metadata: `rayorch.workers` ("2" or "2:4"), `rayorch.gpus` and `rayorch.cpus` of each.
    Without workers the driver itself gets what `entrypoint_num_gpus` and its like say. The queue is the
    metadata's, else the address's (`rayorch://<queue>`), else the default. SpecError names Ray's field.
    """
    request = load_json(body)
    if not isinstance(request, dict):
        raise SpecError("", "must be a JSON object")
    for name, value in request.items():
        if name not in _REQUEST_TYPES:
            raise SpecError(name, "is unknown to Ray's Jobs API")
        if value is not None and (isinstance(value, bool) or not isinstance(value, _REQUEST_TYPES[name])):
            raise SpecError(name, f"must be of type {_REQUEST_TYPES[name][-1].__name__}")
    if not request.get("entrypoint"):
        raise SpecError("entrypoint", "is needed")
    if request.get("entrypoint_label_selector"):
        raise SpecError(
            "entrypoint_label_selector", "can't be honoured; use rayorch.accelerators or rayorch.require in metadata"
        )
    metadata = _metadata(request.get("metadata") or {})
    identity = request.get("submission_id") or request.get("job_id") or f"raysubmit_{secrets.token_hex(8)}"
    options = {k.removeprefix(PREFIX): v for k, v in metadata.items() if k.startswith(PREFIX)}
    document: dict[str, object] = {
        "apiVersion": "rayorch/v1",
        "kind": "Workload",
        "metadata": {
            "name": options.get("name") or identity,
            "id": identity,
            "queue": options.get("queue") or metadata.get(QUEUE_LABEL) or queue_header or default_queue,
            "annotations": metadata,
        },
        "spec": _spec(request, options),
    }
    try:
        parsed = parse_document(document)
        assert isinstance(parsed, WorkloadDocument)
        return with_packages_only(parsed.to_core(owner))
    except SpecError as error:
        raise SpecError(rays_field(error.field), error.message) from error


def rays_field(field: str) -> str:
    """Where a field of the document was given in Ray's request; unchanged where Ray has none."""
    for prefix, rays in _RAYS_FIELDS:
        if field == prefix or (field.startswith(prefix) and (prefix[-1] == "." or field[len(prefix)] in ".[")):
            return rays + field[len(prefix) :]
    return field


def with_packages_only(spec: WorkloadSpec) -> WorkloadSpec:
    """The spec, unless it names a folder of the client's machine, which nobody here could read: SpecError."""
    environment = Payload.of_text(spec.payload).runtime_env
    named = [("workingDir", environment.get("working_dir"))]
    modules = environment.get("py_modules")
    named += [("pyModules", module) for module in modules] if isinstance(modules, list) else []
    for field, value in named:
        if value is not None and not (isinstance(value, str) and "://" in value):
            raise SpecError(f"spec.runtimeEnv.{field}", f"must be the URI of an uploaded package, got {value!r}")
    return spec


def _metadata(given: Json) -> dict[str, str]:
    assert isinstance(given, dict)
    result: dict[str, str] = {}
    for key, value in given.items():
        if not isinstance(value, str):
            raise SpecError(f"metadata.{key}", "must be text")
        if key.startswith(PREFIX) and key not in _METADATA_KEYS and key != QUEUE_LABEL:
            raise SpecError(f"metadata.{key}", f"is unknown; there are {', '.join(sorted(_METADATA_KEYS))}")
        result[key] = value
    return result


def _spec(request: Mapping[str, Json], options: Mapping[str, str]) -> dict[str, object]:
    driver: dict[str, object] = {"CPU": request.get("entrypoint_num_cpus") or 1}
    for name, resource in (("entrypoint_num_gpus", "GPU"), ("entrypoint_memory", "memory")):
        if request.get(name):
            driver[resource] = request[name]
    extra = request.get("entrypoint_resources") or {}
    assert isinstance(extra, dict)
    for resource, amount in extra.items():
        if resource in driver:
            raise SpecError(f"entrypoint_resources.{resource}", "is said by another field too")
        driver[resource] = amount
    spec: dict[str, object] = {
        "kind": options.get("kind", "job"),
        "entrypoint": request["entrypoint"],
        "driver": driver,
        "runtimeEnv": request.get("runtime_env") or {},
        "priority": _number(options, "priority", 0),
        "retry": {"max": _number(options, "retries", 0)},
        "resizable": _flag(options, "resizable", True),
        "topology": {level: options[level] for level in ("require", "prefer") if level in options},
        "accelerators": options["accelerators"].replace(" ", "").split(",") if "accelerators" in options else [],
        "preemption": {
            "allowed": _flag(options, "preemptible", True),
            "grace": options.get("grace", "30s"),
            "minRuntime": options.get("min_runtime", "0s"),
        },
    }
    gang = _gang(options)
    if gang is not None:
        spec["gang"] = gang
    return spec


def _gang(options: Mapping[str, str]) -> dict[str, object] | None:
    if "workers" not in options:
        for name in ("gpus", "cpus", "resources"):
            if name in options:
                raise SpecError(f"metadata.{PREFIX}{name}", f"is of each worker; {PREFIX}workers is missing")
        return None
    least, colon, most = options["workers"].partition(":")
    try:
        workers = [_whole(least), _whole(most if colon else least)]
    except ValueError as error:
        raise SpecError(f"metadata.{PREFIX}workers", f'must be "2" or "2:4", got {options["workers"]!r}') from error
    bundle: dict[str, object] = {"CPU": _amount(options, "cpus", 1.0)}
    if "gpus" in options:
        bundle["GPU"] = _amount(options, "gpus", 0.0)
    if "resources" in options:
        try:
            more = load_json(options["resources"])
        except SpecError as error:
            raise SpecError(f"metadata.{PREFIX}resources", str(error)) from error
        if not isinstance(more, dict):
            raise SpecError(f"metadata.{PREFIX}resources", "must be a JSON object")
        bundle |= more
    return {"workers": workers, "resources": bundle}


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    try:
        return _whole(options[name]) if name in options else default
    except ValueError as error:
        raise SpecError(f"metadata.{PREFIX}{name}", f"must be a whole number, got {options[name]!r}") from error


def _whole(text: str) -> int:
    """The number; ValueError for what only Python reads as one ("1_0", " 1")."""
    if not re.fullmatch(r"-?[0-9]{1,30}", text):
        raise ValueError(text)
    return int(text)


def _amount(options: Mapping[str, str], name: str, default: float) -> float:
    try:
        amount = float(options.get(name, default))
    except ValueError as error:
        raise SpecError(f"metadata.{PREFIX}{name}", f"must be a number, got {options[name]!r}") from error
    if not math.isfinite(amount):
        raise SpecError(f"metadata.{PREFIX}{name}", f"must be finite, got {options[name]!r}")
    return amount


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    value = options.get(name)
    if value is None:
        return default
    if value not in ("true", "false"):
        raise SpecError(f"metadata.{PREFIX}{name}", f'must be "true" or "false", got {value!r}')
    return value == "true"


def job_details(workload: Workload, message: str = "") -> dict[str, Json]:
    """As Ray's JobDetails; times are milliseconds, the start is our submission until an attempt runs."""
    payload = Payload.of_text(workload.spec.payload)
    started_s = workload.started_s if workload.started_s is not None else workload.submitted_s
    return {
        "type": "SUBMISSION",
        "job_id": None,
        "submission_id": workload.id,
        "driver_info": None,
        "status": JOB_STATUS[workload.state],
        "entrypoint": payload.entrypoint or payload.import_path or workload.spec.kind.value,
        "message": message or _message(workload),
        "error_type": "JOB_ENTRYPOINT_COMMAND_ERROR" if workload.state is State.FAILED else None,
        "start_time": int(started_s * 1000),
        "end_time": None if workload.ended_s is None else int(workload.ended_s * 1000),
        "metadata": dict(payload.metadata),
        "runtime_env": json.loads(json.dumps(payload.runtime_env)),
        "driver_agent_http_address": None,
        "driver_node_id": None,
        "driver_exit_code": workload.exit_code,
    }


def refused_details(refusal: Refusal) -> dict[str, Json]:
    """As Ray's JobDetails of a job that failed before it started."""
    at_ms = int(refusal.at_s * 1000)
    return {
        "type": "SUBMISSION",
        "job_id": None,
        "submission_id": refusal.id,
        "driver_info": None,
        "status": "FAILED",
        "entrypoint": refusal.entrypoint,
        "message": f"Refused: {refusal.reason}",
        "error_type": "JOB_SUPERVISOR_ACTOR_START_FAILURE",
        "start_time": at_ms,
        "end_time": at_ms,
        "metadata": {},
        "runtime_env": {},
        "driver_agent_http_address": None,
        "driver_node_id": None,
        "driver_exit_code": None,
    }


def asked_for(body: bytes) -> tuple[str, str]:
    """(submission id, entrypoint) of a request that may be anything; empty where it does not say."""
    try:
        request = load_json(body)
    except SpecError:
        return "", ""
    if not isinstance(request, dict):
        return "", ""
    identity, entrypoint = request.get("submission_id"), request.get("entrypoint")
    return identity if isinstance(identity, str) else "", entrypoint if isinstance(entrypoint, str) else ""


def _message(workload: Workload) -> str:
    if workload.state is State.PENDING:
        return f"In queue {workload.spec.queue}. {workload.reason}".strip()
    if workload.state is State.STOPPING and workload.stop is not None:
        return f"Stopping: {workload.stop.reason}"
    words = {State.RUNNING: "is running", State.SUCCEEDED: "finished", State.CANCELLED: "was stopped"}
    return workload.reason or f"Job {words.get(workload.state, 'failed')}."
