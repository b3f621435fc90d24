"""The sample documents load, fit together, and every kind has one."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayorch.config import (
    ClusterDocument,
    CronDocument,
    Document,
    QueueDocument,
    ReservationDocument,
    ServeAppDocument,
    WorkloadDocument,
    load_documents,
)
from rayorch.core.types import GPU, QueueId
from tests.source_tree import ROOT

SAMPLES = sorted((ROOT / "configs").rglob("*.yaml"))
KIND_OF_FOLDER = {
    "cluster": ClusterDocument,
    "profiles": ClusterDocument,
    "queues": QueueDocument,
    "workloads": WorkloadDocument,
    "serve_apps": ServeAppDocument,
    "reservations": ReservationDocument,
    "crons": CronDocument,
}


def _load(path: Path) -> tuple[Document, ...]:
    return load_documents(path.read_bytes(), path.name)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: str(path.relative_to(ROOT / "configs")))
def test_sample_loads_as_the_kind_of_its_folder(path: Path) -> None:
    kind = KIND_OF_FOLDER.get(path.relative_to(ROOT / "configs").parts[0])
    if kind is None:
        pytest.skip("not a document of ours")
    documents = _load(path)

    assert documents
    for document in documents:
        assert isinstance(document, kind)
        document.to_core()


def test_every_kind_has_a_sample() -> None:
    assert {path.relative_to(ROOT / "configs").parts[0] for path in SAMPLES} >= set(KIND_OF_FOLDER)


def test_sample_clusters_name_policies_that_exist() -> None:
    for path in (p for folder in ("cluster", "profiles") for p in (ROOT / "configs" / folder).glob("*.yaml")):
        for document in _load(path):
            assert isinstance(document, ClusterDocument)
            document.to_core().load_profile()


def test_sample_queues_have_parents_that_deserve_at_least_as_much_as_their_children() -> None:
    documents = [d for p in (ROOT / "configs" / "queues").glob("*.yaml") for d in _load(p)]
    queues = [d.to_core() for d in documents if isinstance(d, QueueDocument)]
    by_id = {queue.id: queue for queue in queues}

    for queue in queues:
        children = [child for child in queues if child.parent == queue.id]
        if children:
            assert sum(child.deserved.units(GPU) for child in children) <= queue.deserved.units(GPU), queue.id
        assert queue.parent is None or queue.parent in by_id, queue.id


def test_samples_are_submitted_to_leaves_of_the_sample_tree() -> None:
    queues = {d.to_core().id for p in (ROOT / "configs" / "queues").glob("*.yaml") for d in _load(p)}
    leaves = {queue for queue in queues if not any(other.startswith(f"{queue}/") for other in queues)}
    wanted = [
        d.metadata.queue
        for f in ("workloads", "serve_apps")
        for p in (ROOT / "configs" / f).glob("*.yaml")
        for d in _load(p)
    ]

    assert wanted
    assert {QueueId(queue) for queue in wanted} <= leaves
