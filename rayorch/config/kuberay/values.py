"""What a person says about the cluster to be rendered; everything else follows from it.

Names and sizes are held to what Kubernetes and KubeRay's operator accept, so that what is refused is refused here, with
the field named, and not in an operator's log after `kubectl apply`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from rayorch.config.fields import Duration, Items, Model, QueuePath, validate
from rayorch.config.kuberay import names
from rayorch.config.text import load_yaml
from rayorch.core.errors import SpecError
from rayorch.core.types import MODEL_LABEL

MAX_CLUSTER_NAME = 53
"""KubeRay's: the longest name of a service made from it must stay within 63."""
MAX_JOB_NAME = 47
"""KubeRay's for RayJob and RayService: it appends six characters for the cluster's name."""
MAX_GROUP_NAME = 40
"""Ours: KubeRay makes pod names of cluster, group and a suffix, and shortens the cluster's part first."""
MAX_GROUPS = 100
MAX_REPLICAS = 10_000
MAX_GPUS = 64
OUTAGE_S = 120.0
"""A head's pod is usually replaced within this time: where Redis keeps Ray's state, gangs with a lease as long outlive
it. The price: a gang that lost a node, or contact, begins again only after its lease."""
MIN_LEASE_S = 5.0
SAID_LABELS = frozenset({names.GROUP_LABEL, names.RAY_GROUP_LABEL, names.MARKET_LABEL, MODEL_LABEL})
"""Labels of a group that follow from its name, model and spot."""
DRAIN_S = 30
"""Ray drains a node for so long after SIGTERM (`RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S`)."""

_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?\Z")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?\Z")
_CORES = re.compile(r"[0-9]{1,12}(\.[0-9]{1,3}|m)?\Z")
_BYTES = re.compile(r"[0-9]{1,12}(\.[0-9]{1,3})?(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?\Z")
_IMAGE = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.:/@+]{0,400}\Z")
_REDIS = re.compile(r"(rediss?://)?[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?(:[0-9]{1,5})?\Z")
_VERSION = re.compile(r"2\.[0-9]{1,3}\.[0-9]{1,3}\Z")
_GROUP = re.compile(
    r"(?P<name>[^=]+)=(?:(?P<gpus>[0-9]+)x(?P<model>[A-Za-z0-9._-]+)|(?P<cpus>[0-9]+)cpu)"
    r":(?P<min>[0-9]+)-(?P<max>[0-9]+)(?P<spot>:spot)?\Z"
)


def _name(limit: int) -> AfterValidator:
    def check(value: str) -> str:
        if not _LABEL.match(value):
            raise ValueError("must be lower-case letters, digits and '-', beginning with a letter (a DNS label)")
        if len(value) > limit:
            raise ValueError(f"has {len(value)} characters, at most {limit}")
        return value

    return AfterValidator(check)


def _matching(pattern: re.Pattern[str], what: str, limit: int = 253) -> AfterValidator:
    def check(value: str) -> str:
        if not pattern.match(value) or len(value) > limit:
            raise ValueError(f"must be {what}, got {value[:80]!r}")
        return value

    return AfterValidator(check)


def _amount(pattern: re.Pattern[str], like: str) -> BeforeValidator:
    """A positive Kubernetes quantity of that form; a whole number is allowed bare."""

    def check(value: object) -> object:
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str) or not pattern.match(value) or not any(c in "123456789" for c in value):
            raise ValueError(f"must be a positive amount such as {like}, got {value!r}")
        return value

    return BeforeValidator(check)


def _labels(given: Mapping[str, str]) -> Mapping[str, str]:
    for key, value in given.items():
        prefix, slash, name = key.rpartition("/")
        if not _LABEL_NAME.match(name) or (slash and (not _SUBDOMAIN.match(prefix) or len(prefix) > 253)):
            raise ValueError(f"{key!r} is not a label's name")
        if value and not _LABEL_NAME.match(value):
            raise ValueError(f"{key}: {value!r} is not a label's value")
    return given


def _label_key(value: str) -> str:
    _labels({value: ""})
    return value


ClusterName = Annotated[str, _name(MAX_CLUSTER_NAME)]
JobName = Annotated[str, _name(MAX_JOB_NAME)]
GroupName = Annotated[str, _name(MAX_GROUP_NAME)]
Namespace = Annotated[str, _name(63)]
ObjectName = Annotated[str, _matching(_SUBDOMAIN, "the name of an object (a DNS subdomain)")]
Cores = Annotated[str, _amount(_CORES, "8, 1.5 or 500m")]
Bytes = Annotated[str, _amount(_BYTES, "512Mi or 32Gi")]
Labels = Annotated[Mapping[str, str], AfterValidator(_labels)]
LabelKey = Annotated[str, AfterValidator(_label_key)]
Level = Annotated[str, _matching(_LABEL_NAME, "a topology level such as zone or rack", 63)]
Image = Annotated[str, _matching(_IMAGE, "an image reference", 400)]
Port = Annotated[int, Field(ge=1024, le=65535)]
Count = Annotated[int, Field(ge=0, le=MAX_REPLICAS)]


class Mode(StrEnum):
    """Who changes replica counts."""

    OURS = "ours"  # rayorch, by whole gangs; KubeRay's autoscaler is off
    RAY = "ray"  # Ray's autoscaler in the head's pod; rayorch only states its demand


class TolerationValues(Model):
    """Of a pod, as Kubernetes has it."""

    key: LabelKey
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class HeadValues(Model):
    """The head's pod. It offers Ray no CPUs and no GPUs: nobody's work runs beside the owners and their journal."""

    cpu: Cores = "4"
    memory: Bytes = "16Gi"
    server_cpu: Cores = "1"
    server_memory: Bytes = "2Gi"
    node_selector: Labels = Field(default_factory=dict)
    tolerations: Items[TolerationValues] = ()


class JournalValues(Model):
    """The volume that holds the journal, packages and logs; the class None is the cluster's default."""

    size: Bytes = "20Gi"
    storage_class: ObjectName | None = None


class RedisValues(Model):
    """Where Ray's control store lives. Without an `address` a small Redis is rendered along, with a volume.

    `password_secret` holds it under the key `password`.
    """

    enabled: bool = True
    address: Annotated[str, _matching(_REDIS, "as redis://host:6379, without a password")] | None = None
    image: Image = "redis:7.4"
    size: Bytes = "5Gi"
    password_secret: ObjectName | None = None


class AuthValues(Model):
    """Tokens. `ray_secret` has Ray's under `auth_token`, `gateway_secret` the gateway's under `token`."""

    ray_token: bool = True
    ray_secret: ObjectName | None = None
    gateway_secret: ObjectName | None = None


class GatewayValues(Model):
    """`port`: where rayorch listens in the head's pod; KubeRay's operator takes it for the dashboard.

    `serve`: start Ray Serve too, with its HTTP on port 8000 of the head, so that what ServeApp documents deploy can be
    reached from outside the pod.
    """

    port: Port = 8266
    serve: bool = True


class NetworkValues(Model):
    """Who may speak to the head: the operator of this namespace, and namespaces and pods with the label."""

    enabled: bool = True
    operator_namespace: Namespace = "kuberay-system"
    client_label: LabelKey = "rayorch.io/client"


class GroupValues(Model):
    """One worker group. `hosts` > 1: one replica is so many nodes that come and go together.

    `labels` are those of its Ray nodes (rack, zone). `exact_devices` gives each GPU a resource of its own, so that a
    gang gets the devices that were chosen. `spares`, `idle`, `preference`: see docs/kuberay.md.
    """

    name: GroupName
    model: str | None = None
    gpus: Annotated[int, Field(ge=0, le=MAX_GPUS)] = 0
    cpu: Cores = "8"
    memory: Bytes = "32Gi"
    shared_memory: Bytes | None = None
    min: Count = 0
    max: Count = 1
    replicas: Count | None = None
    hosts: Annotated[int, Field(ge=1, le=1024)] = 1
    spot: bool = False
    exact_devices: bool = True
    spares: Count = 0
    idle: Duration | None = None
    preference: Annotated[int, Field(ge=-1000, le=1000)] = 0
    grace: Duration = 120.0
    labels: Labels = Field(default_factory=dict)
    node_selector: Labels = Field(default_factory=dict)
    tolerations: Items[TolerationValues] = ()

    @property
    def wanted(self) -> int:
        """Replicas at first."""
        return self.min if self.replicas is None else self.replicas

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        if self.max < 1:
            raise ValueError("max must be at least 1")
        if not self.min <= self.wanted <= self.max:
            raise ValueError(f"replicas {self.wanted} is not within min {self.min} and max {self.max}")
        if self.spares > self.max:
            raise ValueError(f"spares {self.spares} is above max {self.max}")
        if self.gpus and not self.model:
            raise ValueError("model is needed where there are GPUs (the accelerator type, as H100)")
        if self.model is not None and (not self.gpus or not _LABEL_NAME.match(self.model)):
            raise ValueError("model must be the accelerator type of at least one GPU")
        if taken := sorted(SAID_LABELS & set(self.labels)):
            raise ValueError(f"labels: {', '.join(taken)} is said by name, model or spot")
        if self.grace <= DRAIN_S:
            raise ValueError(f"grace must be longer than the {DRAIN_S} s that Ray drains a node after SIGTERM")
        return self


ON_DEMAND = GroupValues(name="h100", model="H100", gpus=8, cpu="96", memory="1000Gi", max=16, spares=0)
SPOT = GroupValues(
    name="h100-spot",
    model="H100",
    gpus=8,
    cpu="96",
    memory="1000Gi",
    max=16,
    spot=True,
    preference=1,
    node_selector={"cloud.google.com/gke-spot": "true"},
    tolerations=(TolerationValues(key="cloud.google.com/gke-spot", effect="NoSchedule"),),
)
CPU_ONLY = GroupValues(name="cpu", cpu="16", memory="64Gi", min=1, max=8)
DEFAULT_GROUPS = (ON_DEMAND, SPOT, CPU_ONLY)


class KubeRayValues(Model):
    """All of it; only `cluster` has no default that would do.

    `image`: has Ray `ray_version` and rayorch, for head, workers and submitters alike. `levels`: topology levels from
    the outermost inwards; a group's nodes are in the domain that its label `rayorch.io/<level>` names.
    `lease`: how long an attempt lives without contact to the head; None: OUTAGE_S with Redis, else rayorch's default.
    `storage_path`: where training keeps its checkpoints, reachable from every node (s3://…, or a mounted folder).
    """

    cluster: ClusterName
    namespace: Namespace = "rayorch"
    image: Image = "registry.example/rayorch:0.1.0-ray2.60.0"
    image_pull_secret: ObjectName | None = None
    ray_version: Annotated[str, _matching(_VERSION, "a Ray release such as 2.60.0")] = "2.60.0"
    mode: Mode = Field(default=Mode.OURS, strict=False)
    queue: QueuePath = "research"
    storage_path: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    lease: Duration | None = None
    levels: Items[Level] = ("zone", "rack")
    head: HeadValues = HeadValues()
    journal: JournalValues = JournalValues()
    redis: RedisValues = RedisValues()
    auth: AuthValues = AuthValues()
    gateway: GatewayValues = GatewayValues()
    network: NetworkValues = NetworkValues()
    groups: Items[GroupValues] = DEFAULT_GROUPS

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        called = [group.name for group in self.groups]
        twice = sorted({name for name in called if called.count(name) > 1})
        if twice:
            raise ValueError(f"groups: {', '.join(twice)} is given twice")
        if not 1 <= len(called) <= MAX_GROUPS:
            raise ValueError(f"groups: between 1 and {MAX_GROUPS}, got {len(called)}")
        if "headgroup" in called:
            raise ValueError("groups: headgroup is KubeRay's name for the head")
        if self.mode is Mode.RAY and any(group.spares for group in self.groups):
            raise ValueError("groups: spares are kept by rayorch only, and in mode ray Ray's autoscaler decides")
        if self.lease is not None and self.lease < MIN_LEASE_S:
            raise ValueError(f"lease: at least {MIN_LEASE_S:g} s, got {self.lease:g}")
        if not self.redis.enabled and self.redis.address:
            raise ValueError("redis.address: is given, but redis is not enabled")
        if len(set(self.levels)) != len(self.levels) or "group" in self.levels:
            raise ValueError("levels: each once, and none may be named group: that label is each group's own")
        if self.gateway.port in names.RAY_PORTS:
            raise ValueError(f"gateway.port: {self.gateway.port} is one of Ray's own")
        return self

    @property
    def lease_s(self) -> float | None:
        """The lease to be written down, None for rayorch's own default."""
        return OUTAGE_S if self.lease is None and self.redis.enabled else self.lease

    def redis_off(self) -> RedisValues:
        """The same without Redis: a second cluster must not share the first one's store."""
        return self.redis.model_copy(update={"enabled": False, "address": None})


def load_values(text: str | bytes, source: str = "", overrides: Mapping[str, object] | None = None) -> KubeRayValues:
    """The values of one YAML document, with `overrides` (top-level fields) put over it; SpecError names the field."""
    documents = load_yaml(text, source) if text else ()
    if len(documents) > 1:
        raise SpecError("", f"{source or 'the values'} must be one document, got {len(documents)}")
    given = documents[0] if documents and documents[0] is not None else {}
    if not isinstance(given, dict):
        raise SpecError("", f"{source or 'the values'} must be a mapping")
    return validate(KubeRayValues, {**given, **(overrides or {})})


def group_from_text(text: str) -> dict[str, object]:
    """A group as the command line takes it: `h100=8xH100:0-16`, `h100-spot=8xH100:0-16:spot`, `cpu=16cpu:1-8`.

    SpecError for anything else. What it does not say is as in the group of the defaults with that name, if any.
    """
    found = _GROUP.match(text)
    if found is None:
        raise SpecError("groups", f"takes NAME=8xH100:MIN-MAX[:spot] or NAME=16cpu:MIN-MAX, got {text!r}")
    part = found.groupdict()
    spot = part["spot"] is not None  # a default of the other kind selects nodes of the other kind
    like = next((group for group in DEFAULT_GROUPS if (group.name, group.spot) == (part["name"], spot)), None)
    known: dict[str, object] = like.model_dump() if like is not None else {"name": part["name"]}
    known |= {"min": int(part["min"]), "max": int(part["max"]), "spot": spot}
    if part["cpus"] is not None:
        return known | {"cpu": part["cpus"], "gpus": 0, "model": None}
    return known | {"gpus": int(part["gpus"]), "model": part["model"]}
