"""One RayCluster as where nodes come from: what its groups are, and changing their replica counts."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rayorch.adapters.kuberay.api import Api, ApiError, KubeRaySettings
from rayorch.adapters.kuberay.groups import node_groups
from rayorch.adapters.kuberay.instances import pod_addresses
from rayorch.adapters.kuberay.models import Pod, RayCluster, RayJob, parse
from rayorch.adapters.kuberay.patch import applied, patch_of
from rayorch.core.capacity import GroupName, NodeGroup
from rayorch.core.decisions import GroupChange
from rayorch.core.errors import AdmissionError, ClusterError, StalePlanError

log = logging.getLogger(__name__)

SCALE_ATTEMPTS = 5
SCALE_PAUSE_S = 0.1  # doubled after each attempt, with jitter
SCALE_PAUSE_MAX_S = 2.0
NO_PODS = (403, 404)  # no right to read pods, or a server without the core API


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A RayCluster as it was seen.

    `in_tree`: Ray's autoscaler sets the replica counts, and `scale` refuses. `suspended`: it has no pods and gets none.
    `pods_error`: why instances can't be seen (no right to read pods), empty when they can. `addresses`: (instance, IP
    address), to find the Ray node of a pod that carries no label. `notes`: what an operator should know, in sentences.
    """

    groups: tuple[NodeGroup, ...]
    in_tree: bool
    suspended: bool
    uid: str
    resource_version: str
    pods_error: str = ""
    addresses: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


class KubeRayClient:
    """Reads and scales one RayCluster. Safe to use from several threads. Nothing is sent before the first call.

    A client belongs to the first RayCluster that it sees: another one of the same name is an error, not news.
    """

    def __init__(self, settings: KubeRaySettings) -> None:
        self.settings = settings
        self.api = Api(settings)
        self._lock = threading.Lock()
        self._uid = ""
        self._known: frozenset[GroupName] = frozenset()
        self._sleep: Callable[[float], None] = time.sleep

    def observe(self) -> ClusterState:
        """The cluster as it is now. Raises ClusterError for everything that leaves it unknown."""
        cluster = self._cluster()
        try:
            items, _ = self.api.list_pods()
        except ApiError as error:
            if error.status not in NO_PODS:
                raise
            return self.state(cluster, None, str(error))
        return self.state(cluster, [self.pod(item) for item in items])

    def scale(self, change: GroupChange) -> None:
        """Carry out one change of one group, once, however often the answer is lost.

        Raises StalePlanError when the facts have changed, AdmissionError when the cluster refuses, ClusterError when
        it is not known whether the change was made.
        """
        unsure = False
        for attempt in range(SCALE_ATTEMPTS):
            if attempt:
                self._sleep(_pause(attempt))
            try:
                cluster = self._cluster()
                if unsure and applied(change, cluster):
                    return
                operations = self._operations(change, cluster)
            except ApiError as error:  # nothing was sent
                if not error.passing or attempt == SCALE_ATTEMPTS - 1:
                    raise
                log.info("group %s: %s; trying again", change.group, error)
                continue
            try:
                self._check_answer(change, self.api.patch_cluster(operations))
                return
            except ApiError as error:
                if error.status in (400, 403, 413):
                    raise AdmissionError("kuberay", str(error)) from None
                if error.status == 422:
                    self._judge(change, operations, error)
                elif not error.passing or (attempt == SCALE_ATTEMPTS - 1 and error.status != 409):
                    raise
                unsure = unsure or error.status == 0 or error.status >= 500
                log.info("group %s: %s; trying again", change.group, error)
        raise StalePlanError(f"group {change.group} was changed by others in each of {SCALE_ATTEMPTS} attempts")

    def ray_jobs(self) -> dict[str, str]:
        """Name of each RayJob of this cluster by its submission id, of those that have one. Raises ClusterError."""
        jobs = [parse(RayJob, item, "a RayJob") for item in self.api.list_jobs()]
        return {j.submission: j.metadata.name for j in jobs if j.submission and j.runs_on(self.settings.cluster)}

    def watch(self, on_change: Callable[[ClusterState | ClusterError], None], stop: threading.Event) -> None:
        """Call back with the cluster at once and after every change, until `stop` is set; blocks. See `watch.py`."""
        from rayorch.adapters.kuberay.watch import ClusterWatch

        ClusterWatch(self, on_change, stop).run()

    def state(self, cluster: RayCluster, pods: Sequence[Pod] | None, pods_error: str = "") -> ClusterState:
        """What a cluster and its pods mean. Raises ClusterError for what can't be understood, or be true."""
        name = cluster.metadata.name
        if pods is not None and not pods and cluster.status.available_worker_replicas > 0:
            raise ClusterError(
                f"RayCluster {name} reports {cluster.status.available_worker_replicas} workers, "
                "but the API server shows no pod of it"
            )
        view = node_groups(cluster, pods)
        return ClusterState(
            groups=view.groups,
            in_tree=bool(cluster.spec.enable_in_tree_autoscaling),
            suspended=bool(cluster.spec.suspend),
            uid=cluster.metadata.uid,
            resource_version=cluster.metadata.resource_version,
            pods_error=pods_error,
            addresses=pod_addresses(pods or ()),
            notes=(*view.notes, *self._vanished(view.groups)),
        )

    def identified(self, raw: Any) -> RayCluster:
        """The typed cluster, if it is ours. Raises ClusterError."""
        cluster = parse(RayCluster, raw, f"RayCluster {self.settings.cluster}")
        if cluster.metadata.name != self.settings.cluster:
            raise ClusterError(
                f"asked for RayCluster {self.settings.cluster}, the API server shows {cluster.metadata.name}"
            )
        with self._lock:
            self._uid = self._uid or cluster.metadata.uid
            if cluster.metadata.uid != self._uid:
                raise ClusterError(
                    f"RayCluster {cluster.metadata.name} was replaced by another of the same name "
                    f"(uid {self._uid} before, {cluster.metadata.uid} now)"
                )
        return cluster

    def pod(self, raw: Any) -> Pod:
        """The typed pod. Raises ClusterError."""
        named = raw.get("metadata", {}).get("name", "") if isinstance(raw, dict) else ""
        return parse(Pod, raw, f"pod {named}" if named else "a pod")

    def _cluster(self) -> RayCluster:
        try:
            raw = self.api.cluster()
        except ApiError as error:
            if error.status != 404:
                raise
            where = f"in namespace {self.settings.namespace}"
            raise ClusterError(f"there is no RayCluster {self.settings.cluster} {where}") from None
        return self.identified(raw)

    def _operations(self, change: GroupChange, cluster: RayCluster) -> list[dict[str, Any]]:
        group = next((group for group in cluster.groups if group.group_name == change.group), None)
        if group is None or not (change.instances or group.to_delete or change.to_replicas < change.from_replicas):
            return patch_of(change, cluster, None)  # a growth with nothing to clean up needs no pods
        try:
            items, _ = self.api.list_pods(change.group)
        except ApiError as error:
            if error.status not in NO_PODS:
                raise
            return patch_of(change, cluster, None)
        return patch_of(change, cluster, [self.pod(item) for item in items])

    def _judge(self, change: GroupChange, sent: list[dict[str, Any]], error: ApiError) -> None:
        """A patch was refused as unprocessable: by its own tests (then the facts have changed), or by the server.

        Returns when the change is still right and only its place has moved. Raises what the facts say otherwise.
        """
        if self._operations(change, self._cluster()) == sent:
            raise AdmissionError("kuberay", str(error)) from None

    def _check_answer(self, change: GroupChange, raw: dict[str, Any]) -> None:
        """The object after the patch: was Ray's autoscaler switched on between reading and writing?"""
        cluster = self.identified(raw)
        if cluster.spec.enable_in_tree_autoscaling:
            raise AdmissionError(
                "spec.enableInTreeAutoscaling", "was switched on at this moment: Ray's autoscaler decides from now on"
            )

    def _vanished(self, groups: Sequence[NodeGroup]) -> tuple[str, ...]:
        """Groups that were there before, said once."""
        names = frozenset(group.name for group in groups)
        with self._lock:
            gone, self._known = self._known - names, names
        return tuple(f"group {name} has vanished from the cluster" for name in sorted(gone))


def _pause(attempt: int) -> float:
    return min(SCALE_PAUSE_MAX_S, SCALE_PAUSE_S * 2.0 ** (attempt - 1)) * random.uniform(0.5, 1.5)
