"""rayorch: a queue, gangs, fair shares and preemption for training and serving on one Ray cluster.

What is named here is public. Importing it is cheap: each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rayorch.client import connect
    from rayorch.client.connection import Client
    from rayorch.client.errors import (
        ConflictError,
        DeniedError,
        GangLostError,
        NotFoundError,
        UnreachableError,
        WorkloadCancelledError,
        WorkloadFailedError,
    )
    from rayorch.client.handle import WorkloadHandle, as_completed
    from rayorch.core.errors import AdmissionError, ClusterError, RayorchError, SpecError
    from rayorch.experiment import simulate

__version__ = "0.1.0"

_HOMES = {
    "connect": "rayorch.client",
    "Client": "rayorch.client.connection",
    "WorkloadHandle": "rayorch.client.handle",
    "as_completed": "rayorch.client.handle",
    "simulate": "rayorch.experiment",
    "RayorchError": "rayorch.core.errors",
    "SpecError": "rayorch.core.errors",
    "AdmissionError": "rayorch.core.errors",
    "ClusterError": "rayorch.core.errors",
    "ConflictError": "rayorch.client.errors",
    "DeniedError": "rayorch.client.errors",
    "GangLostError": "rayorch.client.errors",
    "NotFoundError": "rayorch.client.errors",
    "UnreachableError": "rayorch.client.errors",
    "WorkloadCancelledError": "rayorch.client.errors",
    "WorkloadFailedError": "rayorch.client.errors",
}

__all__ = [
    "AdmissionError",
    "Client",
    "ClusterError",
    "ConflictError",
    "DeniedError",
    "GangLostError",
    "NotFoundError",
    "RayorchError",
    "SpecError",
    "UnreachableError",
    "WorkloadCancelledError",
    "WorkloadFailedError",
    "WorkloadHandle",
    "as_completed",
    "connect",
    "get_job_submission_client_cluster_info",
    "simulate",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its home."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__})


def get_job_submission_client_cluster_info(
    address: str,
    *,
    create_cluster_if_needed: bool | None = False,
    cookies: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
    headers: dict[str, Any] | None = None,
    **_: Any,
) -> Any:
    """Where `rayorch://<queue>` leads; called by Ray's job client, which imports the module named like the scheme."""
    from rayorch.client.ray_scheme import cluster_info

    return cluster_info(address, cookies, metadata, headers)
