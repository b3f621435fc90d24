"""Serve's deployment scheduler with our placement: replicas of granted applications go to granted seats only.

Installed in Serve's controller process by `controller_callback`. A replica without a free seat stays in Serve's own
list of pending replicas, which Serve goes through ten times a second: that is neither a failure nor a wait.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from ray.serve._private import default_impl
from ray.serve._private.common import CreatePlacementGroupRequest, DeploymentID, GangReservationResult, ReplicaID
from ray.serve._private.deployment_scheduler import DeploymentScheduler
from ray.serve._private.utils import get_head_node_id
from ray.util.placement_group import PlacementGroup, placement_group

from rayorch.adapters.ray_serve.seats import GANG_PREFIX, HELD_LABEL, NODE_ID_LABEL, Replicas, with_named
from rayorch.adapters.ray_serve.table import TABLE
from rayorch.core.errors import ClusterError

Selector = list[dict[str, str]] | None


def needs_grant(selector: Selector) -> bool:
    """Whether a deployment with these bundle selectors was deployed by us (see HELD_LABEL)."""
    return bool(selector and HELD_LABEL in selector[0])


class GrantScheduler(DeploymentScheduler):
    """Differs from Serve's own for granted deployments in three ways: where a replica goes, when it may, and which
    one leaves. Everything else, all other applications included, is Serve's."""

    def __init__(
        self,
        cluster_node_info_cache: Any,
        head_node_id: str,
        create_placement_group_fn: Callable[[CreatePlacementGroupRequest], PlacementGroup],
    ) -> None:
        super().__init__(cluster_node_info_cache, head_node_id, create_placement_group_fn=self._create_group)
        self._create_ungranted_group = create_placement_group_fn
        self._gang_of: DeploymentID | None = None
        TABLE.scheduler = self

    # ------------------------------------------------------------ when and where

    def _schedule_replica(self, scheduling_request: Any, *args: Any, **kwargs: Any) -> bool:
        """False without a status of failure leaves the replica pending, to be tried again on the next tick."""
        owner = scheduling_request.replica_id.deployment_id
        if (
            scheduling_request.gang_placement_group is None
            and needs_grant(scheduling_request.placement_group_bundle_label_selector)
            and not TABLE.free_seats(owner.app_name, owner.name)
        ):
            return False
        return super()._schedule_replica(scheduling_request, *args, **kwargs)

    def _prepare_gangs_for_deployment(self, deployment_id: DeploymentID, request: Any) -> GangReservationResult:
        self._gang_of = deployment_id
        try:
            return super()._prepare_gangs_for_deployment(deployment_id, request)
        finally:
            self._gang_of = None

    def schedule_gang_placement_groups(self, gang_requests: dict[DeploymentID, Any]) -> dict[DeploymentID, Any]:
        """Ask for as many gangs as have seats; a deployment left out is asked about again on the next tick."""
        possible = {}
        for deployment_id, request in gang_requests.items():
            if needs_grant(request.replica_pg_bundle_label_selector):
                free = len(TABLE.free_seats(deployment_id.app_name, deployment_id.name))
                whole = min(request.num_replicas_to_add, free) // request.gang_size * request.gang_size
                if not whole:
                    continue
                request = dataclasses.replace(request, num_replicas_to_add=whole)
            possible[deployment_id] = request
        return dict(super().schedule_gang_placement_groups(possible))

    def _create_group(self, request: CreatePlacementGroupRequest) -> PlacementGroup:
        """Serve's way for what is not granted; else a group pinned to free seats.

        It keeps Serve's name, because Serve finds a replica's group by that name when its controller has restarted.
        """
        if not needs_grant(request.bundle_label_selector):
            return self._create_ungranted_group(request)
        gang = request.name.startswith(GANG_PREFIX)
        owner = self._gang_of if gang else ReplicaID.from_full_id_str(request.name).deployment_id
        assert owner is not None, request.name
        wanted = len(request.bundles) if gang else 1
        seats = TABLE.free_seats(owner.app_name, owner.name)[:wanted]
        if len(seats) < wanted:
            raise ClusterError(f"{request.name} needs {wanted} granted seats, {len(seats)} are free")
        nodes = tuple(seat.node_id for seat in seats)
        per_bundle = nodes if gang else nodes * len(request.bundles)
        selectors = [
            {**{k: v for k, v in asked.items() if k != HELD_LABEL}, NODE_ID_LABEL: node}
            for asked, node in zip(request.bundle_label_selector or [], per_bundle, strict=True)
        ]
        group: PlacementGroup = placement_group(
            with_named(request.bundles, seats),
            strategy="PACK",
            name=request.name,
            lifetime="detached",
            bundle_label_selector=selectors,
        )
        TABLE.note_placed(owner.app_name, group.id.hex(), request.name, owner.name, seats)
        return group

    # ------------------------------------------------------------ which one leaves

    def _get_replicas_to_stop(
        self, deployment_id: DeploymentID, max_num_to_stop: int, *args: Any, **kwargs: Any
    ) -> set[ReplicaID]:
        """Replicas outside the grant first, then in Serve's own order."""
        gangs = kwargs.get("gang_id_by_replica") is not None or any(args)
        outside = [] if gangs else self._outside(deployment_id)
        if not outside:
            return set(super()._get_replicas_to_stop(deployment_id, max_num_to_stop, *args, **kwargs))
        chosen = outside[:max_num_to_stop]
        asked = 0
        while len(chosen) < max_num_to_stop and asked < self._size(deployment_id):
            # Serve answers with a set; asking for one more each time gives its order back.
            asked += 1
            chosen += [r for r in super()._get_replicas_to_stop(deployment_id, asked) if r not in chosen]
        return set(chosen)

    def count_replicas(self, app: str, deployment: str) -> Replicas:
        """Replicas that are not stopping; those being recovered after a restart count as running within the grant."""
        deployment_id = DeploymentID(name=deployment, app_name=app)
        outside = self._outside(deployment_id)
        # `get`, because these are defaultdicts of which Serve asserts that they don't know a deployment before it does
        running = [r for r in self._running_replicas.get(deployment_id, {}) if r not in outside]
        recovering = len(self._recovering_replicas.get(deployment_id, ()))
        starting = self._size(deployment_id) - len(outside) - len(running) - recovering
        return Replicas(len(running) + recovering, starting, len(outside))

    def count_running(self, app: str, deployment: str) -> int:
        """Replicas that answer requests."""
        return len(self._running_replicas.get(DeploymentID(name=deployment, app_name=app), {}))

    def _size(self, deployment_id: DeploymentID) -> int:
        return sum(
            len(replicas.get(deployment_id, ()))
            for replicas in (
                self._pending_replicas,
                self._launching_replicas,
                self._recovering_replicas,
                self._running_replicas,
            )
        )

    def _outside(self, deployment_id: DeploymentID) -> list[ReplicaID]:
        """Replicas on nodes beyond what the grant has there, in the order in which they should leave."""
        granted = TABLE.granted_by_node(deployment_id.app_name, deployment_id.name)
        if granted is None:
            return []
        by_node: dict[str, list[ReplicaID]] = defaultdict(list)
        for replica_id, node in self._running_replicas.get(deployment_id, {}).items():
            by_node[node].append(replica_id)
        for replica_id in self._launching_replicas.get(deployment_id, {}):
            for node in TABLE.nodes_of(deployment_id.app_name, replica_id.to_full_id_str())[:1]:
                by_node[node].append(replica_id)
        # Newest first within a node: what is still starting, then what has run for the shortest time.
        return [r for node, replicas in sorted(by_node.items()) for r in reversed(replicas[granted[node] :])]

    def on_deployment_deleted(self, deployment_id: DeploymentID) -> None:
        """Also stop following the grants of an application that has no deployment left."""
        super().on_deployment_deleted(deployment_id)
        if not any(other.app_name == deployment_id.app_name for other in self._deployments):
            TABLE.forget(deployment_id.app_name)


def create_scheduler(
    cluster_node_info_cache: Any,
    head_node_id_override: str | None = None,
    create_placement_group_fn_override: Callable[[CreatePlacementGroupRequest], PlacementGroup] | None = None,
) -> GrantScheduler:
    """Takes the place of Serve's `default_impl.create_deployment_scheduler`."""
    return GrantScheduler(
        cluster_node_info_cache,
        head_node_id_override or get_head_node_id(),
        create_placement_group_fn_override or default_impl._default_create_placement_group,
    )


def install() -> None:
    """From now on, Serve's controller in this process schedules with GrantScheduler."""
    default_impl.create_deployment_scheduler = create_scheduler
