"""Requests to the Kubernetes API server: bounded in time and size, with errors that name no secret.

Everything is read as plain JSON and typed afterwards (`models`). Foreign errors are said in our words and not chained:
their text can hold a token. The `kubernetes` package is imported with the first request only (0.7 s, 50 MB).
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rayorch.core.errors import ClusterError, SpecError

log = logging.getLogger(__name__)

API_GROUP, API_VERSION = "ray.io", "v1"
CLUSTERS, JOBS = "rayclusters", "rayjobs"
JSON_PATCH = "application/json-patch+json"

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 30.0  # of each read
ANSWER_TIMEOUT_S = 120.0  # of a whole answer, that no server keeps us by a byte now and then
SILENCE_S = 10.0  # how long a watch may last beyond its end
MAX_BODY_BYTES = 256 * 1024 * 1024
MAX_LINE_BYTES = 32 * 1024 * 1024
CHUNK_BYTES = 1024 * 1024
PAGE_ITEMS = 500
MAX_PAGES = 200
MESSAGE_CHARACTERS = 400

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
SERVICE_HOST = "KUBERNETES_SERVICE_HOST"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_SECRET = re.compile(r"(bearer|basic|token[\"'=: ]+)\s*\S+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class KubeRaySettings:
    """Which RayCluster, and how to reach its API server.

    `kubeconfig`: a file; None: in a pod its service account, elsewhere the client's usual file (KUBECONFIG,
    ~/.kube/config). `context`: of that file, None for its current one. Raises SpecError for names that Kubernetes
    could not have.
    """

    cluster: str
    namespace: str = "default"
    kubeconfig: str | None = None
    context: str | None = None
    service_account: str = SERVICE_ACCOUNT
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    read_timeout_s: float = READ_TIMEOUT_S

    def __post_init__(self) -> None:
        for field, name in (("cluster", self.cluster), ("namespace", self.namespace)):
            if not _NAME.fullmatch(name):
                raise SpecError(f"kuberay.{field}", f"is no name that Kubernetes has: {name[:80]!r}")


class ApiError(ClusterError):
    """The API server refused or did not answer. `status`: HTTP's, 0 without an answer (it may have acted)."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[type[ApiError], tuple[str, int]]:
        return (type(self), (str(self), self.status))

    @property
    def passing(self) -> bool:
        """Whether the same request may well succeed a moment later."""
        return self.status in (0, 408, 409, 429) or self.status >= 500


class Stream:
    """The lines of a watch. `close` may be called from another thread: it ends a read that is waiting."""

    def __init__(self, response: Any) -> None:
        self._response = response

    def lines(self) -> Iterator[bytes]:
        """Each event as it comes; ApiError when the connection breaks or a line is longer than any object."""
        held = b""
        try:
            for chunk in self._response.stream(CHUNK_BYTES):
                held += chunk
                *whole, held = held.split(b"\n")
                yield from (line for line in whole if line.strip())
                if len(held) > MAX_LINE_BYTES:
                    raise ApiError(f"the API server sent a line of more than {MAX_LINE_BYTES} bytes")
        except ApiError:
            raise
        except Exception as error:  # noqa: BLE001 - urllib3's many classes
            raise ApiError(f"the watch broke: {_say(error)}") from None

    def close(self) -> None:
        """End the watch."""
        for end in ("shutdown", "close", "release_conn"):
            try:
                getattr(self._response, end)()
            except Exception as error:  # noqa: BLE001 - it may have ended by itself, each way in its own class
                log.debug("closing a watch: %s: %s", end, _say(error))


class Api:
    """One API server and the objects of one RayCluster on it. Raises ApiError for whatever goes wrong."""

    def __init__(self, settings: KubeRaySettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._client: Any = None

    def cluster(self) -> dict[str, Any]:
        """The RayCluster as it is now."""
        return self._json("read the RayCluster", "get_namespaced_custom_object", CLUSTERS, self.settings.cluster)

    def patch_cluster(self, operations: list[dict[str, Any]]) -> dict[str, Any]:
        """Change the RayCluster by a JSON patch, and the object as it is afterwards."""
        # Without a content type the client sends a list as a merge patch, which the server can't read.
        return self._json(
            "patch the RayCluster",
            "patch_namespaced_custom_object",
            CLUSTERS,
            self.settings.cluster,
            operations,
            _content_type=JSON_PATCH,
            field_validation="Strict",
        )

    def list_clusters(self) -> tuple[list[Any], str]:
        """The RayCluster of that name as a list (none or one), and the version from which to watch it."""
        return self._list(
            "list the RayCluster", "list_namespaced_custom_object", CLUSTERS, field_selector=self._own_name()
        )

    def list_pods(self, group: str = "") -> tuple[list[Any], str]:
        """All pods of the RayCluster, or of one group, and the version from which to watch them."""
        selector = f"{self._own_pods()},ray.io/group={group}" if group else self._own_pods()
        return self._list("list the pods", "list_namespaced_pod", label_selector=selector)

    def list_jobs(self) -> list[Any]:
        """All RayJobs of the namespace."""
        return self._list("list the RayJobs", "list_namespaced_custom_object", JOBS)[0]

    def watch_clusters(self, version: str, timeout_s: int) -> Stream:
        """Changes of the RayCluster after a version, for at most `timeout_s`."""
        return self._watch(
            "list_namespaced_custom_object", CLUSTERS, version=version, timeout_s=timeout_s, field=self._own_name()
        )

    def watch_pods(self, version: str, timeout_s: int) -> Stream:
        """Changes of the RayCluster's pods after a version, for at most `timeout_s`."""
        return self._watch("list_namespaced_pod", version=version, timeout_s=timeout_s, label=self._own_pods())

    def forget_login(self) -> None:
        """Read credentials anew with the next request."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _own_name(self) -> str:
        return f"metadata.name={self.settings.cluster}"

    def _own_pods(self) -> str:
        return f"ray.io/cluster={self.settings.cluster}"

    def _watch(self, call: str, *args: Any, version: str, timeout_s: int, field: str = "", label: str = "") -> Stream:
        selectors = {"field_selector": field} if field else {"label_selector": label}
        response = self._open(
            "watch",
            call,
            *args,
            watch=True,
            allow_watch_bookmarks=True,
            resource_version=version,
            timeout_seconds=timeout_s,
            # The server ends the watch by itself: one that has said nothing for longer has died, or the network has.
            _request_timeout=(self.settings.connect_timeout_s, timeout_s + SILENCE_S),
            **selectors,
        )
        return Stream(response)

    def _list(self, what: str, call: str, *args: Any, **kwargs: Any) -> tuple[list[Any], str]:
        items: list[Any] = []
        token: str | None = None
        for _ in range(MAX_PAGES):
            page = self._json(what, call, *args, limit=PAGE_ITEMS, **kwargs, **({"_continue": token} if token else {}))
            meta, found = page.get("metadata"), page.get("items")
            if not isinstance(meta, dict) or not isinstance(found, list) or not meta.get("resourceVersion"):
                raise ApiError(f"could not {what}: the answer is no list (items or metadata.resourceVersion missing)")
            items.extend(found)
            token = meta.get("continue")
            if not token:
                return items, str(meta["resourceVersion"])
        raise ApiError(f"could not {what}: more than {MAX_PAGES} pages of {PAGE_ITEMS}")

    def _json(self, what: str, call: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        response = self._open(what, call, *args, **kwargs)
        try:
            raw = json.loads(_body(response, MAX_BODY_BYTES))
        except ApiError as error:
            raise ApiError(f"could not {what}: {error}", error.status) from None
        except Exception as error:  # noqa: BLE001 - cut off (urllib3), or no JSON
            raise ApiError(f"could not {what}: the answer can't be read: {_say(error)}") from None
        finally:
            response.close()  # one that was read to its end has given its connection back already
        if not isinstance(raw, dict):
            raise ApiError(f"could not {what}: the answer is no object")
        return raw

    def _open(self, what: str, call: str, *args: Any, **kwargs: Any) -> Any:
        """Send one request; with credentials read anew where the server does not know the old ones any more."""
        try:
            return self._send(what, call, *args, **kwargs)
        except ApiError as error:
            if error.status != 401:
                raise
            log.info("the API server does not accept our credentials; reading them again")
            self.forget_login()
            return self._send(what, call, *args, **kwargs)

    def _send(self, what: str, call: str, *args: Any, **kwargs: Any) -> Any:
        kwargs.setdefault("_request_timeout", (self.settings.connect_timeout_s, self.settings.read_timeout_s))
        client = self._login()
        from kubernetes import client as kube

        core = call == "list_namespaced_pod"
        function = getattr((kube.CoreV1Api if core else kube.CustomObjectsApi)(client), call)
        where = (self.settings.namespace,) if core else (API_GROUP, API_VERSION, self.settings.namespace)
        try:
            response = function(*where, *args, _preload_content=False, **kwargs)
        except kube.exceptions.ApiException as error:
            status, message = int(error.status or 0), _status_message(error.body or "") or str(error.reason)
            raise ApiError(f"could not {what}: {status}: {_scrub(message)}", status) from None
        except Exception as error:  # noqa: BLE001 - urllib3's, the operating system's, an exec plugin's
            raise ApiError(f"could not {what}: {_say(error)}") from None
        if 200 <= response.status < 300:
            return response
        try:
            message = _status_message(_body(response, CHUNK_BYTES)) or str(response.reason)
        except Exception as error:  # noqa: BLE001 - the refusal itself is cut off
            message = f"{response.reason} ({_say(error)})"
        finally:
            response.close()
        raise ApiError(f"could not {what}: {response.status}: {_scrub(message)}", response.status)

    def _login(self) -> Any:
        with self._lock:
            if self._client is None:
                try:
                    self._client = _connect(self.settings)
                except Exception as error:  # noqa: BLE001 - a missing file, bad YAML, a plugin
                    named = f" by {self.settings.kubeconfig}" if self.settings.kubeconfig else ""
                    raise ApiError(f"could not log in to Kubernetes{named}: {_say(error)}") from None
            return self._client


def _connect(settings: KubeRaySettings) -> Any:
    """A client with credentials of its own; the process-wide default of the library is left alone."""
    from kubernetes import client as kube
    from kubernetes import config as untyped

    config: Any = untyped
    wanted = kube.Configuration()
    if settings.kubeconfig is None and os.environ.get(SERVICE_HOST) and os.path.isdir(settings.service_account):
        # Tokens are rotated by the kubelet: the loader reads the file again every minute.
        config.incluster_config.InClusterConfigLoader(
            token_filename=os.path.join(settings.service_account, "token"),
            cert_filename=os.path.join(settings.service_account, "ca.crt"),
        ).load_and_set(wanted)
    else:
        config.load_kube_config(
            config_file=settings.kubeconfig,
            context=settings.context,
            client_configuration=wanted,
            persist_config=False,
        )
    wanted.retries = False  # retries are ours: bounded, and never of a patch whose outcome is not known
    return kube.ApiClient(wanted)


def _body(response: Any, limit: int) -> bytes:
    parts: list[bytes] = []
    size, until = 0, time.monotonic() + ANSWER_TIMEOUT_S
    while chunk := response.read1(CHUNK_BYTES):
        size += len(chunk)
        if size > limit:
            raise ApiError(f"the answer has more than {limit} bytes")
        if time.monotonic() > until:
            raise ApiError(f"the answer takes longer than {ANSWER_TIMEOUT_S:g} s")
        parts.append(chunk)
    return b"".join(parts)


def _status_message(body: str | bytes) -> str:
    """The sentence of a Status object."""
    try:
        raw = json.loads(body)
    except ValueError:
        return ""
    return str(raw.get("message") or raw.get("reason") or "") if isinstance(raw, dict) else ""


def _say(error: BaseException) -> str:
    """A foreign error's class and words."""
    return f"{type(error).__name__}: {_scrub(str(error))}"


def _scrub(text: str) -> str:
    """One short line without credentials: the library quotes a header that it can't send."""
    line = _SECRET.sub(r"\1 (hidden)", " ".join(text.split()))
    return line if len(line) <= MESSAGE_CHARACTERS else line[: MESSAGE_CHARACTERS - 1] + "…"
