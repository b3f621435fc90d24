"""Starts one instance of rayorch on the Ray cluster that this process is connected to, and ends it again."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from rayorch.actors.allocator import AllocatorSettings, start_allocator
from rayorch.actors.controller import ControllerSettings, start_controller
from rayorch.actors.inventory import InventorySettings, start_inventory
from rayorch.actors.journal import ensure_journal
from rayorch.actors.logs import LogSettings, start_log_store
from rayorch.actors.names import (
    agent_name,
    allocator_name,
    controller_name,
    find_or_none,
    inventory_name,
    logs_name,
    on_head,
    queues_name,
)
from rayorch.actors.queues import QueueSettings, start_queue_owner
from rayorch.actors.results import results_name
from rayorch.actors.runner import RunnerSettings
from rayorch.adapters.ray_demand import ensure_coordinator
from rayorch.core.admission import NodeShape, check_instance
from rayorch.core.errors import ClusterError
from rayorch.core.policy import Profile
from rayorch.core.types import NodeId, QueueId, QueueSpec, Resources

if TYPE_CHECKING:
    from rayorch.actors.node_groups import GroupSettings

log = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
"""How long the owners may take to answer for the first time on a busy machine."""
DEFAULT_QUEUE = QueueSpec(id=QueueId("default"))
"""Made when there is no queue at all, so that a first submission needs no set-up. It has no quota."""


@dataclass(frozen=True, slots=True)
class InstanceSettings:
    """`state_dir`: journal and logs, on a disk of the head that survives it. `levels`: topology, outermost first.
    `queues` are created or brought up to date at every start. `pools`: nodes that an autoscaler could add. `groups`:
    who adds and removes nodes, None for nobody. `countables`: what the cluster has as a whole."""

    profile: Profile
    state_dir: Path
    instance: str = "main"
    levels: tuple[str, ...] = ("zone", "block", "rack")
    queues: tuple[QueueSpec, ...] = field(default=())
    pools: tuple[NodeShape, ...] = field(default=())
    groups: GroupSettings | None = None
    countables: Resources = Resources()

    def __post_init__(self) -> None:
        check_instance(self.instance)

    @property
    def journal_path(self) -> Path:
        """Where the journal lies."""
        return self.state_dir / "journal.db"


def start_instance(settings: InstanceSettings) -> None:
    """Start the owners, or find them running, and wait until they answer. ClusterError when they don't."""
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    where: dict[str, Any] = {"resources": on_head()}
    instance = settings.instance
    # An owner that runs holds the journal's lock, and was told its id when it was started.
    journal_id = None if find_or_none(queues_name(instance)) is not None else ensure_journal(settings.journal_path)
    queues = start_queue_owner(QueueSettings(str(settings.journal_path), instance, journal_id), **where)
    start_log_store(LogSettings(instance, str(settings.state_dir / "logs")), **where)
    inventory_settings = InventorySettings(instance, settings.levels, pools=settings.pools, groups=settings.groups)
    inventory = start_inventory(inventory_settings, **where)
    allocator_settings = AllocatorSettings(instance, start_deadline_s=settings.profile.start_deadline_s)
    allocator = start_allocator(allocator_settings, **where)
    ensure_coordinator()
    runner = RunnerSettings(
        storage_path=str(settings.state_dir / "checkpoints"),
        packages=str(settings.state_dir / "packages"),
        instance=instance,
    )
    kuberay = settings.groups.kuberay if settings.groups else None
    controller = start_controller(ControllerSettings(settings.profile, runner, instance, kuberay=kuberay), **where)
    try:
        ray.get([queues.ping.remote(), inventory.ping.remote(), allocator.ping.remote()], timeout=START_TIMEOUT_S)
        _ensure_countables(queues, settings.countables)
        _ensure_queues(queues, settings.queues)
        ray.get(controller.ping.remote(), timeout=START_TIMEOUT_S)
    except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
        raise ClusterError(f"the owners of instance {instance!r} did not start: {error}") from error


def _ensure_countables(owner: Any, amounts: Resources) -> None:
    reply = ray.get(owner.set_countables.remote(amounts), timeout=START_TIMEOUT_S)
    if not reply.accepted:
        raise ClusterError(f"the cluster's countables were refused: {reply.message}")


def _ensure_queues(owner: Any, wanted: tuple[QueueSpec, ...]) -> None:
    known = ray.get(owner.changes_since.remote(0), timeout=START_TIMEOUT_S).queues
    for spec in wanted or (() if known else (DEFAULT_QUEUE,)):
        reply = ray.get(owner.set_queue.remote(spec), timeout=START_TIMEOUT_S)
        if not reply.accepted:
            raise ClusterError(f"queue {spec.id} was refused: {reply.message}")


def stop_instance(instance: str) -> None:
    """End the owners. The journal stays, and running gangs with it: a later start finds both."""
    owner = find_or_none(queues_name(instance))
    if owner is not None:
        ray.get(owner.close.remote(), timeout=START_TIMEOUT_S)
    named_by = (controller_name, allocator_name, inventory_name, queues_name, logs_name, results_name)
    names = [name(instance) for name in named_by]
    named = ray.util.list_named_actors(all_namespaces=True)
    agents = [row["name"] for row in named if row["name"].startswith(agent_name(instance, NodeId("")))]
    for name in (*names, *agents):
        handle = find_or_none(name)
        if handle is not None:
            ray.kill(handle)
