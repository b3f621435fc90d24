"""What is wrong with manifests, said before they are applied: KubeRay's own rules, which its operator tells only in its
log, and what rayorch needs to work on that cluster.

Other objects than ours are let be. Nothing is looked up in a cluster.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rayorch.config.fields import Model, validate
from rayorch.config.kuberay import names
from rayorch.config.kuberay.documents import Manifest, name_of
from rayorch.config.kuberay.values import DRAIN_S, MAX_CLUSTER_NAME, MAX_JOB_NAME
from rayorch.core.errors import SpecError
from rayorch.core.payload import Json

_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?\Z")
_RAY_API = "ray.io/v1"
_LIMITS = {"RayCluster": MAX_CLUSTER_NAME, "RayJob": MAX_JOB_NAME, "RayService": MAX_JOB_NAME}
_SPEC_FIELD = {"RayCluster": "spec", "RayJob": "spec.rayClusterSpec", "RayService": "spec.rayClusterConfig"}
MIN_AUTH_VERSION = (2, 52, 0)


class Level(StrEnum):
    """How bad it is."""

    ERROR = "error"  # it will not work
    WARNING = "warning"  # it works, but not as rayorch means it


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: in which object, in which field."""

    level: Level
    where: str
    field: str
    message: str


class GroupHint(Model):
    """One group's part of the annotation; with a wrong one rayorch takes all capacity for unknown."""

    spares: Annotated[int, Field(ge=0)] = 0
    idle_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    preference: int | None = None


Rule = Callable[[str, Mapping[str, Json]], Iterator[Finding]]


def check_manifests(documents: Sequence[Manifest]) -> tuple[Finding, ...]:
    """All findings, in the order of the objects."""
    found: list[Finding] = []
    for document in documents:
        if document.get("apiVersion") != _RAY_API or document.get("kind") not in _LIMITS:
            continue
        kind = str(document["kind"])
        where = f"{kind} {name_of(document)}"
        found += _names(where, kind, name_of(document))
        spec = _mapping(document, *_SPEC_FIELD[kind].split("."))
        if spec:
            for rule in (*_KUBERAY_RULES, *(_OUR_RULES if kind == "RayCluster" else ())):
                found += [_below(f, _SPEC_FIELD[kind]) for f in rule(where, spec)]
        if kind == "RayCluster":
            found += _annotation(where, document)
        if kind == "RayJob":
            found += _job(where, _mapping(document, "spec"))
    found += _references(documents)
    return tuple(found)


def _below(finding: Finding, prefix: str) -> Finding:
    return Finding(finding.level, finding.where, f"{prefix}.{finding.field}", finding.message)


def _mapping(value: Json, *path: str) -> Mapping[str, Json]:
    """What lies at that path, empty where there is nothing or something else."""
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _items(value: Mapping[str, Json], key: str) -> list[Mapping[str, Json]]:
    found = value.get(key)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _containers(spec: Mapping[str, Json]) -> list[Mapping[str, Json]]:
    return _items(_mapping(dict(spec), "template", "spec"), "containers")


def _groups(spec: Mapping[str, Json]) -> Iterator[tuple[str, Mapping[str, Json]]]:
    yield "headGroupSpec", _mapping(dict(spec), "headGroupSpec")
    for number, group in enumerate(_items(spec, "workerGroupSpecs")):
        yield f"workerGroupSpecs[{number}]", group


def _number(value: Json, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


# ---------------------------------------------------------------- KubeRay's rules


def _names(where: str, kind: str, name: str) -> Iterator[Finding]:
    if not _LABEL.match(name):
        yield Finding(Level.ERROR, where, "metadata.name", "must be a DNS label that begins with a letter")
    elif len(name) > _LIMITS[kind]:
        yield Finding(
            Level.ERROR, where, "metadata.name", f"has {len(name)} characters; KubeRay takes at most {_LIMITS[kind]}"
        )


def _said_twice(where: str, spec: Mapping[str, Json]) -> Iterator[Finding]:
    """KubeRay takes amounts from `resources` or from rayStartParams, and labels from `labels` only."""
    amounts = ("num-cpus", "num-gpus", "memory", "resources")
    for field, group in _groups(spec):
        params = _mapping(dict(group), "rayStartParams")
        if not _containers(group):
            yield Finding(Level.ERROR, where, f"{field}.template.spec.containers", "there is none")
        if group.get("resources") and any(params.get(name) for name in amounts):
            yield Finding(Level.ERROR, where, f"{field}.resources", "and rayStartParams name resources: use only one")
        if "labels" in params:
            yield Finding(
                Level.ERROR, where, f"{field}.rayStartParams.labels", "is not supported; use the field labels"
            )


def _counts(where: str, spec: Mapping[str, Json]) -> Iterator[Finding]:
    """The CRD itself takes a negative count and a minimum above the maximum."""
    seen: set[str] = set()
    for number, group in enumerate(_items(spec, "workerGroupSpecs")):
        field = f"workerGroupSpecs[{number}]"
        low, high = _number(group.get("minReplicas"), 0), _number(group.get("maxReplicas"), 2**31 - 1)
        wanted, name = _number(group.get("replicas"), low), str(group.get("groupName", ""))
        for key, count in (("minReplicas", low), ("maxReplicas", high), ("replicas", wanted)):
            if count < 0:
                yield Finding(Level.ERROR, where, f"{field}.{key}", f"is negative: {count}")
        if low > high:
            yield Finding(Level.ERROR, where, f"{field}.minReplicas", f"{low} is above maxReplicas {high}")
        elif wanted >= 0 and not low <= wanted <= high:
            yield Finding(Level.ERROR, where, f"{field}.replicas", f"{wanted} is not within {low} and {high}")
        if name in seen:
            yield Finding(Level.ERROR, where, f"{field}.groupName", f"{name} is given twice")
        seen.add(name)


def _autoscaling(where: str, spec: Mapping[str, Json]) -> Iterator[Finding]:
    in_tree = spec.get("enableInTreeAutoscaling") is True
    if not in_tree:
        return
    if _mapping(dict(spec), "autoscalerOptions").get("version") != "v2":
        message = "must be v2: the older one knows neither gangs nor labels"
        yield Finding(Level.WARNING, where, "autoscalerOptions.version", message)
        return
    for field, group in _groups(spec):
        policy = _mapping(dict(group), "template", "spec").get("restartPolicy")
        if policy not in (None, "", "Never"):
            yield Finding(
                Level.ERROR, where, f"{field}.template.spec.restartPolicy", "must be Never with autoscaler v2"
            )


def _fault_tolerance(where: str, spec: Mapping[str, Json]) -> Iterator[Finding]:
    head = _mapping(dict(spec), "headGroupSpec")
    env = {str(e.get("name")) for c in _containers(head)[:1] for e in _items(c, "env")}
    given = bool(_mapping(dict(spec), "gcsFaultToleranceOptions"))
    if "RAY_REDIS_ADDRESS" in env:
        message = "is said by gcsFaultToleranceOptions" if given else "needs gcsFaultToleranceOptions"
        yield Finding(
            Level.ERROR, where, "headGroupSpec.template.spec.containers[0].env", f"RAY_REDIS_ADDRESS {message}"
        )
    if not given:
        message = "is missing: when the head's pod goes, Ray ends every worker, and all running gangs with them"
        yield Finding(Level.WARNING, where, "gcsFaultToleranceOptions", message)


def _tokens(where: str, spec: Mapping[str, Json]) -> Iterator[Finding]:
    if _mapping(dict(spec), "authOptions").get("mode") != "token":
        message = "is not token: whoever reaches a port of the cluster may run anything on it"
        yield Finding(Level.WARNING, where, "authOptions.mode", message)
        return
    version = re.match(r"(\d+)\.(\d+)\.(\d+)", str(spec.get("rayVersion", "")))
    if version is None or tuple(int(part) for part in version.groups()) < MIN_AUTH_VERSION:
        yield Finding(Level.ERROR, where, "rayVersion", "tokens need Ray 2.52 or later, and it must be said here")


_KUBERAY_RULES: tuple[Rule, ...] = (_said_twice, _counts, _autoscaling, _fault_tolerance, _tokens)


# ---------------------------------------------------------------- ours


def _head_is_ours(where: str, spec: Mapping[str, Json]) -> Iterator[Finding]:
    """The head runs the owners and their journal, and jobs that KubeRay sends come to the gateway."""
    head = _mapping(dict(spec), "headGroupSpec")
    field = "headGroupSpec.template.spec"
    containers = _containers(head)
    server = next((c for c in containers if "rayorch.server" in json.dumps([c.get("command"), c.get("args")])), None)
    if server is None:
        yield Finding(Level.ERROR, where, f"{field}.containers", "none of them runs rayorch.server")
        return
    if server is not containers[0] and not _mapping(dict(head), "template", "spec").get("shareProcessNamespace"):
        message = "must be true: Ray finds a driver's node by looking through the processes"
        yield Finding(Level.ERROR, where, f"{field}.shareProcessNamespace", message)
    port = re.search(r"--port[ ,\"=]+(\d+)", json.dumps(server.get("args")))
    door = next((p for p in _items(containers[0], "ports") if p.get("name") == names.DASHBOARD_PORT_NAME), {})
    if port is None or door.get("containerPort") != int(port.group(1)):
        message = "the port named dashboard is not rayorch's: a RayJob would go to Ray's own dashboard, past the queues"
        yield Finding(Level.ERROR, where, f"{field}.containers[0].ports", message)
    if _mapping(dict(head), "rayStartParams").get("num-cpus") != "0":
        message = 'is not "0": work of others would run beside the owners'
        yield Finding(Level.WARNING, where, "headGroupSpec.rayStartParams.num-cpus", message)
    volumes = {str(v.get("name")) for v in _items(_mapping(dict(head), "template", "spec"), "volumes")}
    homes = [m for m in _items(containers[0], "volumeMounts") if m.get("mountPath") == names.HOME]
    if not homes or str(homes[0].get("name")) not in volumes:
        message = f"nothing is mounted at {names.HOME}: the journal would be lost with the pod"
        yield Finding(Level.ERROR, where, f"{field}.containers[0].volumeMounts", message)


def _one_image(where: str, spec: Mapping[str, Json]) -> Iterator[Finding]:
    """Head and workers exchange pickled values of Ray and of rayorch."""
    images = [(field, str(c.get("image"))) for field, g in _groups(spec) for c in _containers(g)[:1]]
    for field, image in images[1:]:
        if image != images[0][1]:
            message = f"{image} is not the head's: Ray and rayorch must be the same everywhere"
            yield Finding(Level.WARNING, where, f"{field}.template.spec.containers[0].image", message)


def _time_to_leave(where: str, spec: Mapping[str, Json]) -> Iterator[Finding]:
    """SIGTERM starts Ray's drain; a pod that is killed before its end takes the checkpoint with it."""
    for number, group in enumerate(_items(spec, "workerGroupSpecs")):
        pod = _mapping(dict(group), "template", "spec")
        grace = _number(pod.get("terminationGracePeriodSeconds"), 30)
        env = {str(e.get("name")): e.get("value") for c in _containers(group)[:1] for e in _items(c, "env")}
        told = str(env.get("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S") or DRAIN_S)
        drain = int(told) if told.isdigit() else DRAIN_S
        if grace <= drain:
            field = f"workerGroupSpecs[{number}].template.spec.terminationGracePeriodSeconds"
            yield Finding(Level.WARNING, where, field, f"{grace} is not above the {drain} s that Ray drains a node")


_OUR_RULES: tuple[Rule, ...] = (_head_is_ours, _one_image, _time_to_leave)


def _annotation(where: str, document: Manifest) -> Iterator[Finding]:
    """rayorch.io/groups must be JSON about groups that exist."""
    text = _mapping(document, "metadata", "annotations").get(names.GROUPS_ANNOTATION)
    if text is None:
        return
    field = f"metadata.annotations.{names.GROUPS_ANNOTATION}"
    try:
        told = json.loads(str(text))
    except (ValueError, RecursionError) as error:
        yield Finding(Level.ERROR, where, field, f"is not JSON: {error}")
        return
    if not isinstance(told, dict):
        yield Finding(Level.ERROR, where, field, "must be a mapping by group")
        return
    known = {str(g.get("groupName")) for g in _items(_mapping(document, "spec"), "workerGroupSpecs")}
    for name, said in sorted(told.items()):
        if name not in known:
            yield Finding(Level.ERROR, where, field, f"there is no group {name[:80]}")
        try:
            validate(GroupHint, said)
        except SpecError as error:
            yield Finding(Level.ERROR, where, field, f"{name[:80]}: {error}")


def _job(where: str, spec: Mapping[str, Json]) -> Iterator[Finding]:
    """A RayJob enters a queue only where it is sent to a cluster whose dashboard port is the gateway's."""
    metadata = _mapping(dict(spec), "metadata")
    if not _mapping(dict(spec), "clusterSelector").get(names.CLUSTER_LABEL):
        message = f"names no {names.CLUSTER_LABEL}: the job would make a cluster of its own, without queues"
        yield Finding(Level.WARNING, where, "spec.clusterSelector", message)
    if spec.get("submissionMode") == "SidecarMode":
        yield Finding(Level.ERROR, where, "spec.submissionMode", "SidecarMode does not go with clusterSelector")
    if "rayorch.queue" not in metadata:
        message = "has no rayorch.queue: the job goes to the queue default"
        yield Finding(Level.WARNING, where, "spec.metadata", message)


def _references(documents: Sequence[Manifest]) -> Iterator[Finding]:
    """Volumes and accounts that are named here and rendered here must be the same. Secrets are made apart."""
    have = {(str(d.get("kind")), name_of(d)) for d in documents}
    if not any(kind in ("PersistentVolumeClaim", "ConfigMap", "ServiceAccount") for kind, _ in have):
        return
    for document in documents:
        if document.get("kind") != "RayCluster":
            continue
        where, pod = f"RayCluster {name_of(document)}", _mapping(document, "spec", "headGroupSpec", "template", "spec")
        wanted = [("ServiceAccount", str(pod["serviceAccountName"]))] if "serviceAccountName" in pod else []
        for volume in _items(pod, "volumes"):
            claim, config = _mapping(dict(volume), "persistentVolumeClaim"), _mapping(dict(volume), "configMap")
            wanted += [("PersistentVolumeClaim", str(claim["claimName"]))] if claim else []
            wanted += [("ConfigMap", str(config.get("name")))] if config else []
        for kind, name in wanted:
            if (kind, name) not in have:
                yield Finding(Level.ERROR, where, "spec.headGroupSpec", f"refers to {kind} {name}, which is not here")
