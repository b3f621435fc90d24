"""A user's application as Serve gets it: its own code, our bundles, policy and marks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rayorch.adapters.ray_serve import AppSpec, app_spec
from rayorch.adapters.ray_serve.builder import RunnerRef, granted, load_application, match_roles
from rayorch.adapters.ray_serve.policy import POLICY_PATH
from rayorch.adapters.ray_serve.seats import HELD_LABEL
from rayorch.core.errors import SpecError
from rayorch.core.payload import Payload
from rayorch.core.types import Kind, QueueId, Resources, Role, WorkloadId, WorkloadSpec

RUNNER = RunnerRef("runner/main/w/1", "rayorch", 10.0)


@pytest.fixture(autouse=True)
def user_code(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "served"))
    yield
    sys.modules.pop("echo_app", None)


def role(gpus: float = 1, name: str = "replica", most: int = 3) -> Role:
    return Role(name, Resources.of({"GPU": gpus}), 1, most)


def spec(import_path: str = "echo_app:app", deployment: str = "", bundle: Role | None = None, **args: Any) -> AppSpec:
    return AppSpec("w", import_path, ((bundle or role(), deployment),), args, {})


def build(import_path: str) -> tuple[Any, ...]:
    from ray.serve._private.build_app import build_app

    return tuple(build_app(load_application(spec(import_path)), name="w").deployments)


def test_the_only_deployment_with_gpus_holds_the_role() -> None:
    assert match_roles(spec(), build("echo_app:app")) == {"Model": role()}


def test_deployments_without_gpus_ride_along() -> None:
    two_gpus = role(gpus=2)
    assert match_roles(spec(bundle=two_gpus), build("echo_app:pair")) == {"Pair": two_gpus}


def test_a_replica_that_asks_more_than_its_role_is_refused() -> None:
    with pytest.raises(SpecError, match=r"roles\.replica: a replica of Pair asks"):
        match_roles(spec(), build("echo_app:pair"))


def test_gpus_without_a_role_are_refused() -> None:
    with pytest.raises(SpecError, match=r"\['Pair'\] ask for GPUs but have no role"):
        match_roles(spec(deployment="Front"), build("echo_app:pair"))


def test_an_unknown_deployment_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SpecError, match=r"'Mdoel' is not one of \['Model'\]"):
        match_roles(spec(deployment="Mdoel"), build("echo_app:app"))


def test_num_gpus_becomes_a_bundle_that_only_a_grant_can_place() -> None:
    deployment = granted(build("echo_app:app")[0], role(), spec(), 2, RUNNER)
    replica, config = deployment._replica_config, deployment._deployment_config
    assert replica.placement_group_bundles == [{"GPU": 1.0, "CPU": 0.5}]
    assert replica.placement_group_bundle_label_selector == [{HELD_LABEL: "by-grant"}]
    assert replica.ray_actor_options["num_gpus"] == 1
    scaling = config.autoscaling_config
    assert (scaling.min_replicas, scaling.initial_replicas, scaling.max_replicas) == (1, 2, 6)
    assert (scaling.upscale_delay_s, scaling.downscale_delay_s) == (0, 0)
    assert scaling.policy.policy_function == POLICY_PATH
    assert scaling.policy.policy_kwargs["runner"] == RUNNER.name


def test_bundles_and_selectors_of_the_user_stay() -> None:
    pair = next(d for d in build("echo_app:pair") if d.name == "Pair")
    pair = pair.options(placement_group_bundle_label_selector=[{"rack": "r1"}, {"rack": "r1"}])
    replica = granted(pair, role(gpus=2), spec(), 1, RUNNER)._replica_config
    assert replica.placement_group_bundles == [{"GPU": 1.0, "CPU": 0.1}, {"GPU": 1.0}]
    assert replica.placement_group_bundle_label_selector == [{"rack": "r1", HELD_LABEL: "by-grant"}] * 2
    assert replica.placement_group_strategy == "STRICT_PACK"


def test_what_the_grant_decides_can_not_be_asked_for() -> None:
    model = build("echo_app:app")[0]
    with pytest.raises(SpecError, match=r"deployments\.Model\.max_replicas_per_node"):
        granted(model.options(max_replicas_per_node=1), role(), spec(), 1, RUNNER)
    pair = next(d for d in build("echo_app:pair") if d.name == "Pair")
    with pytest.raises(SpecError, match=r"deployments\.Pair\.placement_group_strategy"):
        granted(pair.options(placement_group_strategy="STRICT_SPREAD"), role(gpus=2), spec(), 1, RUNNER)


def test_gangs_of_replicas_get_whole_gangs() -> None:
    gang = build("echo_app:app")[0].options(gang_scheduling_config={"gang_size": 2}, num_replicas=2)
    scaling = granted(gang, role(most=4), spec(), 3, RUNNER)._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.initial_replicas) == (2, 2)
    assert scaling.policy.policy_kwargs["gang_size"] == 2


@pytest.mark.parametrize("path", ["echo_app", ":app", "echo_app:nothing", "no_such_module:app", "echo_app:Model"])
def test_an_import_path_that_gives_no_application_is_refused(path: str) -> None:
    with pytest.raises(SpecError) as refused:
        load_application(spec(path))
    assert refused.value.field == "import_path"


def test_an_error_in_the_users_builder_is_told() -> None:
    with pytest.raises(SpecError, match="no model at /m"):
        load_application(spec("echo_app:broken", path="/m"))


def test_equal_applications_have_equal_versions() -> None:
    assert spec().version == spec().version != spec("echo_app:pair").version


def workload(payload: Payload, *roles: Role) -> WorkloadSpec:
    return WorkloadSpec(WorkloadId("w1"), "chat", Kind.SERVE, QueueId("q"), roles, payload=payload.to_text())


def test_a_workload_with_one_role_names_its_deployment_in_the_payload() -> None:
    made = app_spec(workload(Payload(import_path="m:app", deployment="Model", route_prefix="/chat"), role()))
    assert made == AppSpec("w1", "m:app", ((role(), "Model"),), {}, {}, "/chat")


def test_several_roles_are_named_after_their_deployments() -> None:
    one, two = role(name="Encoder"), role(name="Decoder")
    made = app_spec(workload(Payload(import_path="m:app", app_name="chat"), one, two))
    assert made.roles == ((one, "Encoder"), (two, "Decoder"))


@pytest.mark.parametrize("payload", [Payload(), Payload(import_path="m:app", app_name="a#b")])
def test_a_payload_that_serve_can_not_start_is_refused(payload: Payload) -> None:
    with pytest.raises(SpecError, match="payload"):
        app_spec(workload(payload, role()))
