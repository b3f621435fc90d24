"""A Ray cluster of several emulated nodes on one machine, for laptops, tests and the demo.

Emulated GPUs are amounts in Ray's books: nothing checks that they exist. All nodes share the machine's CPUs,
address and disk, so it shows scheduling and recovery, not speed.
"""

from __future__ import annotations

import logging
import os
import signal
from dataclasses import dataclass
from typing import Any

import ray
from ray.cluster_utils import Cluster

from rayorch.core.device_binding import device_resource
from rayorch.core.errors import ClusterError, SpecError
from rayorch.core.types import MODEL_LABEL
from rayorch.core.wellformed import check_accelerators

log = logging.getLogger(__name__)

NODE_START_TRIES = 2
"""A raylet on a busy machine may miss Ray's own start-up limit; a second try comes after the load has gone."""

FAST_FAILURE_DETECTION: dict[str, Any] = {
    # A dead node is noticed within about 2 s instead of 13 s; the machine's own loopback drops no health checks.
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
    # A group that finds a node's report a moment old is tried again at once, not a second later.
    "gcs_create_placement_group_retry_min_interval_ms": 50,
}


@dataclass(frozen=True, slots=True)
class RedisStore:
    """A Redis ("host:port") in which the head's GCS keeps what it knows.

    `namespace`: the cluster's own; a name that another cluster has used gives that cluster's memory.
    """

    address: str
    password: str
    namespace: str


@dataclass(frozen=True, slots=True)
class EmulationSpec:
    """`nodes` nodes with `gpus` emulated GPUs and `cpus` CPUs each, spread over `racks` racks in equal runs.

    `head_cpus`: CPUs of the head, which has no GPU. `exact_devices`: each GPU is a resource of its own too (gpu0, …),
    so that rayorch can choose among them. `models`: the accelerator model that each node claims to have, in order;
    further nodes name none. `redis`: None for a head that forgets everything when it dies.
    """

    nodes: int
    gpus: int
    racks: int = 1
    cpus: int = 16
    head_cpus: int = 8
    dashboard_port: int | None = None
    exact_devices: bool = False
    models: tuple[str, ...] = ()
    redis: RedisStore | None = None

    @staticmethod
    def parse(text: str, racks: int = 1, accelerators: str = "") -> EmulationSpec:
        """Read "4x8" as 4 nodes with 8 GPUs each; SpecError for anything else. `accelerators`: see `parse_models`."""
        left, cross, right = text.partition("x")
        if not cross or not left.isdigit() or not right.isdigit() or not 1 <= int(left) <= 64 or int(right) > 64:
            raise SpecError("emulate", f"must be NODESxGPUS with 1 to 64 nodes and 0 to 64 GPUs each, got {text!r}")
        if not 1 <= racks <= int(left):
            raise SpecError("racks", f"must be from 1 to the number of nodes, got {racks}")
        models = parse_models(accelerators, int(left)) if accelerators else ()
        return EmulationSpec(nodes=int(left), gpus=int(right), racks=racks, models=models)


def parse_models(text: str, nodes: int) -> tuple[str, ...]:
    """Read "H100:2,A100:2" as a model for each of the first 4 nodes; without a number it is for all that are left.

    SpecError for anything else, and for more nodes than there are.
    """
    models: list[str] = []
    for part in text.replace(" ", "").split(","):
        model, colon, count = part.partition(":")
        check_accelerators((model,), "accelerators")
        if colon and not (count.isascii() and count.isdigit() and len(count) < 4):
            raise SpecError("accelerators", f"must be such as H100:2,A100:2, got {text!r}")
        models += [model] * (int(count) if colon else nodes - len(models))
        if len(models) > nodes:
            raise SpecError("accelerators", f"names {len(models)} nodes, there are {nodes}")
    return tuple(models)


class EmulatedCluster:
    """Started by the constructor, ended by `shutdown()`. The process that makes it is its first driver."""

    def __init__(self, spec: EmulationSpec) -> None:
        self.spec = spec
        # Emulated nodes share one host, whose loopback is all that can reach them: no token, said explicitly.
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Its GPUs are amounts in Ray's books: those that this machine may have are not theirs.
        os.environ.setdefault("RAYORCH_READ_DEVICES", "0")
        os.makedirs(os.environ.get("RAY_TMPDIR", "/tmp/ray"), exist_ok=True)
        head: dict[str, Any] = {
            "num_cpus": spec.head_cpus,
            "num_gpus": 0,
            "include_dashboard": spec.dashboard_port is not None,
            "dashboard_port": spec.dashboard_port,
            "_system_config": FAST_FAILURE_DETECTION | _storage_config(spec.redis),
            "labels": {"rayorch.io/name": "head"},
            **_redis_options(spec.redis),
        }
        self._cluster = Cluster(initialize_head=True, head_node_args={k: v for k, v in head.items() if v is not None})
        self._nodes: dict[str, Any] = {}
        try:
            for index in range(spec.nodes):
                model = spec.models[index] if index < len(spec.models) else ""
                self.add_node(f"node-{index}", rack=index * spec.racks // spec.nodes, model=model)
        except BaseException:
            self._cluster.shutdown()
            raise

    @property
    def address(self) -> str:
        """The GCS address, for `ray.init` and RAY_ADDRESS."""
        return str(self._cluster.address)

    @property
    def node_names(self) -> tuple[str, ...]:
        """The names of the nodes that are up, in the order of their start."""
        return tuple(self._nodes)

    def node_id(self, name: str) -> str:
        """Ray's id of a node."""
        return str(self._nodes[name].node_id)

    def add_node(self, name: str, rack: int = 0, model: str = "", exact_devices: bool | None = None) -> str:
        """Start one more node; answers with its id. Nodes start one after another: a starved raylet aborts.

        `exact_devices`: None for what the spec says.
        """
        exact = self.spec.exact_devices if exact_devices is None else exact_devices
        labels = {"rayorch.io/name": name, "rayorch.io/rack": f"rack-{rack}"}
        if model:
            labels[MODEL_LABEL] = model
        for attempt in range(1, NODE_START_TRIES + 1):
            try:
                node = self._cluster.add_node(
                    num_cpus=self.spec.cpus,
                    num_gpus=self.spec.gpus,
                    resources={device_resource(i): 1.0 for i in range(self.spec.gpus)} if exact else {},
                    labels=labels,
                )
            except Exception as error:
                if attempt == NODE_START_TRIES:
                    raise ClusterError(f"emulated node {name} did not start: {error}") from error
                log.warning("emulated node %s did not start, trying again: %s", name, error)
            else:
                self._nodes[name] = node
                return str(node.node_id)
        raise AssertionError("unreachable")

    def kill_node(self, name: str) -> None:
        """End a node as a power cut does: its processes are killed and nobody is told."""
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    def freeze_node(self, name: str, frozen: bool = True) -> None:
        """Stop (or wake) a node's raylet, as a partition looks to the head; its workers run on."""
        for info in self._nodes[name].all_processes["raylet"]:
            os.kill(info.process.pid, signal.SIGSTOP if frozen else signal.SIGCONT)

    def kill_raylet(self, name: str) -> None:
        """End a node's raylet alone; its workers notice and end themselves."""
        for info in self._nodes[name].all_processes["raylet"]:
            os.kill(info.process.pid, signal.SIGKILL)

    def kill_gcs(self) -> None:
        """End the head's GCS; with Redis-backed fault tolerance `start_gcs` brings back what it knew."""
        head: Any = self._cluster.head_node
        head.kill_gcs_server()

    def start_gcs(self) -> None:
        """Start the head's GCS again."""
        head: Any = self._cluster.head_node
        head.start_gcs_server()

    def shutdown(self) -> None:
        """End every node. Ray's driver in this process is disconnected first."""
        if ray.is_initialized():
            ray.shutdown()
        self._nodes.clear()
        self._cluster.shutdown()


def _redis_options(redis: RedisStore | None) -> dict[str, Any]:
    """The head's options for an external Redis."""
    if redis is None:
        return {}
    # Ray counts the first address as the primary and the others as shards; one server can be both.
    addresses = [redis.address, redis.address]
    return {"external_addresses": addresses, "num_redis_shards": 1, "redis_password": redis.password}


def _storage_config(redis: RedisStore | None) -> dict[str, Any]:
    return {} if redis is None else {"external_storage_namespace": redis.namespace}
