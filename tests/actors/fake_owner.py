"""Stand-ins for the queue owner and the controller, as a runner sees them."""

from __future__ import annotations

from typing import Any

import ray

from rayorch.actors.names import NAMESPACE, controller_name, queues_name
from rayorch.core.requests import ACCEPTED, AttemptRef, Reply, ReportRequest
from rayorch.core.runners import RunnerView


class FakeQueueOwnerShell:
    """Renews every lease until it is told to refuse an attempt."""

    def __init__(self) -> None:
        self.refused: set[AttemptRef] = set()
        self.ready_refs: list[AttemptRef] = []
        self.reports: list[ReportRequest] = []

    def renew(self, ref: AttemptRef) -> bool:
        return ref not in self.refused

    def report(self, request: ReportRequest) -> Reply:
        if AttemptRef(request.workload, request.attempt) in self.refused:
            return Reply(False, "stale", "", "replaced")
        self.reports.append(request)
        return ACCEPTED

    def ready(self, ref: AttemptRef) -> Reply:
        self.ready_refs.append(ref)
        return ACCEPTED

    def refuse(self, ref: AttemptRef) -> None:
        self.refused.add(ref)

    def seen(self) -> tuple[list[AttemptRef], list[ReportRequest]]:
        return self.ready_refs, self.reports


class FakeControllerShell:
    """Keeps what runners tell of themselves."""

    def __init__(self) -> None:
        self.views: list[RunnerView] = []

    def runner_changed(self, view: RunnerView) -> None:
        self.views.append(view)

    def seen(self) -> list[RunnerView]:
        return self.views


def start_fakes(instance: str) -> tuple[Any, Any]:
    """Both of them, under the names that runners look for."""
    options: dict[str, Any] = {"namespace": NAMESPACE, "lifetime": "detached", "num_cpus": 0}
    owner = ray.remote(FakeQueueOwnerShell).options(name=queues_name(instance), **options).remote()
    controller = ray.remote(FakeControllerShell).options(name=controller_name(instance), **options).remote()
    return owner, controller
