"""Work on the cluster that came past the queues: Ray allows it to whoever reaches it, so it is found and shown.

It takes its GPUs without a grant. The inventory subtracts them (`NodeSpec.foreign`); here is who it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rayorch.core.types import Resources

NOTHING = Resources()
UNKNOWN = "unknown"
WHO_KEYS = ("user", "owner", "submitter", "username", "job_name")
"""Metadata that people give their jobs and that may say whose it is, the best first."""


@dataclass(frozen=True, slots=True)
class Bypass:
    """One Ray job that is not ours. `id`: its submission id, else Ray's job id.

    `who`: whose it is, as far as its metadata or its driver's address says. `started_s` [s since the epoch].
    `held`: the GPUs that its entrypoint and its actors take outside our grants (the GCS does not list tasks).
    """

    id: str
    entrypoint: str
    who: str
    started_s: float
    status: str = "RUNNING"
    job_id: str = ""
    held: Resources = NOTHING


def whose(metadata: Mapping[str, str], address: str) -> str:
    """The name that its metadata gives, else where its driver runs."""
    for key in WHO_KEYS:
        if metadata.get(key):
            return metadata[key]
    return f"a driver at {address}" if address else UNKNOWN


def of_ray_job(bypass: Bypass, name: str) -> Bypass:
    """The same with the RayJob whose submission it is added to whose it is; `name` empty: of none."""
    if not name:
        return bypass
    return replace(bypass, who=f"RayJob {name}" if bypass.who == UNKNOWN else f"RayJob {name} ({bypass.who})")


def in_words(bypass: Bypass) -> str:
    """One line for a log or a warning."""
    gpus = bypass.held.to_floats().get("GPU", 0.0)
    holding = f", {gpus:g} GPUs" if gpus else ""
    return (
        f"Ray job {bypass.id} came past the queues: {bypass.who}{holding}: {' '.join(bypass.entrypoint.split())[:200]}"
    )
