"""The `placement` section of the Cluster document."""

from __future__ import annotations

import pytest

from rayorch.config import ClusterDocument, load_documents
from rayorch.core.errors import SpecError
from rayorch.core.placement import TaskClass
from rayorch.core.policy import PlacementKnobs, Profile
from rayorch.core.types import UNIT
from rayorch.policies.place import fragmentation


def profile(section: str) -> Profile:
    """What a document with such a section says."""
    text = f"""
apiVersion: rayorch/v1
kind: Cluster
metadata: {{name: main}}
spec:
  policies: {{score: fragmentation, device: fragmentation}}
  placement: {section}
"""
    (made,) = load_documents(text)
    assert isinstance(made, ClusterDocument)
    return made.to_core().load_profile()


def test_a_cluster_says_what_is_typically_asked_for() -> None:
    made = profile("{seed: 7, classes: [{cpu: 4, gpu: 0.5, weight: 3}, {cpu: 8.0, gpu: 2, accelerators: [T4, P100]}]}")
    share = TaskClass(4 * UNIT, UNIT // 2, 1, frozenset(), 3)
    pair = TaskClass(8 * UNIT, UNIT, 2, frozenset({"T4", "P100"}), 1)
    assert made.placement == PlacementKnobs((share, pair), 7)
    assert (made.score, made.device) == (fragmentation.score, fragmentation.device)
    assert profile("{}").placement == PlacementKnobs()


@pytest.mark.parametrize(
    ("one", "field"),
    [
        ("{gpu: 1.5}", "[0].gpu"),
        ("{gpu: -1}", "[0].gpu"),
        ("{gpu: .nan}", "[0].gpu"),
        ("{gpu: 1, weight: 0}", "[0].weight"),
        ("{gpu: 1, weight: 1.5}", "[0].weight"),
        ("{cpu: 1, accelerators: T4}", "[0].accelerators"),
        ("{gpu: 1}, {gpu: 1.0, weight: 2}", "[1]"),
        ("{gpus: 1}", "[0].gpus"),
    ],
)
def test_classes_that_can_t_be_right(one: str, field: str) -> None:
    with pytest.raises(SpecError) as error:
        profile(f"{{classes: [{one}]}}")
    assert error.value.field == f"spec.placement.classes{field}"
