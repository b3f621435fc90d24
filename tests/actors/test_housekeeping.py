"""What would only grow is swept: packages, stored output of forgotten workloads, cordons of nodes that are gone."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rayorch.actors import housekeeping
from rayorch.actors.housekeeping import CORDON_KEEP_S, PACKAGE_KEEP_S, Housekeeper
from rayorch.actors.results import ResultFiles
from rayorch.core.events import NodeCordoned
from rayorch.core.payload import Payload
from rayorch.core.requests import UncordonRequest
from rayorch.core.types import NodeId, NodeSpec, State, Workload, WorkloadId
from tests.build import node, workload


class Known:
    """What the controller knows, and what its housekeeper asked for."""

    def __init__(self, *, payload: str = "{}", forgotten: tuple[str, ...] = ()) -> None:
        waits = Workload(workload("w", payload=payload), State.PENDING, 0.0)
        broken = Workload(workload("broken", payload="no JSON"), State.PENDING, 0.0)
        self.workloads = {w.id: w for w in (waits, broken)}
        self.nodes: dict[NodeId, NodeSpec] = {NodeId("n1"): node("n1")}
        self.cordons: dict[NodeId, NodeCordoned] = {}
        self.asked: list[Any] = []
        self._forgotten = tuple(WorkloadId(id) for id in forgotten)
        self.queues = SimpleNamespace(uncordon=SimpleNamespace(remote=self.asked.append))

    def take_forgotten(self) -> tuple[WorkloadId, ...]:
        return self._forgotten


def test_packages_that_no_workload_needs_go_when_they_are_old(tmp_path: Path) -> None:
    for name, age_s in (("needed.zip", 2 * PACKAGE_KEEP_S), ("old.zip", 2 * PACKAGE_KEEP_S), ("young.zip", 60.0)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - age_s,) * 2)
    payload = Payload(entrypoint="true", runtime_env={"working_dir": "gcs://needed.zip"}).to_text()
    housekeeper = Housekeeper("main", tmp_path)
    housekeeper.tick(Known(payload=payload))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["needed.zip", "young.zip"]
    housekeeper.tick(Known())  # not again so soon
    assert (tmp_path / "needed.zip").exists()


def test_the_cordon_of_a_node_that_has_not_existed_for_long_goes() -> None:
    known = Known()
    ages = {"n1": 2 * CORDON_KEEP_S, "gone": 2 * CORDON_KEEP_S, "rebooting": 60.0}
    for name, age_s in ages.items():
        known.cordons[NodeId(name)] = NodeCordoned(NodeId(name), "fan", None, time.time() - age_s)
    Housekeeper("main", None).tick(known)
    assert known.asked == [UncordonRequest(NodeId("gone"), "the node does not exist any more")]


def test_stores_are_told_of_forgotten_workloads(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, Any]] = []

    def store(name: str) -> Any:
        return SimpleNamespace(forget=SimpleNamespace(remote=lambda ids: told.append((name, ids))))

    monkeypatch.setattr(housekeeping, "find_or_none", store)
    Housekeeper("main", None).tick(Known(forgotten=("old",)))
    assert told == [("logs/main", ("old",)), ("results/main", ("old",))]


def test_a_forgotten_result_is_gone(tmp_path: Path) -> None:
    files = ResultFiles(tmp_path)
    files.put(WorkloadId("w"), b"42")
    for id in ("w", "w", "../x"):
        files.forget(WorkloadId(id))
    assert files.get(WorkloadId("w")) is None
