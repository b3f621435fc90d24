"""Who came past the queues: recorded shapes of Ray's tables, contracts with its private names, and once for real."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from rayorch.adapters import ray_jobs_seen
from rayorch.adapters.ray_jobs_seen import BypassFinder
from rayorch.core.bypass import Bypass, in_words, of_ray_job, whose
from rayorch.core.errors import ClusterError
from rayorch.core.types import Resources
from tests.instance import eventually

OUR_GROUP = "0a" * 18

# As Ray 2.60 keeps it for `ray job submit --metadata-json '{"user": "eve"}' -- sleep 20` (key and value).
RECORDED = {
    "_ray_internal_job_info_straight": {
        "status": "RUNNING",
        "entrypoint": "sleep 20",
        "message": "Job is currently running.",
        "error_type": None,
        "start_time": 1796036067379,
        "end_time": None,
        "metadata": {"user": "eve"},
        "entrypoint_num_cpus": 0,
        "entrypoint_num_gpus": 0,
        "entrypoint_memory": 0,
        "entrypoint_resources": None,
        "driver_agent_http_address": "http://192.0.2.2:46747",
        "driver_node_id": "4e597f745a9984c008a73225da07124f962a4326fcb8efdbb60ecc12",
        "driver_exit_code": None,
        "runtime_env_json": "{}",
    }
}


class Tables:
    """Ray's three tables, as a test wants them."""

    def __init__(self) -> None:
        self.submissions: dict[str, dict[str, Any]] = {}
        self.drivers: dict[str, Any] = {}
        self.held: dict[str, Resources] = {}
        self.reads: list[str] = []

    def submit(self, name: str, **changes: Any) -> None:
        """A submission to Ray's own Jobs API, of the recorded shape."""
        recorded = RECORDED["_ray_internal_job_info_straight"]
        self.submissions[f"_ray_internal_job_info_{name}"] = {**recorded, **changes}

    def drive(self, job_id: str, namespace: str, metadata: Mapping[str, str] | None = None, dead: bool = False) -> None:
        """A driver."""
        from ray.core.generated import gcs_pb2

        messages: Any = gcs_pb2
        row = messages.JobTableData(job_id=bytes.fromhex(job_id), is_dead=dead, driver_pid=12, start_time=2_000)
        row.entrypoint = "python notebook.py"
        row.driver_address.ip_address = "192.0.2.9"
        row.config.ray_namespace = namespace
        row.config.metadata.update(metadata or {})
        self.drivers[job_id] = row


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Tables:
    """The finder reads these instead of a cluster's."""
    tables = Tables()

    def read(key: bytes, namespace: str) -> bytes | None:
        tables.reads.append(key.decode())
        info = tables.submissions.get(key.decode())
        return None if info is None else json.dumps(info).encode()

    monkeypatch.setattr(
        ray_jobs_seen, "_internal_kv_list", lambda _, namespace: [k.encode() for k in tables.submissions]
    )
    monkeypatch.setattr(ray_jobs_seen, "_internal_kv_get", read)
    monkeypatch.setattr(ray_jobs_seen, "_drivers", lambda: tables.drivers)
    monkeypatch.setattr(ray_jobs_seen, "_gpus_by_job", lambda _: tables.held)
    return tables


def _find(finder: BypassFinder | None = None) -> tuple[Bypass, ...]:
    return (finder or BypassFinder("rayorch")).find(frozenset({OUR_GROUP}))


def test_a_submission_to_rays_own_api_is_a_bypass_with_whose_it_is(tables: Tables) -> None:
    tables.submit("straight", entrypoint_num_gpus=2)
    (found,) = _find()
    assert (found.id, found.who, found.entrypoint, found.status) == ("straight", "eve", "sleep 20", "RUNNING")
    assert (found.started_s, found.held) == (1796036067.379, Resources.of({"GPU": 2}))
    assert in_words(found) == "Ray job straight came past the queues: eve, 2 GPUs: sleep 20"


def test_what_its_actors_hold_is_added(tables: Tables) -> None:
    tables.submit("straight", metadata={})
    tables.drive("0a000000", "ns", {"job_submission_id": "straight"})
    tables.held["0a000000"] = Resources.of({"GPU": 3})
    (found,) = _find()
    assert (found.job_id, found.held, found.who) == ("0a000000", Resources.of({"GPU": 3}), "a driver at 192.0.2.2")


def test_ended_submissions_are_no_news_and_are_read_once(tables: Tables) -> None:
    finder = BypassFinder("rayorch")
    tables.submit("waits", status="PENDING", start_time=None)
    for name, status in (("a", "SUCCEEDED"), ("b", "FAILED"), ("c", "STOPPED")):
        tables.submit(name, status=status)
    assert [found.id for found in _find(finder)] == ["waits"]
    tables.reads.clear()
    assert [found.id for found in _find(finder)] == ["waits"]
    assert tables.reads == ["_ray_internal_job_info_waits"]
    tables.submissions["_ray_internal_job_info_waits"]["status"] = "SUCCEEDED"
    assert _find(finder) == ()


def test_many_old_submissions_are_read_over_several_looks(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_jobs_seen, "READ_AT_ONCE", 10)
    finder = BypassFinder("rayorch")
    for number in range(25):
        tables.submit(f"old{number:02}", status="SUCCEEDED")
    tables.submit("zz-runs")
    assert [_find(finder) for _ in range(2)] == [(), ()]
    assert [found.id for found in _find(finder)] == ["zz-runs"]
    assert len(tables.reads) == 26


@pytest.mark.parametrize(
    ("namespace", "metadata"),
    [
        ("rayorch", {}),  # our server, which owns the runners and all that they start by themselves
        ("_ray_internal_dashboard", {}),
        ("ns", {"rayorch_workload": "w", "job_submission_id": "w"}),  # a command of ours
    ],
)
def test_our_own_drivers_and_rays_are_none(tables: Tables, namespace: str, metadata: dict[str, str]) -> None:
    tables.drive("01000000", namespace, metadata)
    tables.held["01000000"] = Resources.of({"GPU": 8})
    assert _find() == ()


def test_a_driver_that_nobody_submitted_is_one_while_it_holds_gpus(tables: Tables) -> None:
    tables.drive("05000000", "ns")
    assert _find() == ()
    tables.held["05000000"] = Resources.of({"GPU": 1})
    (found,) = _find()
    assert (found.id, found.who, found.started_s) == ("05000000", "a driver at 192.0.2.9 (pid 12)", 2.0)
    tables.held.clear()
    assert _find() == ()


def test_whoever_left_actors_with_gpus_behind_is_still_one(tables: Tables) -> None:
    """A detached actor outlives its driver, submitted or not."""
    tables.submit("gone", status="SUCCEEDED")
    tables.drive("05000000", "ns", dead=True)
    tables.drive("06000000", "ns", {"job_submission_id": "gone", "job_name": "gone"}, dead=True)
    tables.held |= {"05000000": Resources.of({"GPU": 1}), "06000000": Resources.of({"GPU": 2})}
    assert [(found.id, found.status) for found in _find()] == [("05000000", "ENDED"), ("06000000", "ENDED")]
    assert _find()[1].who == "gone"


def test_metadata_does_not_hide_a_submission(tables: Tables) -> None:
    tables.submit("sly", metadata={"rayorch_workload": "w", "rayorch.queue": "research"})
    assert [found.id for found in _find()] == ["sly"]


def test_tables_that_cannot_be_read_are_an_error_and_not_an_empty_answer(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Any, namespace: str) -> list[bytes]:
        raise RuntimeError("the GCS is away")

    monkeypatch.setattr(ray_jobs_seen, "_internal_kv_list", broken)
    with pytest.raises(ClusterError, match="the GCS is away"):
        _find()


def test_the_best_name_is_taken() -> None:
    assert whose({"job_name": "j", "user": "u"}, "10.0.0.1") == "u"
    assert whose({"user": ""}, "10.0.0.1") == "a driver at 10.0.0.1"
    assert whose({}, "") == "unknown"
    assert of_ray_job(Bypass("j", "true", "unknown", 1.0), "nightly").who == "RayJob nightly"
    assert of_ray_job(Bypass("j", "true", "u", 1.0), "nightly").who == "RayJob nightly (u)"
    assert of_ray_job(Bypass("j", "true", "u", 1.0), "").who == "u"


def test_rays_private_names_are_what_they_were() -> None:
    from ray import _raylet
    from ray._private import ray_constants
    from ray.core.generated import gcs_pb2
    from ray.dashboard.modules.job.common import JobInfo, JobStatus

    assert ray_jobs_seen.PREFIX == "_ray_internal_job_info_"
    assert getattr(_raylet, "RAY_INTERNAL_NAMESPACE_PREFIX") == ray_jobs_seen.INTERNAL_NAMESPACE  # noqa: B009
    assert ray_constants.KV_NAMESPACE_JOB is not None
    terminal = {status.value for status in JobStatus if status.is_terminal()}
    assert terminal == ray_jobs_seen.ENDED
    info: Any = JobInfo(status=JobStatus.RUNNING, entrypoint="x", start_time=1, metadata={"a": "b"})
    assert set(info.to_json()) - {"runtime_env_json"} <= set(RECORDED["_ray_internal_job_info_straight"])
    messages: Any = gcs_pb2
    row = messages.JobTableData(job_id=b"\\1\\0\\0\\0")
    assert hasattr(row.config, "ray_namespace") and hasattr(row.config, "metadata") and hasattr(row, "driver_pid")


@pytest.mark.ray
def test_a_job_sent_straight_to_rays_dashboard_is_found(ray_cluster: Callable[..., Any]) -> None:
    """`ray job submit` past the gateway, on a real cluster: it and its GPU, and nothing of this test's own driver."""
    import ray
    from ray.job_submission import JobSubmissionClient

    ray_cluster(nodes=1, gpus=2, include_dashboard=True, dashboard_port=0)
    finder = BypassFinder("rayorch")
    assert finder.find(frozenset()) == ()
    address = ray.worker.get_dashboard_url()
    client = JobSubmissionClient(f"http://{address}")
    client.submit_job(entrypoint="sleep 300", submission_id="straight", metadata={"user": "eve"}, entrypoint_num_gpus=1)
    (found,) = eventually("the job is seen", lambda: finder.find(frozenset()))
    assert (found.id, found.who, found.entrypoint, found.held) == (
        "straight",
        "eve",
        "sleep 300",
        Resources.of({"GPU": 1}),
    )
    client.stop_job("straight")
    eventually("it is gone", lambda: not finder.find(frozenset()))
