"""Ray jobs that did not come through rayorch, read from the GCS: it also answers where the dashboard is off.

Two tables: submissions to Ray's own Jobs API are entries of its key-value store (ours never are: the gateway answers
that API itself), and drivers are rows of the job table, with the metadata that they were started with.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import Any

from ray._private import ray_constants
from ray._private import state as ray_state
from ray.dashboard.modules.job.common import JOB_ID_METADATA_KEY, JobInfoStorageClient
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_list

from rayorch.core.bypass import Bypass, whose
from rayorch.core.errors import ClusterError
from rayorch.core.types import GPU, Resources

log = logging.getLogger(__name__)

PREFIX = JobInfoStorageClient.JOB_DATA_KEY_PREFIX
ENDED = frozenset({"STOPPED", "SUCCEEDED", "FAILED"})
OUR_METADATA = "rayorch_workload"
INTERNAL_NAMESPACE = "_ray_internal_"
READ_AT_ONCE = 500
"""Ended submissions stay in Ray's store for ever. So many new ones are read in one look, the others in the next."""


class BypassFinder:
    """Remembers which submissions have ended: they are not read again. `our_namespace`: of our own drivers."""

    def __init__(self, our_namespace: str) -> None:
        self._ours = our_namespace
        self._ended: set[str] = set()
        self._alive: set[str] = set()

    def find(self, our_groups: frozenset[str]) -> tuple[Bypass, ...]:
        """What runs or waits now without us, sorted by start; `our_groups`: hex ids of our placement groups.

        Drivers that nobody submitted (a shell, a notebook) are listed only while their actors hold GPUs outside our
        groups, and so is whoever has ended and left such actors behind. ClusterError when Ray can't be read.
        """
        try:
            drivers = _drivers()
            held = _gpus_by_job(our_groups)
            found = self._submissions(drivers, held)
        except Exception as error:  # several unrelated classes while the GCS is away
            raise ClusterError(f"could not read Ray's jobs: {error}") from error
        listed = {bypass.id for bypass in found}
        found += [
            _of_driver(job_id, row, held[job_id])
            for job_id, row in drivers.items()
            if job_id in held and self._is_foreign(row)
            if row.config.metadata.get(JOB_ID_METADATA_KEY) not in listed
        ]
        return tuple(sorted(found, key=lambda b: (b.started_s, b.id)))

    def _is_foreign(self, row: Any) -> bool:
        """Neither ours nor Ray's own, as far as it says itself."""
        if OUR_METADATA in row.config.metadata:
            return False
        namespace = row.config.ray_namespace
        return namespace != self._ours and not namespace.startswith(INTERNAL_NAMESPACE)

    def _submissions(self, drivers: Mapping[str, Any], held: Mapping[str, Resources]) -> list[Bypass]:
        jobs_of: dict[str, list[str]] = {}
        for job_id, row in drivers.items():
            submission = row.config.metadata.get(JOB_ID_METADATA_KEY)
            if submission and OUR_METADATA not in row.config.metadata:
                jobs_of.setdefault(submission, []).append(job_id)
        keys = _internal_kv_list(PREFIX.encode(), namespace=ray_constants.KV_NAMESPACE_JOB)
        names = {key.decode()[len(PREFIX) :] for key in keys}
        self._ended &= names
        self._alive &= names
        found = []
        for name in [*sorted(self._alive), *sorted(names - self._ended - self._alive)[:READ_AT_ONCE]]:
            raw = _internal_kv_get(f"{PREFIX}{name}".encode(), namespace=ray_constants.KV_NAMESPACE_JOB)
            info = json.loads(raw) if raw else None
            if info is None:
                continue
            if info["status"] in ENDED:
                self._ended.add(name)
                self._alive.discard(name)
                continue
            self._alive.add(name)
            jobs = jobs_of.get(name, [])
            found.append(_of_submission(name, info, jobs, [held[job] for job in jobs if job in held]))
        return found


def _of_submission(name: str, info: Mapping[str, Any], jobs: list[str], held: list[Resources]) -> Bypass:
    metadata = {str(k): str(v) for k, v in (info.get("metadata") or {}).items()}
    address = str(info.get("driver_agent_http_address") or "").removeprefix("http://").rpartition(":")[0]
    gpus = Resources.of({GPU: float(info.get("entrypoint_num_gpus") or 0)})
    for amount in held:
        gpus = gpus + amount
    started_ms = info.get("start_time")
    return Bypass(
        id=name,
        entrypoint=str(info["entrypoint"]),
        who=whose(metadata, address),
        started_s=started_ms / 1000 if started_ms else time.time(),
        status=str(info["status"]),
        job_id=", ".join(jobs),
        held=gpus,
    )


def _of_driver(job_id: str, row: Any, held: Resources) -> Bypass:
    address = f"{row.driver_address.ip_address} (pid {row.driver_pid})"
    who = whose(dict(row.config.metadata), address)
    status = "ENDED" if row.is_dead else "RUNNING"
    return Bypass(job_id, row.entrypoint.strip(), who, row.start_time / 1000, status, job_id=job_id, held=held)


def _drivers() -> dict[str, Any]:
    """The job table by job id (hex)."""
    from ray.core.generated import gcs_pb2

    messages: Any = gcs_pb2
    accessor: Any = ray_state.state._connect_and_get_accessor()
    rows = accessor.get_job_table(skip_submission_job_info_field=True, skip_is_running_tasks_field=True)
    parsed = [messages.JobTableData.FromString(row) for row in rows]
    return {row.job_id.hex(): row for row in parsed}


def _gpus_by_job(our_groups: frozenset[str]) -> dict[str, Resources]:
    """GPUs that live actors hold outside our groups, by the job that they belong to."""
    from ray.core.generated import gcs_pb2

    messages: Any = gcs_pb2
    held: dict[str, Resources] = {}
    for row in ray_state.state._connect_and_get_accessor().get_actor_table(None, "ALIVE"):
        actor = messages.ActorTableData.FromString(row)
        gpus = actor.required_resources.get(GPU)
        if gpus and actor.placement_group_id.hex() not in our_groups:
            job = actor.job_id.hex()
            held[job] = held.get(job, Resources()) + Resources.of({GPU: gpus})
    return held
