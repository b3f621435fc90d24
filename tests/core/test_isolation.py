"""What keeps those apart who share a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.core.isolation import BY_MPS, BY_TIME, NOTHING, isolation_warnings
from rayorch.core.types import Resources, Role
from tests.build import workload


@pytest.mark.parametrize(
    ("amounts", "text"),
    [
        ({"GPU": 1}, ""),
        ({"GPU": 8, "CPU": 4}, ""),
        ({"CPU": 4}, ""),
        ({"mig-1g.10gb": 2}, ""),
        ({"GPU": 0.5}, NOTHING),
        ({"GPU": 1, "gpu-devices": 2}, NOTHING),
        ({"gpu-memory-mib": 5}, NOTHING),
        ({"GPU": 0.5, "gpu-mps": 1}, BY_MPS),
        ({"gpu-memory-mib": 5, "gpu-time-slicing": 1}, BY_TIME),
    ],
)
def test_a_part_of_a_gpu_is_warned_of_by_how_it_is_shared(amounts: dict[str, float], text: str) -> None:
    roles = tuple(Role(name, Resources.of(amounts), 1, 1) for name in ("a", "b"))
    assert isolation_warnings(replace(workload("w"), roles=roles)) == ((text,) if text else ())
