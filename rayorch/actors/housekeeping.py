"""What would otherwise only grow: packages that nobody needs, what was stored of forgotten workloads, old cordons."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from rayorch.actors.names import find_or_none, logs_name
from rayorch.actors.results import results_name
from rayorch.adapters.ray_job import package_uris, prune_packages
from rayorch.core.errors import SpecError
from rayorch.core.events import NodeCordoned
from rayorch.core.payload import Payload
from rayorch.core.requests import UncordonRequest
from rayorch.core.types import NodeId, NodeSpec, Workload, WorkloadId

log = logging.getLogger(__name__)

SWEEP_PERIOD_S = 3_600.0
PACKAGE_KEEP_S = 86_400.0
"""A package that no workload needs is kept this long from when it was last uploaded or asked for: its workload may
still come."""
CORDON_KEEP_S = 7 * 86_400.0
"""The cordon of a node that does not exist is kept this long, in case the node comes back under its old id."""


class Facts(Protocol):
    """What the controller knows (`cluster.RayCluster`)."""

    workloads: dict[WorkloadId, Workload]
    nodes: dict[NodeId, NodeSpec]

    @property
    def cordons(self) -> Mapping[NodeId, NodeCordoned]:
        """The cordons in force."""
        ...

    @property
    def queues(self) -> Any:
        """The queue owner's handle."""
        ...

    def take_forgotten(self) -> tuple[WorkloadId, ...]:
        """The workloads that were forgotten since the last call."""
        ...


class Housekeeper:
    """Called in every turn of the controller; most of the time it does nothing. `packages` None: there is no folder."""

    def __init__(self, instance: str, packages: Path | None) -> None:
        self._stores = (logs_name(instance), results_name(instance))
        self._packages = packages
        self._swept_s = float("-inf")

    def tick(self, facts: Facts) -> None:
        """Pass on what was forgotten; once in SWEEP_PERIOD_S, sweep."""
        forgotten = facts.take_forgotten()
        if forgotten:
            for name in self._stores:
                store = find_or_none(name)
                if store is not None:
                    store.forget.remote(forgotten)
        if time.monotonic() - self._swept_s < SWEEP_PERIOD_S:
            return
        self._swept_s = time.monotonic()
        self._sweep_packages(facts.workloads.values())
        for node, cordon in facts.cordons.items():
            if node not in facts.nodes and time.time() - cordon.at_s > CORDON_KEEP_S:
                log.info("node %s has not existed for long: its cordon goes", node)
                facts.queues.uncordon.remote(UncordonRequest(node, "the node does not exist any more"))

    def _sweep_packages(self, workloads: Iterable[Workload]) -> None:
        if self._packages is None:
            return
        try:
            gone = prune_packages(self._packages, needed_packages(workloads), time.time() - PACKAGE_KEEP_S)
        except OSError as error:
            log.warning("packages in %s were not swept: %s", self._packages, error)
        else:
            if gone:
                log.info("removed %d packages that no workload needs", len(gone))


def needed_packages(workloads: Iterable[Workload]) -> set[str]:
    """The packages of workloads that have not ended."""
    found: set[str] = set()
    for workload in workloads:
        try:
            found.update(package_uris(Payload.of_text(workload.spec.payload)))
        except SpecError as error:
            log.debug("%s can't be run and needs no package: %s", workload.id, error)
    return found
