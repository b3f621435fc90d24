"""Parts of GPUs and the choice of models as documents write them."""

from __future__ import annotations

from dataclasses import fields

import pytest

from rayorch.config.cluster import ClusterDocument
from rayorch.config.models import DURATIONS, ModelsSection
from rayorch.config.parsing import parse_document
from rayorch.core.errors import SpecError
from rayorch.core.payload import Payload
from rayorch.core.policy import ModelKnobs
from rayorch.core.types import Resources, WorkloadSpec


def document(kind: str = "Workload", **spec: object) -> dict[str, object]:
    own = {"entrypoint": "true"} if kind == "Workload" else {"importPath": "app:app"}
    metadata = {"name": "w", "queue": "q"}
    return {"apiVersion": "rayorch/v1", "kind": kind, "metadata": metadata, "spec": {**own, **spec}}


def core(value: dict[str, object]) -> WorkloadSpec:
    spec = parse_document(value).to_core()
    assert isinstance(spec, WorkloadSpec)
    return spec


def refused(value: dict[str, object]) -> str:
    with pytest.raises(SpecError) as caught:
        core(value)
    return caught.value.field


def gang(**gang: object) -> dict[str, object]:
    return document(gang={"workers": 2, **gang})


@pytest.mark.parametrize(
    ("written", "mib"),
    [("20Gi", 20_480), ("20480Mi", 20_480), ("16GB", 15_259), ("1.5Gi", 1_536), ("1k", 1), ("20GiB", 20_480)],
)
def test_memory_is_written_with_its_unit(written: str, mib: int) -> None:
    bundle = core(gang(resources={"CPU": 4, "gpu-memory": written})).roles[0].bundle
    assert bundle == Resources.of({"CPU": 4, "gpu-memory-mib": mib})


@pytest.mark.parametrize("written", [20, 20.0, "20", "Gi", "-1Gi", "1e3Gi", "20Gi ", "", None, True, ["1Gi"]])
def test_memory_without_one_is_refused(written: object) -> None:
    assert refused(gang(resources={"gpu-memory": written})) == "spec.gang.resources"


def test_memory_in_mib_may_be_a_number_but_not_beside_the_other() -> None:
    assert core(gang(resources={"gpu-memory-mib": 512})).roles[0].bundle == Resources.of({"gpu-memory-mib": 512})
    assert refused(gang(resources={"gpu-memory-mib": 512, "gpu-memory": "1Gi"})) == "spec.gang.resources"


def test_sharing_names_the_nodes_that_do_it() -> None:
    bundle = core(gang(resources={"GPU": 0.5}, sharing="mps")).roles[0].bundle
    assert bundle == Resources.of({"GPU": 0.5, "gpu-mps": 1})
    assert refused(gang(resources={"GPU": 1}, sharing="mps")) == "spec.gang.resources.gpu-mps"
    assert refused(gang(resources={"GPU": 0.5, "gpu-mps": 1}, sharing="time-slicing")) == "spec.gang.sharing"
    assert refused(gang(resources={"GPU": 0.5}, sharing="none")) == "spec.gang.sharing"


@pytest.mark.parametrize(
    ("resources", "variables"),
    [
        ({"GPU": 0.333}, {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "34"}),
        ({"GPU": 1, "gpu-devices": 2}, {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}),
        ({"gpu-memory": "20Gi"}, {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=20480M"}),
        ({"gpu-memory": "20Gi", "gpu-devices": 2}, {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=10240M,1=10240M"}),
    ],
)
def test_under_mps_processes_are_held_to_their_part(resources: dict[str, object], variables: dict[str, str]) -> None:
    spec = core(gang(resources=resources, sharing="mps"))
    assert Payload.of_text(spec.payload).runtime_env == {"env_vars": variables}
    assert Payload.of_text(core(gang(resources=resources)).payload).runtime_env == {}


def test_what_the_user_sets_for_mps_himself_stays() -> None:
    own = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "80"}
    spec = core(document(gang={"workers": 1, "resources": {"GPU": 0.5}, "sharing": "mps"}, env=own))
    assert Payload.of_text(spec.payload).runtime_env == {"env_vars": own}


@pytest.mark.parametrize(
    ("resources", "field"),
    [
        ({"GPU": 1.5}, "GPU"),
        ({"GPU": 2, "gpu-devices": 2}, "gpu-devices"),
        ({"GPU": 0.5, "mig-1g.10gb": 1}, "mig-1g.10gb"),
        ({"mig-1g.10": 1}, "mig-1g.10"),
        ({"gpu-mem": 5}, "gpu-mem"),
    ],
)
def test_what_no_device_can_be_cut_into_is_refused_with_its_name(resources: dict[str, float], field: str) -> None:
    assert refused(gang(resources=resources)) == f"spec.gang.resources.{field}"
    assert refused(document("ServeApp", replicas={"resources": resources})) == f"spec.replicas.resources.{field}"


def test_whoever_asks_ray_for_gpus_himself_can_not_have_what_the_seat_decides() -> None:
    assert refused(document(driver={"gpu-memory": "1Gi"})) == "spec.driver.gpu-memory-mib"
    assert refused(document(driver={"GPU": 1, "gpu-devices": 2})) == "spec.driver.gpu-devices"
    serve = document("ServeApp", replicas={"resources": {"gpu-memory": "1Gi"}})
    assert refused(serve) == "spec.replicas.resources.gpu-memory-mib"


def test_a_command_and_a_replica_may_have_an_instance() -> None:
    spec = core(document(driver={"CPU": 1, "mig-1g.10gb": 1}))
    assert Payload.of_text(spec.payload).driver_resources == {"GPU": 1.0}
    served = core(document("ServeApp", replicas={"resources": {"CPU": 1, "mig-1g.10gb": 1}}))
    assert served.roles[0].bundle == Resources.of({"CPU": 1, "mig-1g.10gb": 1})


def test_models_may_be_equally_good() -> None:
    assert not core(document(accelerators=["H100", "A100"])).any_model
    assert core(document(accelerators=["H100", "A100"], anyModel=True)).any_model
    assert refused(document(accelerators=["H100"], anyModel="yes")) == "spec.anyModel"


def test_every_knob_of_models_can_be_set_in_the_cluster_document() -> None:
    spec = {
        "models": {
            "nextBeforeBorrowing": True,
            "evictBeforeNext": True,
            "evictBeforeBorrowing": True,
            "byScore": True,
            "upgrade": True,
            "upgradeGain": 0.5,
            "upgradeCooldown": "2h",
            "upgradeAfterCheckpoint": "30s",
        }
    }
    made = parse_document({"apiVersion": "rayorch/v1", "kind": "Cluster", "metadata": {"name": "main"}, "spec": spec})
    assert isinstance(made, ClusterDocument)
    assert made.to_core().load_profile().models == ModelKnobs(True, True, True, True, True, 0.5, 7200.0, 30.0)
    own = {f"{name}_s" if name in DURATIONS else name for name in ModelsSection.model_fields}
    assert own == {field.name for field in fields(ModelKnobs)}
