"""RayJobs of the cluster: which commands KubeRay submits to it, and through which queue, if any."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rayorch.adapters.kuberay.instances import POD_CLUSTER
from rayorch.adapters.kuberay.models import RayJob

QUEUE_KEY = "rayorch.queue"  # in the metadata of the job, as `ray job submit --metadata-json` has it
QUEUE_LABEL = "rayorch.io/queue"  # there as well, or on the object
OVER = ("Complete", "Failed", "ValidationFailed")


@dataclass(frozen=True, slots=True)
class JobView:
    """A RayJob. `job_id`: Ray's submission id, empty before it was submitted.

    `queue`: from the job's metadata (`rayorch.queue`, `rayorch.io/queue`) or the object's label; empty without any.
    `status`: Ray's word (RUNNING); `deployment_status`: KubeRay's (Running, Suspended); both empty at first.
    """

    name: str
    job_id: str
    queue: str
    status: str
    deployment_status: str
    submission_mode: str
    entrypoint: str
    suspended: bool
    created_s: float
    labels: tuple[tuple[str, str], ...] = ()
    metadata: tuple[tuple[str, str], ...] = ()

    @property
    def over(self) -> bool:
        """Whether KubeRay has finished with it."""
        return self.deployment_status in OVER


def jobs_of(jobs: Iterable[RayJob], cluster: str) -> tuple[JobView, ...]:
    """Those that run on a cluster or select it, sorted by name."""
    return tuple(sorted((_view(job) for job in jobs if cluster in _clusters(job)), key=lambda view: view.name))


def _clusters(job: RayJob) -> tuple[str, ...]:
    return (job.status.ray_cluster_name, job.spec.cluster_selector.get(POD_CLUSTER, ""))


def _view(job: RayJob) -> JobView:
    meta, said = job.metadata, job.spec.metadata
    named = (said.get(QUEUE_KEY), said.get(QUEUE_LABEL), meta.labels.get(QUEUE_LABEL))
    return JobView(
        name=meta.name,
        job_id=job.status.job_id or job.spec.job_id,
        queue=next((queue for queue in named if queue), ""),
        status=job.status.job_status,
        deployment_status=job.status.job_deployment_status,
        submission_mode=job.spec.submission_mode,
        entrypoint=job.spec.entrypoint,
        suspended=job.spec.suspend,
        created_s=meta.creation_timestamp.timestamp() if meta.creation_timestamp else 0.0,
        labels=tuple(sorted(meta.labels.items())),
        metadata=tuple(sorted(job.spec.metadata.items())),
    )
