"""The actor's door is open to every process of the cluster: nothing that would break a reader may pass it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rayorch.core.errors import SpecError
from rayorch.core.queues import QueueTree
from rayorch.core.types import (
    Kind,
    NodeId,
    QueueId,
    QueueSpec,
    Resources,
    Role,
    TopologyRequest,
    WorkloadId,
    WorkloadSpec,
)

CPU = Resources.of({"CPU": 1})
GOOD = WorkloadSpec(WorkloadId("w"), "w", Kind.JOB, QueueId("q"), (Role("driver", CPU, 1, 1),))
NAN = float("nan")


def _tree() -> QueueTree:
    tree = QueueTree()
    for event in tree.set_queue(QueueSpec(QueueId("q")), 0.0):
        tree.apply(event)
    return tree


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"id": 5}, "id"),
        ({"name": "\ud800"}, "name"),
        ({"owner": "a\0"}, "owner"),
        ({"owner": None}, "owner"),
        ({"payload": ""}, "payload"),
        ({"payload": "[]"}, "payload"),
        ({"payload": '{"entrypoint": 5}'}, "payload.entrypoint"),
        ({"payload": " " * (2**20 + 1)}, "payload"),
        ({"kind": "job "}, "kind"),
        ({"priority": 2**63}, "priority"),
        ({"priority": True}, "priority"),
        ({"priority": 1.5}, "priority"),
        ({"max_retries": 10**400}, "max_retries"),
        ({"max_retries": -1}, "max_retries"),
        ({"grace_s": NAN}, "grace_s"),
        ({"grace_s": 10**400}, "grace_s"),
        ({"min_runtime_s": -1}, "min_runtime_s"),
        ({"min_runtime_s": "1"}, "min_runtime_s"),
        ({"preemptible": 1}, "preemptible"),
        ({"topology": None}, "topology"),
        ({"topology": TopologyRequest("\ud800")}, "topology.required"),
        ({"accelerators": "H100"}, "accelerators"),
        ({"accelerators": ["H100"]}, "accelerators"),
        ({"accelerators": (1,)}, "accelerators[0]"),
        ({"accelerators": ("H100", "")}, "accelerators[1]"),
        ({"accelerators": ("H100,A100",)}, "accelerators[0]"),
        ({"accelerators": ("A" * 64,)}, "accelerators[0]"),
        ({"accelerators": ("H100", "A100", "H100")}, "accelerators[2]"),
        ({"accelerators": tuple(f"m{n}" for n in range(17))}, "accelerators"),
        ({"roles": "x"}, "roles"),
        ({"roles": ("x",)}, "roles[0]"),
        ({"roles": (Role("\0", CPU, 1, 1),)}, "roles[0].name"),
        ({"roles": (Role("r", CPU, 1.0, 1),)}, "roles[0].min_count"),  # type: ignore[arg-type]
        ({"roles": (Role("r", None, 1, 1),)}, "roles[0].bundle"),  # type: ignore[arg-type]
        ({"roles": (Role("r", Resources((("GPU", NAN),)), 1, 1),)}, "roles[0].bundle.GPU"),  # type: ignore[arg-type]
        ({"roles": (Role("r", Resources((("GPU", 1), ("GPU", 1))), 1, 1),)}, "roles[0].bundle"),
        ({"roles": (Role("r", Resources((("b", 1), ("a", 1))), 1, 1),)}, "roles[0].bundle"),
        ({"roles": (Role("r", Resources((("a", 0),)), 1, 1),)}, "roles[0].bundle"),
    ],
)
def test_a_workload_that_is_not_what_its_types_say_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        _tree().submit(replace(GOOD, **changes), 0.0)
    assert caught.value.field == field
    assert len(_tree().submit(GOOD, 0.0)) == 1


@pytest.mark.parametrize("thing", ["text", None, 5])
def test_what_is_no_spec_at_all_is_refused(thing: Any) -> None:
    for command in (_tree().submit, _tree().set_queue):
        with pytest.raises(SpecError):
            command(thing, 0.0)


@pytest.mark.parametrize("id", ["..", "a/..", "\ud800", "a\0", "a\n", None])
def test_a_queue_needs_a_path_that_can_be_written(id: Any) -> None:
    with pytest.raises(SpecError, match="id"):
        _tree().set_queue(QueueSpec(id), 0.0)


def test_a_cordon_and_a_reason_must_be_such_that_their_readers_can_show_them() -> None:
    tree = _tree()
    for deadline_s in (NAN, float("inf"), "soon"):
        with pytest.raises(SpecError, match="drain_by_s"):
            tree.cordon(NodeId("n"), "x", deadline_s, 0.0)  # type: ignore[arg-type]
    for command in (tree.cancel, tree.uncordon):
        with pytest.raises(SpecError, match="reason"):
            command("w", "\ud800", 0.0)  # type: ignore[arg-type]
