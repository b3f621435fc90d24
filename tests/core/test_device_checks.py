"""The door for parts of GPUs: what no device can be cut into is refused, with the field."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.core.admission import NodeShape, check_fits_ever, check_queue, check_workload
from rayorch.core.device_checks import check_member_devices
from rayorch.core.errors import AdmissionError, SpecError
from rayorch.core.quota import Quota
from rayorch.core.types import QueueId, QueueSpec, Resources, Role
from tests.build import queue, workload


@pytest.mark.parametrize(
    "amounts",
    [
        {"GPU": 0.5},
        {"GPU": 8},
        {"GPU": 1.5, "gpu-devices": 2},
        {"gpu-memory-mib": 20_000, "CPU": 4},
        {"gpu-memory-mib": 20_000, "gpu-devices": 4},
        {"mig-1g.10gb": 2, "mig-3g.40gb": 1},
        {"GPU": 0.5, "gpu-mps": 1},
        {"gpu-memory-mib": 1, "gpu-time-slicing": 1},
    ],
)
def test_what_devices_can_be_cut_into_passes(amounts: dict[str, float]) -> None:
    check_member_devices(Resources.of(amounts), "b")


@pytest.mark.parametrize(
    ("amounts", "field", "words"),
    [
        ({"GPU": 1.5}, "b.GPU", "whole above one"),
        ({"GPU": 2, "gpu-devices": 2}, "b.gpu-devices", "ask for GPU: 2 alone"),
        ({"GPU": 3, "gpu-devices": 2}, "b.gpu-devices", "would be whole"),
        ({"gpu-devices": 2}, "b.gpu-devices", "needs GPU or gpu-memory-mib"),
        ({"GPU": 0.5, "gpu-devices": 1.5}, "b.gpu-devices", "whole number"),
        ({"GPU": 0.5, "gpu-devices": 65}, "b.gpu-devices", "at most 64"),
        ({"GPU": 0.0001, "gpu-devices": 2}, "b.gpu-devices", "equal parts"),
        ({"GPU": 0.5, "gpu-memory-mib": 20}, "b.gpu-memory-mib", "say the same twice"),
        ({"GPU": 1, "mig-1g.10gb": 1}, "b.mig-1g.10gb", "not both"),
        ({"mig-1g.10gb": 0.5}, "b.mig-1g.10gb", "whole number"),
        ({"mig-1g": 1}, "b.mig-1g", "no MIG profile"),
        ({"gpu-mem": 20}, "b.gpu-mem", "not known"),
        ({"GPU": 1, "gpu-mps": 1}, "b.gpu-mps", "way of sharing"),
        ({"GPU": 0.5, "gpu-mps": 2}, "b.gpu-mps", "1 or absent"),
        ({"GPU": 0.5, "gpu-mps": 1, "gpu-time-slicing": 1}, "b.gpu-time-slicing", "exclude"),
    ],
)
def test_what_they_cannot_is_refused(amounts: dict[str, float], field: str, words: str) -> None:
    with pytest.raises(SpecError, match=words) as refused:
        check_member_devices(Resources.of(amounts), "b")
    assert refused.value.field == field


def test_a_workload_is_refused_with_its_role_and_a_queue_with_its_field() -> None:
    spec = workload("w")
    wrong = Role("worker", Resources.of({"GPU": 0.5, "gpu-memory-mib": 5}), 1, 1)

    with pytest.raises(SpecError) as refused:
        check_workload(replace(spec, roles=(wrong,)))
    assert refused.value.field == "roles.worker.bundle.gpu-memory-mib"
    with pytest.raises(SpecError) as refused:
        check_queue(QueueSpec(QueueId("q"), deserved=Resources.of({"gpu-devices": 2})))
    assert refused.value.field == "deserved.gpu-devices"
    check_queue(QueueSpec(QueueId("q"), deserved=Resources.of({"gpu-memory-mib": 9, "mig-1g.10gb": 2})))


def fits_ever(bundle: Resources, members: int = 1, device_mib: int = 80_000) -> str:
    """Why such a gang could never run on two nodes of eight GPUs and seven instances; empty when it could."""

    shapes = (
        NodeShape(Resources.of({"GPU": 8, "CPU": 64}), 2, (), device_mib),
        NodeShape(Resources.of({"CPU": 64, "mig-1g.10gb": 7}), 1, ()),
    )
    spec = replace(workload("w"), roles=(Role("worker", bundle, members, members),))
    try:
        check_fits_ever(spec, Quota.of([queue("q")], {}), shapes)
    except AdmissionError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("amounts", "most"),
    [
        ({"gpu-memory-mib": 30_000}, 32),
        ({"gpu-memory-mib": 80_000, "gpu-devices": 8}, 16),
        ({"GPU": 2, "gpu-devices": 4}, 8),
        ({"mig-1g.10gb": 2}, 3),
    ],
)
def test_the_door_knows_how_many_parts_there_can_ever_be(amounts: dict[str, float], most: int) -> None:
    bundle = Resources.of(amounts)
    assert fits_ever(bundle, most) == ""
    assert fits_ever(bundle, most + 1) != ""


def test_a_share_beyond_any_device_is_refused_where_devices_are_known() -> None:
    assert "no node could ever hold" in fits_ever(Resources.of({"gpu-memory-mib": 80_001}))
    assert fits_ever(Resources.of({"gpu-memory-mib": 80_001}), device_mib=0) == ""
    assert "no node could ever hold" in fits_ever(Resources.of({"GPU": 1.8, "gpu-devices": 9}))
    assert "no node could ever hold" in fits_ever(Resources.of({"mig-2g.20gb": 1}))
