"""Every private name of Ray Train that the adapter stands on, and how it is called. Red here: read Ray's change.

No cluster is needed. What only a running Train shows is in test_ray_train.py.
"""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.actor import _modify_class
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.constants import DEFAULT_STORAGE_PATH
from ray.train.v2._internal.callbacks.env_callback import _initialize_env_callbacks
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError
from ray.train.v2._internal.execution.callback import ControllerCallback, ReportCallback, WorkerGroupCallback
from ray.train.v2._internal.execution.callback_manager import CallbackManager
from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import CheckpointManager
from ray.train.v2._internal.execution.context import TrainContext
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.failure_handling import FailureDecision, create_failure_policy
from ray.train.v2._internal.execution.scaling_policy import NoopDecision, ResizeDecision, create_scaling_policy
from ray.train.v2._internal.execution.train_fn_utils import DistributedTrainFnUtils
from ray.train.v2._internal.execution.worker_group.placement_group_handle import PlacementGroupHandle
from ray.train.v2._internal.execution.worker_group.poll import WorkerStatus
from ray.train.v2._internal.execution.worker_group.worker import RayTrainWorker, Worker
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup
from ray.train.v2.api.exceptions import ControllerError, PreemptionError, WorkerGroupError
from ray.train.v2.api.preemption import PreemptionInfo
from ray.util.tracing.tracing_helper import _inject_tracing_into_class

from rayorch.adapters.ray_train import AttemptIds, AttemptStopped, GrantCallback
from rayorch.adapters.ray_train import controller as adapter
from rayorch.adapters.ray_train.seats import HeldSeats, HeldWorkerGroup, check_shape
from rayorch.adapters.ray_train.session import GrantSession
from rayorch.adapters.ray_train.workers import GrantNotice, GrantTrainWorker, NoticedStatus, NoticedTrainFnUtils
from rayorch.core.errors import SpecError
from rayorch.core.grants import Grant, Seat
from rayorch.core.types import Resources, StopCause, StopOrder, WorkloadId

IDS = AttemptIds("team/w", 1, "runner", storage_path="/mnt/runs")


def grant(seats: int, version: int = 1, stop: StopOrder | None = None, **amounts: float) -> Grant:
    bundle = Resources.of(amounts or {"GPU": 1})
    places = tuple(Seat("worker", k, "n", "ab" * 18, k, bundle) for k in range(seats))
    return Grant(WorkloadId("team/w"), 1, version, places, stop)


def session_with(held: Grant | None) -> GrantSession:
    session = GrantSession(lambda report: None)
    if held is not None:
        session.accept(held)
    return session


STOP = StopOrder(StopCause.PREEMPTED, "room", 1.0, 2.0)


# ---------------------------------------------------------------- signatures


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (
            TrainController.__init__,
            "self train_fn_ref train_run_context scaling_policy failure_policy callbacks validation_config",
        ),
        (TrainController._start, "self"),
        (TrainController._step, "self"),
        (TrainController._poll_workers, "self"),
        (TrainController._shutdown_worker_group, "self"),
        (
            TrainController._execute_failure_decision,
            "self failure_decision training_failed_error invoke_failure_decision_callbacks",
        ),
        (TrainController._is_training_succeeded, "worker_group_status"),
        (TrainController._make_and_handle_scaling_decision_for_non_running_worker_group, "self controller_state"),
        (WorkerGroup._start, "self"),
        (WorkerGroup._create_placement_group, "self scaling_config worker_group_context"),
        (
            WorkerGroup._create_workers,
            (
                "self num_workers placement_group resources_per_worker placement_group_bundle_indices "
                "starting_world_rank world_size replica_group_size"
            ),
        ),
        (WorkerGroup._get_worker_runtime_env, "custom_runtime_env"),
        (WorkerGroup._assign_worker_ranks, "workers starting_world_rank world_size replica_group_size"),
        (RayTrainWorker.mark_preempt, "self info"),
        (RayTrainWorker.poll_status, "self"),
        (RayTrainWorker.get_metadata, "self"),
        (DistributedTrainFnUtils.get_preemption_info, "self"),
        (
            DistributedTrainFnUtils.report,
            (
                "self metrics checkpoint checkpoint_dir_name checkpoint_upload_mode "
                "delete_local_checkpoint_after_upload checkpoint_upload_fn validation"
            ),
        ),
        (ReportCallback.after_report, "self training_report metrics"),
        (WorkerGroupCallback.after_worker_group_training_start, "self worker_group"),
        (ControllerCallback.after_controller_start, "self train_run_context"),
        (ControllerCallback.before_controller_shutdown, "self"),
        (PreemptionError.__init__, "self preemption_info drain_timed_out"),
    ],
    ids=lambda value: value.__qualname__ if callable(value) else "",
)
def test_signature(function: Callable[..., Any], parameters: str) -> None:
    assert list(inspect.signature(function).parameters) == parameters.split()


@pytest.mark.parametrize(
    ("cls", "fields"),
    [
        (WorkerStatus, "running error training_report return_value preemption_info"),
        (Worker, "actor metadata resources distributed_context log_file_path placement_group_bundle_index"),
        (PreemptionInfo, "deadline_ms preempted_node_to_ranks"),
    ],
)
def test_fields(cls: Any, fields: str) -> None:
    assert [f.name for f in dataclasses.fields(cls)] == fields.split()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (HeldSeats, PlacementGroupHandle),
        (adapter.GrantScalingPolicy, adapter.ScalingPolicy),
        (adapter.GrantFailurePolicy, adapter.FailurePolicy),
        (HeldWorkerGroup, WorkerGroup),
        (GrantTrainWorker, RayTrainWorker),
        (NoticedTrainFnUtils, DistributedTrainFnUtils),
    ],
)
def test_nothing_that_ray_leaves_open_is_missing(ours: type, theirs: type) -> None:
    assert issubclass(ours, theirs)
    assert not inspect.isabstract(ours)


@pytest.mark.parametrize("name", [n for n in vars(adapter.GrantController) if n.startswith("_") and n[1] != "_"])
def test_the_mixed_in_methods_override_something_with_the_same_nature(name: str) -> None:
    ours, theirs = vars(adapter.GrantController)[name], getattr(TrainController, name)
    assert inspect.iscoroutinefunction(ours) == inspect.iscoroutinefunction(theirs)


def test_names_used_on_instances_exist_in_ray_s_source() -> None:
    sources = {
        TrainController: (
            "self._scaling_policy", "self._failure_policy", "self._callbacks", "self._controller_callbacks",
            "self._worker_group_callbacks_to_propagate", "self._worker_group", "self.worker_group_cls.create",
            "self._health_check_interval_s", "self._checkpoint_manager", "self._run_config",
        ),
        WorkerGroup: ("self._train_run_context", "self._worker_cls", "pg_handle.wait(", "self._create_workers("),
        CheckpointManager: ("self._current_report_index",),
        TrainContext: ("report_call_index", "current_report_index"),
        CallbackManager: ("self._callbacks = callbacks",),
        RayTrainWorker: ("set_train_fn_utils(", "result_queue.get_nowait()"),
    }  # fmt: skip
    missing = [
        f"{cls.__name__}: {name}"
        for cls, names in sources.items()
        for name in names
        if name not in inspect.getsource(cls)
    ]
    assert missing == []


def test_train_calls_a_failing_start_retryable_and_lets_it_name_a_cause() -> None:
    error = ControllerError(WorkerGroupStartupFailedError("no"))
    assert isinstance(error.controller_failure, WorkerGroupStartupFailedError)
    assert WorkerGroupError("x", {0: ValueError("y")}).worker_failures.keys() == {0}


# ---------------------------------------------------------------- how we get in


def test_ray_makes_the_callback_from_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TRAIN_CALLBACKS", "rayorch.adapters.ray_train.GrantCallback")
    (callback,) = _initialize_env_callbacks()
    assert type(callback) is GrantCallback


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a callback patches in this process is put back."""
    monkeypatch.setattr(TrainController, "_start", TrainController._start)
    monkeypatch.setattr(RunConfig, "storage_context", RunConfig.__dict__["storage_context"])


@pytest.mark.usefixtures("restored")
def test_without_a_runner_the_callback_changes_nothing() -> None:
    start, storage = TrainController._start, RunConfig.__dict__["storage_context"]
    pickle.loads(pickle.dumps(GrantCallback()))
    assert TrainController._start is start
    assert RunConfig.__dict__["storage_context"] is storage


@pytest.mark.usefixtures("restored")
def test_unpickling_patches_the_class_that_ray_made_for_the_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RUNNER": "r", "WORKLOAD": "w", "ATTEMPT": "1"}.items():
        monkeypatch.setenv(f"RAYORCH_{name}", value)
    actor_class = _modify_class(TrainController)
    _inject_tracing_into_class(actor_class)
    sent = pickle.dumps(GrantCallback())
    before = actor_class._start
    callback = pickle.loads(sent)

    assert actor_class._start is not before
    stranger = SimpleNamespace(_callbacks=[])
    assert callback._session_of(stranger) is None, "a controller without our callback is left alone"


def plain_controller(scaling: ScalingConfig, failure: FailureConfig) -> Any:
    """A controller as far as `adopt` looks at it, made of Ray's own parts."""
    policy = create_scaling_policy(scaling)
    controller = TrainController.__new__(TrainController)
    cleaner, other = PlacementGroupCleanerCallback(), WorkerGroupCallback()
    controller._scaling_policy = policy
    controller._failure_policy = create_failure_policy(failure)
    controller._callbacks = [cleaner, other]
    controller._controller_callbacks = [policy, cleaner]
    controller._controller_callback_manager = CallbackManager(controller._controller_callbacks)
    controller._worker_group_callbacks_to_propagate = [cleaner, other]
    controller._health_check_interval_s = 2.0
    return controller


@pytest.mark.parametrize("workers", [2, (1, 3)])
def test_an_adopted_controller_is_sized_by_the_grant_and_has_no_group_cleaner(workers: int | tuple[int, int]) -> None:
    controller = plain_controller(ScalingConfig(num_workers=workers), FailureConfig())
    adapter.adopt(controller, session_with(None), IDS)

    assert isinstance(controller, adapter.GrantController) and isinstance(controller, TrainController)
    assert isinstance(controller._scaling_policy, adapter.GrantScalingPolicy)
    assert isinstance(controller._failure_policy, adapter.GrantFailurePolicy)
    assert controller._controller_callback_manager._callbacks == [controller._scaling_policy]
    everywhere = controller._callbacks + controller._worker_group_callbacks_to_propagate
    assert not [c for c in everywhere if isinstance(c, PlacementGroupCleanerCallback)]
    assert issubclass(controller.worker_group_cls, HeldWorkerGroup)
    assert controller._poll_s <= 0.5


# ---------------------------------------------------------------- size


def test_elastic_takes_what_is_granted_up_to_its_maximum() -> None:
    for seats, size in ((1, 1), (2, 2), (3, 3), (5, 3)):
        assert len(check_shape(ScalingConfig(num_workers=(1, 3), use_gpu=True), grant(seats))) == size


@pytest.mark.parametrize(
    ("config", "held", "message"),
    [
        (ScalingConfig(num_workers=4), grant(2), "num_workers: the script asks for exactly 4 .* holds 2 worker"),
        (ScalingConfig(num_workers=1), grant(2), "num_workers: the script asks for exactly 1 .* holds 2 worker"),
        (ScalingConfig(num_workers=(3, 4)), grant(2), "num_workers: the script asks for at least 3"),
        (ScalingConfig(num_workers=2, use_gpu=True), grant(2, CPU=1), "resources_per_worker: .*'GPU': 1.0"),
        (
            ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker={"CPU": 8, "GPU": 1}),
            grant(2, CPU=4, GPU=1),
            "resources_per_worker: .*'CPU': 8.0",
        ),
    ],
)
def test_a_script_that_does_not_match_its_grant_is_told_which_field(
    config: ScalingConfig, held: Grant, message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        check_shape(config, held)


def test_the_seat_supersedes_what_the_script_did_not_say() -> None:
    assert len(check_shape(ScalingConfig(num_workers=2), grant(2, GPU=1))) == 2


def policy_for(held: Grant | None, monkeypatch: pytest.MonkeyPatch, dead: tuple[str, ...] = ()) -> Any:
    monkeypatch.setattr(ray, "nodes", lambda: [{"NodeID": n, "Alive": n not in dead} for n in ("n", "m")])
    return adapter.GrantScalingPolicy(ScalingConfig(num_workers=2), session_with(held))


def test_the_policy_waits_without_a_grant_and_on_dead_nodes_and_raises_on_a_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decide = "make_decision_for_non_running_worker_group"
    assert isinstance(getattr(policy_for(None, monkeypatch), decide)(), NoopDecision)
    assert isinstance(getattr(policy_for(grant(2), monkeypatch, dead=("n",)), decide)(), NoopDecision)
    assert getattr(policy_for(grant(2), monkeypatch), decide)() == ResizeDecision(2, {"GPU": 1.0})
    with pytest.raises(AttemptStopped, match="preempted: room"):
        getattr(policy_for(grant(2, stop=STOP), monkeypatch), decide)()


def test_the_policy_never_speaks_to_the_autoscaling_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_for(grant(2), monkeypatch)
    policy.after_controller_start(None)
    policy.make_decision_for_non_running_worker_group()
    policy.make_decision_for_running_worker_group(None, None)
    policy.before_controller_abort()
    assert policy._coordinator_client is None


# ---------------------------------------------------------------- failures


def failure_policy(session: GrantSession) -> adapter.GrantFailurePolicy:
    return adapter.GrantFailurePolicy(create_failure_policy(FailureConfig(max_failures=0)), session)


USERS = WorkerGroupError("bug", {0: ValueError("bug")})
PREEMPTED = PreemptionError(PreemptionInfo(None, {}))


def test_the_users_own_failures_are_counted_by_the_users_own_limits() -> None:
    assert failure_policy(session_with(grant(2))).make_decision(USERS) is FailureDecision.RAISE


def test_preemptions_are_never_counted_however_many() -> None:
    inner = create_failure_policy(FailureConfig(max_failures=0, max_preemption_failures=0))
    policy = adapter.GrantFailurePolicy(inner, session_with(grant(2)))
    assert {policy.make_decision(PREEMPTED) for _ in range(50)} == {FailureDecision.RETRY}


def test_what_breaks_while_the_group_is_asked_to_move_is_not_the_users_failure() -> None:
    session = session_with(grant(2))
    session.begin(grant(2).seats)
    session.started(2)
    session.accept(grant(1, version=2))
    assert failure_policy(session).make_decision(USERS) is FailureDecision.RETRY


def test_a_stop_ends_fit_whatever_happens() -> None:
    assert failure_policy(session_with(grant(2, stop=STOP))).make_decision(PREEMPTED) is FailureDecision.RAISE


def test_starts_that_keep_failing_on_one_grant_end_fit() -> None:
    policy = failure_policy(session_with(grant(2)))
    error = ControllerError(WorkerGroupStartupFailedError("no"))
    decisions = [policy.make_decision(error) for _ in range(adapter.MAX_START_FAILURES)]
    assert decisions == [FailureDecision.RETRY] * (adapter.MAX_START_FAILURES - 1) + [FailureDecision.RAISE]


# ---------------------------------------------------------------- places of runs, and what crosses processes


def test_ray_s_default_name_is_known_as_such() -> None:
    assert re.fullmatch(adapter.DEFAULT_NAME, RunConfig().name or "")
    assert isinstance(RunConfig.__dict__["storage_context"], cached_property)


OWN = adapter.storage_name(IDS.workload)


@pytest.mark.parametrize(
    ("config", "fit_index", "expected"),
    [
        (RunConfig(), 0, (OWN, "/mnt/runs")),
        (RunConfig(), 1, (f"{OWN}@2", "/mnt/runs")),
        (RunConfig(name="mine"), 0, ("mine", f"/mnt/runs/{OWN}")),
        (RunConfig(storage_path="/data"), 0, (OWN, "/data")),
        (RunConfig(name="mine", storage_path="/data"), 1, ("mine", "/data")),
    ],
)
def test_a_run_without_a_place_gets_one_that_the_next_attempt_finds(
    config: RunConfig, fit_index: int, expected: tuple[str, str]
) -> None:
    adapter.settle_run_config(config, IDS, fit_index)
    assert (config.name, config.storage_path) == expected


def test_without_a_storage_path_ray_s_own_stays() -> None:
    config = RunConfig()
    adapter.settle_run_config(config, dataclasses.replace(IDS, storage_path=""), 0)
    assert config.storage_path == DEFAULT_STORAGE_PATH


@pytest.mark.parametrize(
    "value",
    [
        GrantNotice(5, {"n": [0]}, 3),
        NoticedStatus(running=True, polls=True, answers=True),
        AttemptStopped(PreemptionInfo(None, {}), True, "preempted: room"),
    ],
)
def test_what_crosses_processes_survives_it(value: Any) -> None:
    copy = pickle.loads(pickle.dumps(value))
    assert type(copy) is type(value)
    assert vars(copy) == vars(value)
    assert str(copy) == str(value)


def test_the_stock_poll_result_fits_into_ours() -> None:
    assert NoticedStatus(**vars(WorkerStatus(running=True)), polls=False, answers=True).running


def test_all_private_imports_of_the_adapter_are_covered_by_this_ray() -> None:
    """The package imports at all, and its metadata pins the release that these tests ran on."""
    pinned = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f">={'.'.join(ray.__version__.split('.')[:2])},<" in pinned
