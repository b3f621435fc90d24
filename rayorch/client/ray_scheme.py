"""`ray job submit --address rayorch://<queue>`: Ray imports the module of that name and asks it where to go."""

from __future__ import annotations

from dataclasses import dataclass

from rayorch.client.address import SCHEME, resolve


@dataclass
class ClusterInfo:
    """What Ray's SubmissionClient reads of the answer."""

    address: str
    cookies: dict[str, object] | None
    metadata: dict[str, object] | None
    headers: dict[str, object] | None


def cluster_info(
    queue: str,
    cookies: dict[str, object] | None,
    metadata: dict[str, object] | None,
    headers: dict[str, object] | None,
) -> ClusterInfo:
    """The gateway's address, with the queue and our token as headers; the caller's own headers win."""
    target = resolve(f"{SCHEME}{queue}")
    return ClusterInfo(target.url, cookies, metadata, {**target.headers(), **(headers or {})})
