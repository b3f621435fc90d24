"""What the gateway can be told, and where its bearer token comes from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rayorch.core.errors import SpecError

TOKEN_VARIABLE = "RAYORCH_TOKEN"
TOKEN_FILE_VARIABLE = "RAYORCH_TOKEN_FILE"
JOBS_TOKEN_VARIABLE = "RAYORCH_JOBS_TOKEN"
MIN_TOKEN_LENGTH = 16
MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """`token` None: loopback only, without authentication. Sizes in bytes, times in seconds.

    `jobs_token`: a second token that is good for Ray's Jobs routes only. KubeRay's operator and its submitters know the
    cluster's Ray token and nothing else.
    `poll_s`: how often watched workloads, logs and event streams are looked at. `queue_note_s`: least time
    between two lines about the place in the queue. `log_settle_s`: how long the log of an attempt that is over
    may stay silent before it counts as complete. `log_wait_s`: how long one question for output waits for some.
    `overview_age_s`: how old the joint view may be.
    """

    instance: str = "main"
    token: str | None = None
    jobs_token: str | None = None
    default_queue: str = "default"
    max_body_bytes: int = MEBIBYTE
    max_package_bytes: int = 500 * MEBIBYTE
    max_result_bytes: int = 256 * MEBIBYTE
    max_batch: int = 1000
    max_streams: int = 1000
    max_wait_s: float = 60.0
    poll_s: float = 0.5
    queue_note_s: float = 5.0
    log_settle_s: float = 2.0
    log_wait_s: float = 2.0
    overview_age_s: float = 0.5
    refresh_page_s: int = 5


def token_from(environment: Mapping[str, str] = os.environ) -> str | None:
    """The bearer token of RAYORCH_TOKEN, or of the file that RAYORCH_TOKEN_FILE names; None when neither is set.

    SpecError for a token that is too short or can't stand in a header, and for a file that can't be read.
    """
    token = environment.get(TOKEN_VARIABLE)
    field = TOKEN_VARIABLE
    if token is None and (path := environment.get(TOKEN_FILE_VARIABLE)):
        field = TOKEN_FILE_VARIABLE
        try:
            token = Path(path).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError(field, f"can't be read: {error}") from error
    return None if token is None else _checked(token, field)


def jobs_token_from(environment: Mapping[str, str] = os.environ) -> str | None:
    """The token for Ray's Jobs routes, of RAYORCH_JOBS_TOKEN; None without it. SpecError as `token_from`."""
    token = environment.get(JOBS_TOKEN_VARIABLE)
    return None if token is None else _checked(token.strip(), JOBS_TOKEN_VARIABLE)


def _checked(token: str, field: str) -> str:
    if len(token) < MIN_TOKEN_LENGTH or not token.isascii() or not token.isprintable() or " " in token:
        raise SpecError(field, f"must have at least {MIN_TOKEN_LENGTH} printable characters without spaces")
    return token
