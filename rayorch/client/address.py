"""Where the gateway is and which token it wants.

The address, in this order: what the caller says, RAYORCH_ADDRESS, the state file of a server that was started on
this machine (`~/.rayorch/<instance>/server.json`; RAYORCH_HOME replaces `~/.rayorch`). `rayorch://<queue>` names a
queue instead of a host: the gateway is then found in the other ways.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rayorch.client.errors import UnreachableError
from rayorch.core.admission import check_instance
from rayorch.core.errors import SpecError

SCHEME = "rayorch://"
QUEUE_HEADER = "X-Rayorch-Queue"


@dataclass(frozen=True, slots=True)
class Target:
    """A gateway: its base URL, the token to send, and the queue that the address named."""

    url: str
    token: str | None = None
    queue: str = ""

    def headers(self) -> dict[str, str]:
        """What every request carries."""
        headers: dict[str, str] = {}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        if self.queue:
            headers[QUEUE_HEADER] = self.queue
        return headers


def home(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of this user's servers."""
    return Path(environment.get("RAYORCH_HOME") or Path.home() / ".rayorch")


def state_file(instance: str = "main", environment: Mapping[str, str] = os.environ) -> Path:
    """Where a server writes its process id and addresses. SpecError for a name that can't be a folder's."""
    check_instance(instance)
    return home(environment) / instance / "server.json"


def read_state(instance: str = "main", environment: Mapping[str, str] = os.environ) -> dict[str, object] | None:
    """What the server wrote; None when there is no file (no server) or it is not whole."""
    try:
        state = json.loads(state_file(instance, environment).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a ValueError for what is no JSON, or no path
        return None
    except OSError as error:
        raise UnreachableError(f"the server's state can't be read: {error}") from error
    return state if isinstance(state, dict) else None


def resolve(
    address: str | None = None, token: str | None = None, environment: Mapping[str, str] = os.environ
) -> Target:
    """The gateway to talk to; UnreachableError when nothing says where it is."""
    queue = ""
    instance = environment.get("RAYORCH_INSTANCE") or "main"
    candidates = [address, environment.get("RAYORCH_ADDRESS")]
    url = ""
    for candidate in candidates:
        if not candidate:
            continue
        if candidate.startswith(SCHEME):
            queue = queue or candidate.removeprefix(SCHEME).strip("/")
            continue
        url = candidate
        break
    state = read_state(instance, environment) or {}
    url = url or str(state.get("gateway_url") or "")
    if not url:
        raise UnreachableError(
            f"no gateway is known: set RAYORCH_ADDRESS, or start one here with `rayorch up` (looked at"
            f" {state_file(instance, environment)})"
        )
    if not _plain(queue):
        raise SpecError("address", f"{queue!r} is no queue's path")
    token = token or _token(environment, state)
    if token is not None and not _plain(token):
        raise SpecError("RAYORCH_TOKEN", "must be printable characters without spaces")
    return Target(_checked(url), token, queue)


def _checked(url: str) -> str:
    if "://" not in url:
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0 and _plain(url)
    except ValueError:  # brackets without an end, a port that is none
        good = False
    if not good:
        raise SpecError("address", f"must be http(s)://host:port or rayorch://queue, got {url!r}")
    return url.rstrip("/")


def _plain(text: str) -> bool:
    """Whether it can stand in a URL or a header."""
    return text.isascii() and text.isprintable() and " " not in text


def _token(environment: Mapping[str, str], state: Mapping[str, object]) -> str | None:
    if environment.get("RAYORCH_TOKEN"):
        return environment["RAYORCH_TOKEN"]
    file = environment.get("RAYORCH_TOKEN_FILE") or state.get("token_file")
    if not file:
        return None
    try:
        return Path(str(file)).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError("RAYORCH_TOKEN_FILE", f"can't be read: {error}") from error
