"""What the Serve adapter takes from Ray under private names. A failure here means: Ray changed, read docs/serve.md."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest
from ray.serve._private import (
    api,
    application_state,
    autoscaling_state,
    build_app,
    client,
    common,
    constants,
    controller,
    default_impl,
    deployment_scheduler,
    deployment_state,
)
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from rayorch.adapters.ray_serve import CALLBACK_VARIABLE, GrantPolicy, seats
from rayorch.adapters.ray_serve import table as table_module
from rayorch.adapters.ray_serve.builder import requests_of
from rayorch.adapters.ray_serve.policy import POLICY_PATH
from rayorch.adapters.ray_serve.scheduler import GrantScheduler, create_scheduler


def parameters(function: Any) -> list[str]:
    """What a caller may name. Ray adds a parameter of its own to a class that has once been made an actor."""
    return [name for name in inspect.signature(function).parameters if name != "_ray_trace_ctx"]


def test_the_scheduler_is_made_through_the_module_that_we_change() -> None:
    assert "default_impl.create_deployment_scheduler(" in inspect.getsource(deployment_state.DeploymentStateManager)
    assert parameters(default_impl.create_deployment_scheduler) == parameters(create_scheduler)
    assert parameters(default_impl._default_create_placement_group) == ["request"]


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("__init__", ["self", "cluster_node_info_cache", "head_node_id", "create_placement_group_fn"]),
        (
            "_schedule_replica",
            ["self", "scheduling_request", "default_scheduling_strategy", "target_node_id", "target_labels"],
        ),
        ("_prepare_gangs_for_deployment", ["self", "deployment_id", "request"]),
        ("schedule_gang_placement_groups", ["self", "gang_requests"]),
        (
            "_get_replicas_to_stop",
            ["self", "deployment_id", "max_num_to_stop", "gang_id_by_replica", "replicas_by_gang_id", "gang_size"],
        ),
        ("on_deployment_deleted", ["self", "deployment_id"]),
    ],
)
def test_the_methods_that_we_override(method: str, expected: list[str]) -> None:
    assert parameters(getattr(deployment_scheduler.DeploymentScheduler, method)) == expected
    assert method in vars(GrantScheduler)


def test_the_scheduler_keeps_replicas_by_deployment() -> None:
    class NoNodes:
        def get_active_node_ids(self) -> set[str]:
            return set()

    made = deployment_scheduler.DeploymentScheduler(NoNodes(), "head", lambda request: None)  # type: ignore[arg-type]
    for name in ("_pending_replicas", "_launching_replicas", "_running_replicas", "_recovering_replicas"):
        assert not getattr(made, name)
    assert made._deployments == {}


def test_every_turn_of_the_control_loop_schedules_what_is_pending() -> None:
    update = inspect.getsource(deployment_state.DeploymentStateManager.update)
    assert "self._deployment_scheduler.schedule(" in update
    spread = inspect.getsource(deployment_scheduler.DeploymentScheduler._schedule_with_spread_strategy)
    assert "self._pending_replicas" in spread and "self._schedule_replica(" in spread
    failures = inspect.getsource(deployment_state.DeploymentStateManager._handle_scheduling_request_failures)
    assert "PLACEMENT_GROUP_CREATION_FAILED" in failures and "IN_PROGRESS" not in failures
    ready = inspect.getsource(deployment_state.ActorReplicaWrapper.check_ready)
    assert "if self._allocated_obj_ref is None" in ready


def test_requests_for_groups_carry_what_we_read() -> None:
    request = {field.name for field in dataclasses.fields(common.CreatePlacementGroupRequest)}
    assert {"bundles", "strategy", "name", "bundle_label_selector"} <= request
    gang = {field.name for field in dataclasses.fields(common.GangPlacementGroupRequest)}
    assert {"gang_size", "num_replicas_to_add", "replica_pg_bundle_label_selector"} <= gang
    scheduling = {field.name for field in dataclasses.fields(deployment_scheduler.ReplicaSchedulingRequest)}
    assert {"replica_id", "gang_placement_group", "placement_group_bundle_label_selector"} <= scheduling


def test_groups_are_named_as_we_read_them() -> None:
    replica = common.ReplicaID("x1", common.DeploymentID(name="Model", app_name="chat"))
    assert seats.deployment_of(replica.to_full_id_str(), "chat") == "Model"
    assert common.GANG_PG_NAME_PREFIX == seats.GANG_PREFIX
    gang = inspect.getsource(deployment_scheduler.DeploymentScheduler._prepare_gangs_for_deployment)
    for part in ('f"{GANG_PG_NAME_PREFIX}{deployment_id.app_name}"', 'f"_{deployment_id.name}"', "_{gang_id}"):
        assert part in gang


def test_a_recovered_replica_finds_its_group_by_its_own_name() -> None:
    recover = inspect.getsource(deployment_state.ActorReplicaWrapper.recover)
    assert "ray.util.get_placement_group(\n                self._actor_name" in recover


def test_recovery_constructs_the_policy_again() -> None:
    recover = inspect.getsource(deployment_state.DeploymentState.recover_target_state_from_checkpoint)
    assert "register_deployment(" in recover
    assert "raw(**policy.policy_kwargs)" in inspect.getsource(autoscaling_state._resolve_policy_callable)


def test_serve_takes_the_policy_by_its_path_and_hands_it_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_module.GrantTable()
    monkeypatch.setattr(table, "_follow", lambda app: None)
    monkeypatch.setattr(table, "_observe_loop", lambda: None)
    monkeypatch.setattr(table_module, "TABLE", table)
    names = {"app": "chat", "deployment": "Model", "role": "replica", "runner": "r", "namespace": "n", "lease_s": 1.0}
    policy: Any = autoscaling_state._resolve_policy_callable(
        AutoscalingPolicy(policy_function=POLICY_PATH, policy_kwargs=names)
    )
    assert type(policy).__name__ == GrantPolicy.__name__
    context = AutoscalingContext(
        deployment_id=common.DeploymentID(name="Model", app_name="chat"),
        deployment_name="Model",
        app_name="chat",
        current_num_replicas=1,
        target_num_replicas=2,
        running_replicas=[],
        total_num_requests=lambda: 5.5,
        total_queued_requests=lambda: 1.2,
        aggregated_metrics=None,
        raw_metrics=None,
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=4,
        policy_state={},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=0.0,
        config=AutoscalingConfig(max_replicas=4, target_ongoing_requests=3),
    )
    assert policy(context) == (2, {}), "no grant is known, so the target stays"
    assert table._apps["chat"].demand == {"Model": (4, 2, 3.0)}


def test_the_callback_is_named_by_the_variable_that_serve_reads() -> None:
    source = inspect.getsource(constants)
    assert f'"{CALLBACK_VARIABLE}"' in source
    init = inspect.getsource(controller.ServeController.__init__)
    called = init.index("call_function_from_import_path(RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH)")
    assert called < init.index("DeploymentStateManager(")


def test_the_controller_answers_what_we_ask() -> None:
    assert parameters(controller.ServeController.delete_apps) == ["self", "names"]
    assert parameters(controller.ServeController.check_alive) == ["self"]
    assert "source" in parameters(controller.ServeController.get_serve_instance_details)
    assert (constants.SERVE_CONTROLLER_NAME, constants.SERVE_NAMESPACE) == ("SERVE_CONTROLLER_ACTOR", "serve")


def test_deploying_through_the_client_touches_one_application() -> None:
    deploy = parameters(client.ServeControllerClient.deploy_applications)
    assert deploy == ["self", "built_apps", "wait_for_ingress_deployment_creation", "wait_for_applications_running"]
    ours = inspect.getsource(application_state.ApplicationStateManager.deploy_apps)
    assert "for name, deployment_args in name_to_deployment_args.items()" in ours and "delete" not in ours
    assert {"name", "route_prefix", "default_runtime_env"} <= set(parameters(build_app.build_app))
    assert "deployments" in {field.name for field in dataclasses.fields(build_app.BuiltApplication)}
    assert parameters(api.call_user_app_builder_with_args_if_necessary) == ["builder", "args"]


def test_a_deployment_carries_what_we_read() -> None:
    from ray import serve

    class Model:
        pass

    made: Any = serve.deployment(Model, ray_actor_options={"num_gpus": 1, "num_cpus": 2, "memory": 100})
    (bundle,) = requests_of(made)
    assert bundle.to_floats() == {"CPU": 2.0, "GPU": 1.0, "memory": 100.0}
    replica, config = made._replica_config, made._deployment_config
    for name in ("placement_group_strategy", "placement_group_bundle_label_selector", "max_replicas_per_node"):
        assert getattr(replica, name) is None
    assert config.gang_scheduling_config is None and config.autoscaling_config is None
    assert made.options(version="v", _internal=True).version == "v"
