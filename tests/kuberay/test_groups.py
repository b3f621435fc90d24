"""What the words of a RayCluster and of its pods mean, without a server."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayorch.adapters.kuberay.accelerators import MODELS, accelerator_model, is_spot, start_labels
from rayorch.adapters.kuberay.groups import GROUPS_ANNOTATION, node_groups, node_labels, offered
from rayorch.adapters.kuberay.instances import instances_of
from rayorch.adapters.kuberay.models import Pod, RayCluster, WorkerGroup, parse
from rayorch.adapters.kuberay.quantity import SUFFIXES, parse_quantity, whole
from rayorch.core.capacity import Instance, InstancePhase
from rayorch.core.errors import ClusterError
from tests.kuberay.objects import ray_cluster, worker_group
from tests.kuberay.store import Thing

Amounts = dict[str, float]


def group(**more: Any) -> WorkerGroup:
    return WorkerGroup.model_validate(worker_group(**more))


# ---------------------------------------------------------------- quantities


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", "1"),
        (4, "4"),
        (0.5, "0.5"),
        ("500m", "0.5"),
        ("1.5", "1.5"),
        (".5", "0.5"),
        ("2.", "2"),
        ("64Gi", str(64 * 2**30)),
        ("1e3", "1000"),
        ("1E3", "1000"),
        ("1E", str(10**18)),
        ("1Ei", str(2**60)),
        ("12E+2", "1200"),
        ("100n", "0.0000001"),
        ("+3k", "3000"),
    ],
)
def test_a_quantity_is_read_as_kubernetes_reads_it(text: str | int, value: str) -> None:
    assert parse_quantity(text) == Decimal(value)


@pytest.mark.parametrize(
    "text", ["", "x", "1x", "1 Gi", "Gi", "--1", "-1", "nan", "inf", "1e999", "1K", "1kI", "٣", True, "1" * 70, "0x10"]
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a quantity|is negative"):
        parse_quantity(text)


@given(st.integers(0, 10**9), st.sampled_from(sorted(SUFFIXES)))
def test_whole_rounds_up_and_never_by_one_or_more(number: int, suffix: str) -> None:
    exact = number * SUFFIXES[suffix]
    assert exact <= whole(f"{number}{suffix}") < exact + 1


# ---------------------------------------------------------------- what a node offers


@pytest.mark.parametrize(
    ("words", "amounts", "missing"),
    [
        ({"limits": {"cpu": "7500m", "memory": "1Gi", "nvidia.com/gpu": 8}}, {"CPU": 8, "memory": 2**30, "GPU": 8}, []),
        ({"limits": {"cpu": 4, "amd.com/gpu": "2"}}, {"CPU": 4, "GPU": 2}, []),
        ({"limits": {"cpu": 4, "google.com/tpu": "4"}}, {"CPU": 4, "TPU": 4}, []),
        ({"limits": {}}, {}, ["CPU"]),
        ({"limits": {"cpu": 4, "nvidia.com/gpu": "0"}}, {"CPU": 4}, []),
        ({"rayStartParams": {"num-cpus": "2", "num-gpus": "1"}}, {"CPU": 2, "GPU": 1}, []),
        ({"rayStartParams": {"num-gpus": "0"}}, {"CPU": 8}, []),
        ({"rayStartParams": {"resources": '"{\\"slot\\": 3}"'}}, {"CPU": 8, "GPU": 4, "slot": 3}, []),
        ({"rayStartParams": {"resources": "'{\"slot\": 3}'"}}, {"CPU": 8, "GPU": 4, "slot": 3}, []),
        ({"resources": {"CPU": "16", "slot": "2"}}, {"CPU": 16, "GPU": 4, "slot": 2}, []),
        (
            {"resources": {"GPU": "1"}, "rayStartParams": {"num-gpus": "8", "resources": '{"slot": 3}'}},
            {"CPU": 8, "GPU": 1},
            [],
        ),
    ],
)
def test_what_a_node_offers(words: Thing, amounts: Amounts, missing: list[str]) -> None:
    total, said = offered(group(**words))
    assert (total.to_floats(), said) == (amounts, missing)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"limits": {"cpu": "many"}}, "not a quantity: 'many'"),
        ({"limits": {"cpu": "-1"}}, "is negative"),
        ({"rayStartParams": {"num-gpus": "all"}}, "not a quantity: 'all'"),
        ({"rayStartParams": {"resources": "slot=1"}}, "rayStartParams.resources is not JSON"),
        ({"rayStartParams": {"resources": "[" * 100_000}}, "rayStartParams.resources is not JSON"),
        ({"rayStartParams": {"resources": '{"slot": "1"}'}}, "must be an object of numbers"),
        ({"rayStartParams": {"resources": '{"slot": -1}'}}, "must not be negative"),
        ({"rayStartParams": {"labels": "rack"}}, "not a list of label=value"),
        ({"resources": {"CPU": "1e99"}}, "CPU"),
    ],
)
def test_an_amount_that_is_none_is_named(words: Thing, named: str) -> None:
    cluster = RayCluster.model_validate(ray_cluster(worker_group("a"), worker_group("b", **words)))
    with pytest.raises(ClusterError) as unknown:
        node_groups(cluster, ())
    assert "workerGroupSpecs[1] (b)" in str(unknown.value)
    assert named in str(unknown.value)


def test_a_group_that_does_not_say_its_cpus_is_noted() -> None:
    view = node_groups(RayCluster.model_validate(ray_cluster(worker_group("a", limits={}))), ())
    assert view.notes == ("group a does not say its CPU: taken as none",)


def test_only_the_first_container_is_ray_s() -> None:
    raw = worker_group("a")
    raw["template"]["spec"]["containers"].append({"name": "x", "resources": {"limits": {"cpu": "64"}}})
    assert offered(WorkerGroup.model_validate(raw))[0].to_floats()["CPU"] == 8


# ---------------------------------------------------------------- labels


def test_a_group_s_own_labels_go_before_all_others() -> None:
    words = group(
        labels={"rack": "own"},
        selector={"rack": "selector", "zone": "z", "ray.io/accelerator-type": "L4"},
        rayStartParams={"labels": "rack=start, row=7"},
    )
    assert node_labels(words) == {
        "rack": "own",
        "row": "7",
        "zone": "z",
        "ray.io/accelerator-type": "L4",
        "ray.io/node-group": "gpu",
    }


@pytest.mark.parametrize(
    ("selector", "model"),
    [
        ({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, "H100"),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}, "A100"),
        ({"nvidia.com/gpu.product": "NVIDIA-GB200"}, "GB200"),
        ({"nvidia.com/gpu.product": "NVIDIA-L40S"}, "L40S"),
        ({"nvidia.com/gpu.product": "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"}, "RTX-PRO-6000"),
        ({"nvidia.com/gpu.product": "NVIDIA-GeForce-RTX-4090"}, ""),
        ({"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}, "T4"),
        ({"karpenter.k8s.aws/instance-gpu-name": "h200"}, "H200"),
        ({"ray.io/accelerator-type": "Some-New-Thing"}, "Some-New-Thing"),
        ({"zone": "h100"}, ""),
        ({}, ""),
    ],
)
def test_the_model_is_known_in_each_cloud_s_words(selector: dict[str, str], model: str) -> None:
    assert accelerator_model({}, selector) == model
    assert accelerator_model({"ray.io/accelerator-type": "B200"}, selector) == "B200"


def test_models_are_ray_s_names() -> None:
    from ray.util.accelerators import accelerators

    theirs = {value for name, value in vars(accelerators).items() if name.startswith("NVIDIA_")}
    assert set(MODELS) <= theirs


@pytest.mark.parametrize(
    ("labels", "spot"),
    [
        ({"cloud.google.com/gke-spot": "true"}, True),
        ({"eks.amazonaws.com/capacityType": "SPOT"}, True),
        ({"karpenter.sh/capacity-type": "spot"}, True),
        ({"kubernetes.azure.com/scalesetpriority": "spot"}, True),
        ({"ray.io/market-type": "spot"}, True),
        ({"ray.io/market-type": "on-demand"}, False),
        ({"cloud.google.com/gke-spot": "false", "name": "spot"}, False),
    ],
)
def test_spot_is_known_in_each_cloud_s_words(labels: dict[str, str], spot: bool) -> None:
    assert is_spot({}, labels) is spot


@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.from_regex(r"[a-z0-9]{0,8}", fullmatch=True)))
def test_start_labels_are_read_back(labels: dict[str, str]) -> None:
    assert start_labels(",".join(f"{key}={value}" for key, value in labels.items())) == labels


# ---------------------------------------------------------------- pods


def pod(name: str = "p", spec: Thing | None = None, meta: Thing | None = None, **status: Any) -> Pod:
    labels = {"ray.io/node-type": "worker", "ray.io/group": "gpu"}
    times = {"creationTimestamp": "2026-11-30T10:00:00Z"}
    return Pod.model_validate(
        {
            "metadata": {"name": name, "labels": labels, **times, **(meta or {})},
            "spec": spec or {"containers": [{"name": "ray"}]},
            "status": {"phase": "Running", **status},
        }
    )


def instance(one: Pod, **more: Any) -> Instance:
    (found,) = instances_of(group(**more), [one])
    return found


def condition(kind: str, status: str, **more: str) -> Thing:
    return {"type": kind, "status": status, **more}


READY = condition("Ready", "True", lastTransitionTime="2026-11-30T10:01:30Z")
CREATED_S = 1_796_032_800.0


def container(state: str, name: str = "ray", **words: Any) -> Thing:
    return {"name": name, "state": {state: words}}


@pytest.mark.parametrize(
    ("status", "phase", "reason"),
    [
        ({"phase": "Pending"}, "pending", ""),
        (
            {"phase": "Pending", "conditions": [condition("PodScheduled", "False", reason="SchedulingGated")]},
            "pending",
            "SchedulingGated",
        ),
        (
            {"phase": "Pending", "containerStatuses": [container("waiting", reason="ImagePullBackOff", message="no")]},
            "pending",
            "ImagePullBackOff: no",
        ),
        ({"conditions": [condition("Ready", "False")]}, "pending", "not ready"),
        ({"conditions": None, "containerStatuses": None}, "pending", "not ready"),
        ({"conditions": [READY]}, "running", ""),
        ({"conditions": [condition("Ready", "True")]}, "running", ""),
        ({"phase": "Failed", "reason": "Evicted", "message": "low"}, "failed", "Evicted: low"),
        (
            {"phase": "Failed", "containerStatuses": [container("terminated", reason="OOMKilled", exitCode=137)]},
            "failed",
            "OOMKilled (container ray, exit code 137)",
        ),
        ({"phase": "Succeeded"}, "failed", "the pod has succeeded"),
        ({"phase": "Unknown", "conditions": [condition("Ready", "Unknown")]}, "pending", ""),
    ],
)
def test_how_far_a_pod_has_come(status: Thing, phase: str, reason: str) -> None:
    found = instance(pod(**status))
    assert (found.phase.value, found.reason) == (phase, reason)
    assert found.created_s == CREATED_S
    assert found.ready_s == (CREATED_S + 90 if READY in (status.get("conditions") or ()) else None)


@pytest.mark.parametrize(("policy", "phase"), [("Never", "failed"), ("Always", "running"), ("OnFailure", "running")])
def test_a_container_that_ended_is_final_only_where_nothing_restarts_it(policy: str, phase: str) -> None:
    ended = [container("terminated", reason="Error", exitCode=1)]
    found = pod(
        spec={"containers": [{"name": "ray"}], "restartPolicy": policy}, conditions=[READY], containerStatuses=ended
    )
    assert instance(found).phase.value == phase


@pytest.mark.parametrize(
    ("restarts", "ready", "first_s"),
    [
        (0, "2026-11-30T10:01:30Z", 90),  # soon after its start
        (0, "2026-11-30T22:00:00Z", 60),  # lost and won back hours later: the start is the better guess
        (3, "2026-11-30T22:00:00Z", 30),  # restarted since: when the pod was initialised
        (3, "2026-11-30T10:02:00Z", 120),
    ],
)
def test_when_a_pod_was_ready_first(restarts: int, ready: str, first_s: float) -> None:
    start = "2026-11-30T10:01:00Z" if restarts == 0 else "2026-11-30T21:59:00Z"
    status = {**container("running", startedAt=start), "restartCount": restarts}
    conditions = [
        condition("Initialized", "True", lastTransitionTime="2026-11-30T10:00:30Z"),
        condition("Ready", "True", lastTransitionTime=ready),
    ]
    assert instance(pod(conditions=conditions, containerStatuses=[status])).ready_s == CREATED_S + first_s


def test_a_sidecar_that_ended_is_not_ray_s_end() -> None:
    ended = [container("terminated", name="logs", reason="Error", exitCode=1), container("running")]
    found = pod(
        spec={"containers": [{"name": "ray"}, {"name": "logs"}], "restartPolicy": "Never"},
        conditions=[READY],
        containerStatuses=ended,
    )
    assert instance(found).phase is InstancePhase.RUNNING


def test_what_is_being_deleted_or_named_for_it_is_leaving() -> None:
    assert instance(pod(meta={"deletionTimestamp": "2026-11-30T10:05:00Z"})).phase is InstancePhase.LEAVING
    assert instance(pod(), scaleStrategy={"workersToDelete": ["p"]}).phase is InstancePhase.LEAVING
    assert instance(pod(), scaleStrategy={"workersToDelete": None}).phase is InstancePhase.PENDING


def test_a_reason_is_kept_short() -> None:
    long = [condition("PodScheduled", "False", reason="Unschedulable", message="x" * 5000)]
    assert len(instance(pod(phase="Pending", conditions=long)).reason) == 300


def test_heads_and_cleaners_are_no_instances() -> None:
    cluster = RayCluster.model_validate(ray_cluster())
    others = [
        pod(kind, meta={"labels": {"ray.io/node-type": kind, "ray.io/group": "gpu"}})
        for kind in ("head", "redis-cleanup")
    ]
    view = node_groups(cluster, [*others, pod("w")])
    assert [found.name for found in view.groups[0].instances] == ["w"]
    assert view.notes == ()


# ---------------------------------------------------------------- what is not as it should be


def demo(*groups: object, **spec: object) -> Thing:
    return {"metadata": {"name": "demo"}, "spec": {"workerGroupSpecs": list(groups), **spec}}


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        ({}, "metadata: Field required"),
        (None, "the object"),
        ({"metadata": {"name": "demo"}, "spec": {"workerGroupSpecs": {}}}, "spec.workerGroupSpecs"),
        (demo(worker_group(), {"groupName": 3}), "workerGroupSpecs.1.groupName"),
        (demo(suspend="yes"), "spec.suspend"),
        (demo(worker_group(replicas="2")), "replicas"),
        (demo(worker_group(replicas=2.5)), "replicas"),
        (demo(worker_group(replicas=True)), "replicas"),
        (demo(worker_group(labels={"a": 1})), "labels.a"),
    ],
)
def test_a_malformed_object_is_named_by_its_fields(raw: object, named: str) -> None:
    with pytest.raises(ClusterError, match="RayCluster demo is malformed") as wrong:
        parse(RayCluster, raw, "RayCluster demo")
    assert named in str(wrong.value)


def test_unknown_fields_are_kuberay_s_own_affair() -> None:
    raw = ray_cluster(worker_group("gpu", 1, somethingNew={"a": 1}), alsoNew=True)
    assert node_groups(RayCluster.model_validate(raw), ()).groups[0].replicas == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "is not JSON"), ("[" * 100_000, "is not JSON"), ("[]", "must be an object"), ('{"gpu": 1}', "'gpu'")],
    ids=["cut", "deep", "list", "number"],
)
def test_an_annotation_that_cannot_be_read_leaves_capacity_unknown(text: str, said: str) -> None:
    raw = ray_cluster(worker_group("gpu", 1))
    raw["metadata"]["annotations"] = {GROUPS_ANNOTATION: text}
    with pytest.raises(ClusterError, match=said):
        node_groups(RayCluster.model_validate(raw), ())
