"""The emulated cluster is what its settings say: its nodes name the accelerator models that they were given."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import ray
from ray import _raylet

from rayorch.adapters.ray_emulation import EmulatedCluster, EmulationSpec, parse_models
from rayorch.adapters.ray_nodes import observe_nodes
from rayorch.core.errors import SpecError
from rayorch.core.types import MODEL_LABEL


@pytest.mark.parametrize(
    ("text", "models"),
    [
        ("H100", ("H100",) * 4),
        ("H100:2", ("H100", "H100")),
        ("H100:1, A100:3", ("H100", "A100", "A100", "A100")),
        ("H100:1,A100", ("H100", "A100", "A100", "A100")),
    ],
)
def test_models_are_given_to_nodes_in_their_order(text: str, models: tuple[str, ...]) -> None:
    assert parse_models(text, 4) == models
    assert EmulationSpec.parse("4x8", 2, text).models == models


@pytest.mark.parametrize(
    "text", ["H100:3,A100:2", "H100:", "H100:two", ":2", ",", "H100:-1", "H100:\N{SUPERSCRIPT TWO}"]
)
def test_models_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="accelerators"):
        EmulationSpec.parse("4x8", 1, text)


def test_the_label_of_a_model_is_the_one_that_ray_sets_itself() -> None:
    assert getattr(_raylet, "RAY_NODE_ACCELERATOR_TYPE_KEY") == MODEL_LABEL  # noqa: B009 - it has no stub


@pytest.fixture
def two_models() -> Iterator[EmulatedCluster]:
    cluster = EmulatedCluster(EmulationSpec(nodes=2, gpus=2, cpus=2, head_cpus=1, models=("H100",)))
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster
    finally:
        cluster.shutdown()


@pytest.mark.ray
def test_a_node_of_the_emulated_cluster_has_its_model_and_the_next_has_none(two_models: EmulatedCluster) -> None:
    seen = {node.name: node for node in observe_nodes(("rack",))}
    assert (seen["node-0"].model, seen["node-0"].models) == ("H100", ("H100",))
    assert (seen["node-1"].model, seen["node-1"].models) == ("", ())
    assert seen["head"].model == ""
