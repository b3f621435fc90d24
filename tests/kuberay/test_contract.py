"""What the adapter does with a RayCluster, on the fake API server and on the real one."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rayorch.actors.bypasses import ray_jobs_of
from rayorch.adapters.kuberay import (
    GROUPS_ANNOTATION,
    ApiError,
    ClusterState,
    KubeRayClient,
    KubeRaySettings,
    api,
    watch,
)
from rayorch.core.capacity import GroupName, NodeGroup
from rayorch.core.decisions import GroupChange
from rayorch.core.errors import AdmissionError, ClusterError, RayorchError, SpecError, StalePlanError
from tests.instance import eventually
from tests.kuberay.conftest import SPEEDS
from tests.kuberay.crd_server import CrdServer
from tests.kuberay.objects import ray_cluster, ray_job, worker_group
from tests.kuberay.store import Refused, Thing

CLUSTERS = "rayclusters"


def change(group: str, before: int, after: int, *instances: str) -> GroupChange:
    return GroupChange(GroupName(group), before, after, "because", instances=instances)


@pytest.fixture
def client(server: Any, tmp_path: Path) -> KubeRayClient:
    return KubeRayClient(server.settings(tmp_path))


def groups_of(state: ClusterState) -> dict[str, NodeGroup]:
    return {str(group.name): group for group in state.groups}


def spec_of(server: Any) -> list[Thing]:
    groups: list[Thing] = server.get(CLUSTERS, "demo")["spec"]["workerGroupSpecs"]
    return groups


def before_patch(client: KubeRayClient, edit: Callable[[], object]) -> None:
    """Let others change the cluster once, between our reading and our patch."""
    patch, edits = client.api.patch_cluster, [edit]

    def patched(operations: list[Thing]) -> Thing:
        if edits:
            edits.pop()()
        return patch(operations)

    client.api.patch_cluster = patched  # type: ignore[method-assign]


# ---------------------------------------------------------------- reading


def test_a_group_is_read_with_what_the_definition_fills_in(server: Any, client: KubeRayClient) -> None:
    group = worker_group("gpu", None, high=4)
    del group["minReplicas"]
    server.create(CLUSTERS, ray_cluster(group))
    state = client.observe()

    (shown,) = state.groups
    assert (shown.replicas, shown.min_replicas, shown.max_replicas, shown.hosts) == (0, 0, 4, 1)
    assert dict(shown.total.to_floats()) == {"CPU": 8.0, "GPU": 4.0}
    assert (state.in_tree, state.suspended) == (False, False)
    assert state.uid == server.get(CLUSTERS, "demo")["metadata"]["uid"]


def test_without_the_core_api_instances_are_unknown_and_the_groups_are_not(server: Any, client: KubeRayClient) -> None:
    server.core = False
    server.create(CLUSTERS, ray_cluster(worker_group("gpu", 3)))
    state = client.observe()

    assert state.groups[0].replicas == 3
    assert state.groups[0].instances == ()
    assert "could not list the pods: 404" in state.pods_error


def test_labels_model_and_spot_come_from_the_groups_own_words(server: Any, client: KubeRayClient) -> None:
    server.create(
        CLUSTERS,
        ray_cluster(
            worker_group("a", labels={"rack": "r1", "ray.io/accelerator-type": "A100"}, selector={"zone": "z1"}),
            worker_group("b", selector={"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}),
            worker_group("c", rayStartParams={"labels": "rack=r2,ray.io/market-type=spot", "num-gpus": "2"}),
        ),
    )
    found = groups_of(client.observe())

    assert (found["a"].label("rack"), found["a"].label("zone"), found["a"].model) == ("r1", "z1", "A100")
    assert found["b"].model == "H100"
    assert (found["c"].label("rack"), found["c"].spot, found["c"].total.to_floats()["GPU"]) == ("r2", True, 2.0)
    assert not found["a"].spot


def test_hints_come_from_the_annotation_and_from_the_groups_own_fields(server: Any, client: KubeRayClient) -> None:
    hints = '{"a": {"spares": 2, "idleSeconds": 90.5, "preference": 1}, "gone": {}}'
    server.create(
        CLUSTERS,
        ray_cluster(
            worker_group("a", idleTimeoutSeconds=600),
            worker_group("b", idleTimeoutSeconds=600, priority=5),
            annotations={GROUPS_ANNOTATION: hints},
        ),
    )
    state = client.observe()
    found = groups_of(state)

    assert (found["a"].spares, found["a"].idle_s, found["a"].preference) == (2, 90.5, 1)
    assert (found["b"].spares, found["b"].idle_s, found["b"].preference) == (0, 600.0, -5)
    assert any("'gone'" in note for note in state.notes)


@pytest.mark.parametrize(
    ("hints", "named"),
    [
        ("{", "not JSON"),
        ("[]", "an object"),
        ('{"gpu": {"spares": -1}}', "spares"),
        ('{"gpu": {"spare": 1}}', "spare"),
        ('{"gpu": {"idleSeconds": "long"}}', "idleSeconds"),
    ],
)
def test_a_wrong_hint_makes_the_capacity_unknown_and_is_named(
    server: Any, client: KubeRayClient, hints: str, named: str
) -> None:
    server.create(CLUSTERS, ray_cluster(annotations={GROUPS_ANNOTATION: hints}))
    with pytest.raises(ClusterError, match=named):
        client.observe()


def test_a_cluster_that_is_not_there_is_unknown(server: Any, client: KubeRayClient) -> None:
    for attempt in (client.observe, lambda: client.scale(change("gpu", 0, 1))):
        with pytest.raises(ClusterError, match="no RayCluster demo in namespace default"):
            attempt()


def test_another_cluster_of_the_same_name_is_refused(server: Any, client: KubeRayClient) -> None:
    server.create(CLUSTERS, ray_cluster())
    first = client.observe().uid
    server.delete(CLUSTERS, "demo")
    second = server.create(CLUSTERS, ray_cluster())["metadata"]["uid"]

    for attempt in (client.observe, lambda: client.scale(change("gpu", 1, 2))):
        with pytest.raises(ClusterError, match=f"{first} before, {second} now"):
            attempt()
    assert spec_of(server)[0]["replicas"] == 1


def test_two_groups_of_one_name_are_unknown(server: Any, client: KubeRayClient) -> None:
    server.create(CLUSTERS, ray_cluster(worker_group("a"), worker_group("a")))
    with pytest.raises(ClusterError, match="two worker groups are named a"):
        client.observe()


def test_a_group_that_vanishes_is_said_once(server: Any, client: KubeRayClient) -> None:
    server.create(CLUSTERS, ray_cluster(worker_group("a"), worker_group("b")))
    assert client.observe().notes == ()
    server.change(CLUSTERS, "demo", lambda thing: thing["spec"]["workerGroupSpecs"].pop())

    assert client.observe().notes == ("group b has vanished from the cluster",)
    assert client.observe().notes == ()


@pytest.mark.parametrize(
    ("group", "shown", "note"),
    [
        (worker_group("gpu", -1, low=2), (2, 2, 8), "asks for -1 replicas"),
        (worker_group("gpu", 1, low=2), (2, 2, 8), ""),
        (worker_group("gpu", 20), (8, 0, 8), ""),
        (worker_group("gpu", 4, low=5, high=3), (3, 3, 3), "minReplicas 5 is above maxReplicas 3"),
        (worker_group("gpu", 4, suspend=True), (0, 0, 0), "is suspended"),
        (worker_group("gpu", 4, low=-3, high=-1), (0, 0, 0), ""),
    ],
)
def test_odd_counts_are_read_as_the_operator_reads_them(
    server: Any, client: KubeRayClient, group: Thing, shown: tuple[int, int, int], note: str
) -> None:
    server.create(CLUSTERS, ray_cluster(group))
    state = client.observe()
    (found,) = state.groups

    assert (found.replicas, found.min_replicas, found.max_replicas) == shown
    assert note in " ".join(state.notes)
    assert bool(state.notes) == bool(note)


def test_a_suspended_cluster_offers_nothing(server: Any, client: KubeRayClient) -> None:
    server.create(CLUSTERS, ray_cluster(worker_group("gpu", 4, low=2), suspend=True))
    state = client.observe()

    assert state.suspended
    assert (state.groups[0].replicas, state.groups[0].min_replicas, state.groups[0].max_replicas) == (0, 0, 0)


def test_a_thousand_groups(server: Any, client: KubeRayClient) -> None:
    server.create(CLUSTERS, ray_cluster(*(worker_group(f"g{n:04}", 1) for n in range(1000))))
    assert len(client.observe().groups) == 1000
    client.scale(change("g0777", 1, 2))

    assert [group["groupName"] for group in spec_of(server) if group["replicas"] == 2] == ["g0777"]


def test_ray_jobs_of_this_cluster_are_known_by_their_submissions(server: Any, client: KubeRayClient) -> None:
    """By which a bypass gets its name."""
    for name in ("new", "sent", "chosen"):
        server.create("rayjobs", ray_job(name, **({"jobId": "own-id"} if name == "chosen" else {})))
    server.create("rayjobs", ray_job("elsewhere", cluster="other", jobId="elsewhere-1"))
    status = {"jobId": "sent-1", "jobStatus": "RUNNING", "rayClusterName": "demo"}
    server.change("rayjobs", "sent", lambda job: job.update(status=status), status=True)

    assert ray_jobs_of(client.settings)() == {"sent-1": "sent", "own-id": "chosen"}


@pytest.mark.parametrize("name", ["", "Demo", "a/b", "-a", "a b", "x" * 260, "demo,metadata.name=other"])
def test_names_that_kubernetes_does_not_have_are_refused(name: str) -> None:
    with pytest.raises(SpecError, match=r"kuberay\.cluster"):
        KubeRaySettings(cluster=name)


# ---------------------------------------------------------------- scaling


def test_a_growth_changes_one_count_and_nothing_else(server: Any, client: KubeRayClient) -> None:
    server.create(CLUSTERS, ray_cluster(worker_group("a", 2), worker_group("b", 2)))
    before = server.get(CLUSTERS, "demo")
    client.scale(change("b", 2, 5))
    after = server.get(CLUSTERS, "demo")

    assert [group["replicas"] for group in spec_of(server)] == [2, 5]
    before["spec"]["workerGroupSpecs"][1]["replicas"] = 5
    assert after["spec"] == before["spec"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"] + 1
    client.observe()  # the same cluster still


def test_a_shrink_names_exactly_the_pods_that_go(server: Any, client: KubeRayClient) -> None:
    server.core = False  # with pods: test_scaling.py
    server.create(CLUSTERS, ray_cluster(worker_group("gpu", 3), worker_group("other", 3)))
    client.scale(change("gpu", 3, 1, "demo-gpu-1", "demo-gpu-2"))
    gpu, other = spec_of(server)

    assert (gpu["replicas"], gpu["scaleStrategy"]) == (1, {"workersToDelete": ["demo-gpu-1", "demo-gpu-2"]})
    assert (other["replicas"], "scaleStrategy" in other) == (3, False)


def test_where_pods_are_unknown_earlier_names_stay(server: Any, client: KubeRayClient) -> None:
    server.core = False
    server.create(CLUSTERS, ray_cluster(worker_group("gpu", 3)))
    client.scale(change("gpu", 3, 2, "demo-gpu-1"))
    client.scale(change("gpu", 2, 1, "demo-gpu-2"))
    client.scale(change("gpu", 1, 2))

    assert spec_of(server)[0]["scaleStrategy"] == {"workersToDelete": ["demo-gpu-1", "demo-gpu-2"]}


def test_replicas_of_several_hosts_go_whole(server: Any, client: KubeRayClient) -> None:
    server.core = False
    server.create(CLUSTERS, ray_cluster(worker_group("gpu", 3, numOfHosts=2)))
    assert client.observe().groups[0].hosts == 2
    with pytest.raises(AdmissionError, match="names 1 pods where 2 go"):
        client.scale(change("gpu", 3, 2, "demo-gpu-1"))
    client.scale(change("gpu", 3, 2, "demo-gpu-1", "demo-gpu-2"))

    assert spec_of(server)[0]["replicas"] == 2


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (change("gpu", 2, 3), StalePlanError),  # it has 3
        (change("gpu", 3, 9), StalePlanError),  # above the maximum
        (change("gpu", 3, 0, "a", "b", "c"), StalePlanError),  # below the minimum
        (change("gpu", 3, 3), AdmissionError),  # no change
        (change("gone", 3, 4), AdmissionError),
        (change("gpu", 3, 2), AdmissionError),  # the operator would choose
        (change("gpu", 3, 2, "a", "b"), AdmissionError),  # one too many
        (change("gpu", 3, 1, "a", "a"), AdmissionError),  # twice the same
        (change("gpu", 3, 4, "a"), AdmissionError),  # a growth deletes nothing
    ],
)
def test_a_change_that_is_not_right_changes_nothing(
    server: Any, client: KubeRayClient, wanted: GroupChange, error: type[RayorchError]
) -> None:
    server.core = False
    before = server.create(CLUSTERS, ray_cluster(worker_group("gpu", 3, low=1)))
    with pytest.raises(error):
        client.scale(wanted)

    assert server.get(CLUSTERS, "demo")["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"enableInTreeAutoscaling": True}, "spec.enableInTreeAutoscaling"),
        ({"suspend": True}, "spec.suspend"),
        ({"managedBy": "kueue.x-k8s.io/multikueue"}, "spec.managedBy"),
    ],
)
def test_a_cluster_that_others_scale_is_refused(server: Any, client: KubeRayClient, spec: Thing, named: str) -> None:
    before = server.create(CLUSTERS, ray_cluster(worker_group("gpu", 1), **spec))
    with pytest.raises(AdmissionError) as refused:
        client.scale(change("gpu", 1, 2))

    assert refused.value.field == named
    assert server.get(CLUSTERS, "demo")["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    assert client.observe().in_tree == ("enableInTreeAutoscaling" in spec)


@pytest.mark.parametrize(
    ("group", "named"),
    [
        (worker_group("gpu", 1, suspend=True), "suspend"),
        (worker_group("gpu", 3, low=5, high=3), "minReplicas"),
    ],
)
def test_a_group_that_can_not_change_is_refused(server: Any, client: KubeRayClient, group: Thing, named: str) -> None:
    server.create(CLUSTERS, ray_cluster(group))
    with pytest.raises(AdmissionError) as refused:
        client.scale(change("gpu", client.observe().groups[0].replicas, 4))
    assert named in refused.value.field


def test_a_count_below_nothing_is_mended_by_the_next_growth(server: Any, client: KubeRayClient) -> None:
    server.create(CLUSTERS, ray_cluster(worker_group("gpu", -1)))
    client.scale(change("gpu", 0, 2))
    assert spec_of(server)[0]["replicas"] == 2


def test_a_group_without_a_count_grows(server: Any, client: KubeRayClient) -> None:
    server.create(CLUSTERS, ray_cluster(worker_group("gpu", None)))
    client.scale(change("gpu", 0, 2))
    assert spec_of(server)[0]["replicas"] == 2


def test_the_old_count_is_tested_by_the_server(server: Any, client: KubeRayClient) -> None:
    server.create(CLUSTERS, ray_cluster(worker_group("gpu", 1)))

    def others() -> None:
        server.change(CLUSTERS, "demo", lambda thing: thing["spec"]["workerGroupSpecs"][0].update(replicas=4))

    before_patch(client, others)
    with pytest.raises(StalePlanError, match="asks for 4 replicas, the decision was made on 1"):
        client.scale(change("gpu", 1, 2))
    assert spec_of(server)[0]["replicas"] == 4


def test_groups_that_change_places_are_not_mixed_up(server: Any, client: KubeRayClient) -> None:
    """The same count in both: only the test of the name keeps the patch from hitting the other group."""
    server.create(CLUSTERS, ray_cluster(worker_group("a", 1), worker_group("b", 1)))
    before_patch(
        client, lambda: server.change(CLUSTERS, "demo", lambda thing: thing["spec"]["workerGroupSpecs"].reverse())
    )
    client.scale(change("a", 1, 3))

    assert [(group["groupName"], group["replicas"]) for group in spec_of(server)] == [("b", 1), ("a", 3)]


def test_a_group_that_goes_meanwhile_is_not_patched(server: Any, client: KubeRayClient) -> None:
    server.create(CLUSTERS, ray_cluster(worker_group("a", 1), worker_group("b", 1)))
    before_patch(client, lambda: server.change(CLUSTERS, "demo", lambda thing: thing["spec"]["workerGroupSpecs"].pop()))
    with pytest.raises(AdmissionError, match="no group b any more"):
        client.scale(change("b", 1, 3))
    assert [(group["groupName"], group["replicas"]) for group in spec_of(server)] == [("a", 1)]


@pytest.mark.parametrize("before", [None, False])
def test_ray_s_autoscaler_switched_on_meanwhile_is_noticed(
    server: Any, client: KubeRayClient, before: bool | None
) -> None:
    spec = {} if before is None else {"enableInTreeAutoscaling": before}
    server.create(CLUSTERS, ray_cluster(worker_group("gpu", 1), **spec))
    before_patch(
        client,
        lambda: server.change(CLUSTERS, "demo", lambda thing: thing["spec"].update(enableInTreeAutoscaling=True)),
    )
    with pytest.raises(AdmissionError) as refused:
        client.scale(change("gpu", 1, 3))
    assert refused.value.field == "spec.enableInTreeAutoscaling"
    # A field that is not there can't be tested: then it is only noticed.
    assert spec_of(server)[0]["replicas"] == (3 if before is None else 1)


def test_a_cluster_replaced_meanwhile_is_not_patched(server: Any, client: KubeRayClient) -> None:
    server.create(CLUSTERS, ray_cluster(worker_group("gpu", 1)))

    def replace() -> None:
        server.delete(CLUSTERS, "demo")
        server.create(CLUSTERS, ray_cluster(worker_group("gpu", 1)))

    before_patch(client, replace)
    with pytest.raises(ClusterError, match="was replaced"):
        client.scale(change("gpu", 1, 3))
    assert spec_of(server)[0]["replicas"] == 1


def test_two_clients_change_one_count_once(server: Any, tmp_path: Path) -> None:
    server.create(CLUSTERS, ray_cluster(worker_group("gpu", 1)))
    outcomes: list[str] = []

    def attempt() -> None:
        try:
            KubeRayClient(server.settings(tmp_path)).scale(change("gpu", 1, 3))
            outcomes.append("done")
        except StalePlanError:
            outcomes.append("stale")

    threads = [threading.Thread(target=attempt) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(outcomes) == ["done", *["stale"] * 5]
    assert server.get(CLUSTERS, "demo")["metadata"]["generation"] == 2


def test_status_that_is_written_all_the_time_does_not_stop_a_change(server: Any, client: KubeRayClient) -> None:
    server.create(CLUSTERS, ray_cluster(worker_group("gpu", 1)))
    stop = threading.Event()

    def operator() -> None:
        count = 0
        while not stop.is_set():
            count += 1
            status = {"desiredWorkerReplicas": count}
            try:
                server.change(CLUSTERS, "demo", lambda thing, status=status: thing.update(status=status), status=True)
            except Refused as refused:
                assert refused.code == 409

    thread = threading.Thread(target=operator)
    thread.start()
    try:
        for count in range(1, 6):
            client.scale(change("gpu", count, count + 1))
    finally:
        stop.set()
        thread.join()
    assert spec_of(server)[0]["replicas"] == 6


# ---------------------------------------------------------------- watching


def test_changes_are_seen_until_the_watch_is_stopped(server: Any, client: KubeRayClient) -> None:
    server.create(CLUSTERS, ray_cluster(worker_group("gpu", 1)))
    news: list[ClusterState | ClusterError] = []
    stop = threading.Event()
    thread = threading.Thread(target=client.watch, args=(news.append, stop))
    thread.start()
    try:
        eventually("the first state", lambda: bool(news))
        client.scale(change("gpu", 1, 4))
        eventually("the growth", lambda: _replicas(news[-1]) == 4)
        server.delete(CLUSTERS, "demo")
        eventually("the end", lambda: "was deleted" in str(news[-1]))
        assert isinstance(news[-1], ClusterError)
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive()


def test_a_watch_from_a_version_long_gone_says_so(server: Any, client: KubeRayClient) -> None:
    """Either at once or as its first event; the watch lists again in both cases (test_watch.py)."""
    server.create(CLUSTERS, ray_cluster())
    if server.name == "fake":
        server.store.expire()
    never = threading.Event()
    follower = watch.Follower("cluster", client.api.list_clusters, client.api.watch_clusters, print, never)
    with pytest.raises(ApiError) as expired:
        follower._follow("1")
    assert expired.value.status == 410


def test_a_watch_ends_when_it_was_asked_to_and_brings_its_version_up_to_date(
    server: Any, client: KubeRayClient
) -> None:
    server.create(CLUSTERS, ray_cluster(worker_group("gpu", 1)))
    items, version = client.api.list_clusters()
    assert [item["metadata"]["name"] for item in items] == ["demo"]
    server.change(CLUSTERS, "demo", lambda thing: thing["spec"]["workerGroupSpecs"][0].update(replicas=2))
    server.create(CLUSTERS, ray_cluster(name="other"))
    events = [json.loads(line) for line in client.api.watch_clusters(version, 2).lines()]

    changes = [event for event in events if event["type"] != "BOOKMARK"]
    assert [(event["type"], event["object"]["metadata"]["name"]) for event in changes] == [("MODIFIED", "demo")]
    assert all(event["object"]["metadata"]["resourceVersion"] for event in events)


def test_a_server_that_hangs_is_unknown_and_then_known_again(real: CrdServer, tmp_path: Path) -> None:
    real.create(CLUSTERS, ray_cluster(worker_group("gpu", 1)))
    client = KubeRayClient(real.settings(tmp_path, connect_timeout_s=0.5, read_timeout_s=0.5))
    client.observe()
    with real.frozen():
        for attempt in (client.observe, lambda: client.scale(change("gpu", 1, 2))):
            with pytest.raises(ClusterError, match="could not read the RayCluster"):
                attempt()
    patient = KubeRayClient(real.settings(tmp_path))
    assert patient.observe().groups[0].replicas == 1
    patient.scale(change("gpu", 1, 2))
    assert spec_of(real)[0]["replicas"] == 2


def test_a_watch_whose_server_dies_without_a_word_is_unknown_in_the_end(
    real: CrdServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "WATCH_S", 1)
    monkeypatch.setattr(api, "SILENCE_S", 1.0)
    real.create(CLUSTERS, ray_cluster(worker_group("gpu", 1)))
    client = KubeRayClient(real.settings(tmp_path, connect_timeout_s=1.0, read_timeout_s=1.0))
    news: list[ClusterState | ClusterError] = []
    stop = threading.Event()
    thread = threading.Thread(target=client.watch, args=(news.append, stop))
    thread.start()
    try:
        eventually("the first state", lambda: bool(news))
        with real.frozen():
            eventually("the silence is noticed", lambda: isinstance(news[-1], ClusterError))
        real.change(CLUSTERS, "demo", lambda thing: thing["spec"]["workerGroupSpecs"][0].update(replicas=3))
        eventually("the growth", lambda: _replicas(news[-1]) == 3)
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive()


def _replicas(news: ClusterState | ClusterError) -> int:
    return -1 if isinstance(news, ClusterError) else news.groups[0].replicas


# ---------------------------------------------------------------- what both servers are


def test_bodies_are_checked_alike(server: Any) -> None:
    for wrong, code in (
        (ray_cluster(worker_group("gpu", "two")), 422),  # type: ignore[arg-type]
        ({**ray_cluster(), "spec": {"workerGroupSpecs": []}}, 422),
        (ray_cluster(worker_group("gpu", 1), headGroupSpec={}), 422),
        (ray_cluster(worker_group("gpu", 1, resources={"CPU": 4})), 422),
    ):
        with pytest.raises(Refused) as refused:
            server.create(CLUSTERS, wrong)
        assert refused.value.code == code
    with pytest.raises(Refused) as refused:
        server.create(CLUSTERS, ray_cluster(worker_group("gpu", 1, replica=2)), strict=True)
    assert refused.value.code == 400
    server.create(CLUSTERS, ray_cluster(worker_group("gpu", 1, replica=2)))
    assert "replica" not in spec_of(server)[0]  # dropped
    assert spec_of(server)[0]["numOfHosts"] == 1  # filled in


def test_an_update_of_an_older_version_conflicts(server: Any) -> None:
    old = server.create(CLUSTERS, ray_cluster())
    server.change(CLUSTERS, "demo", lambda thing: thing["spec"].update(rayVersion="2.61.0"))
    with pytest.raises(Refused) as refused:
        server.update(CLUSTERS, "demo", old)
    assert refused.value.code == 409


def test_status_is_written_apart_from_the_specification(server: Any) -> None:
    before = server.create(CLUSTERS, ray_cluster())
    server.change(CLUSTERS, "demo", lambda thing: thing.update(status={"state": "ready"}), status=True)
    server.change(CLUSTERS, "demo", lambda thing: thing.update(status={"state": "failed"}))
    after = server.get(CLUSTERS, "demo")

    assert after["status"]["state"] == "ready"
    assert after["metadata"]["generation"] == before["metadata"]["generation"]


def test_a_test_that_fails_is_unprocessable_and_a_list_is_no_merge_patch(
    server: Any, client: KubeRayClient, tmp_path: Path
) -> None:
    from kubernetes import client as kube
    from kubernetes import config

    loader: Any = config
    server.create(CLUSTERS, ray_cluster())
    with pytest.raises(ClusterError) as refused:
        client.api.patch_cluster([{"op": "test", "path": "/spec/workerGroupSpecs/0/replicas", "value": 7}])
    assert refused.value.status == 422  # type: ignore[attr-defined]
    with pytest.raises(ClusterError) as refused:
        client.api.patch_cluster([{"op": "test", "path": "/spec/suspend", "value": False}])
    assert refused.value.status == 422  # type: ignore[attr-defined]

    # What happens without the content type: why `api.py` always gives it.
    configuration = kube.Configuration()
    loader.load_kube_config(server.settings(tmp_path).kubeconfig, client_configuration=configuration)
    operations = [{"op": "replace", "path": "/spec/workerGroupSpecs/0/replicas", "value": 2}]
    with kube.ApiClient(configuration) as plain, pytest.raises(kube.exceptions.ApiException) as wrong:
        kube.CustomObjectsApi(plain).patch_namespaced_custom_object(
            "ray.io", "v1", "default", CLUSTERS, "demo", operations
        )
    assert wrong.value.status == 400


def test_how_long_a_patch_takes(server: Any, client: KubeRayClient, request: pytest.FixtureRequest) -> None:
    """Nothing is asserted about the time: the end of the run shows it."""
    server.create(CLUSTERS, ray_cluster(worker_group("gpu", 0, high=1000)))
    times: list[float] = []
    for count in range(60):
        began = time.perf_counter()
        client.scale(change("gpu", count, count + 1))
        times.append(time.perf_counter() - began)
    p50, worst = statistics.median(times), sorted(times)[-1]
    request.config.stash.setdefault(SPEEDS, []).append(
        f"{server.name}: {len(times)} changes (a read and a patch), p50 {p50 * 1e3:.1f} ms, worst {worst * 1e3:.1f} ms"
    )
    assert spec_of(server)[0]["replicas"] == 60
