"""The door: who may speak to the gateway, and how much they may send.

Without a token only this machine may, under a loopback name (a page of another site that a browser was led to
by DNS rebinding has another Host). With a token every request but the health checks must carry it: as a bearer,
in Ray's X-Ray-Authorization, or as the password of Basic, so that a browser can ask for it. In both cases a
request that a browser sends for a page of another site is refused.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayorch.serve_apps.gateway.problems import problem
from rayorch.serve_apps.gateway.settings import GatewaySettings

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/api/gcs_healthz"})
JOBS_PATHS = ("/api/jobs", "/api/packages/", "/api/version")
"""Where a token that is good for Ray's Jobs routes only is taken."""
POLICY_VIOLATION = 1008  # websocket close code

_POLICY = (
    b"default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)


class Guard:
    """ASGI middleware that lets through what may pass."""

    def __init__(self, app: ASGIApp, settings: GatewaySettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on with a bounded body and with security headers on the answer."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await _refuse(refusal, scope, receive, send)
            return
        if scope["type"] == "websocket":
            await self._app(scope, receive, send)
            return
        await self._pass_on(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        limit = self._body_limit(scope["path"])
        length = Headers(scope=scope).get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or int(length[:20]) > limit:
            await _refuse(problem("too_large", f"the body is larger than {limit} bytes", 413), scope, receive, send)
            return
        taken = 0

        async def bounded_receive() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > limit:
                raise HTTPException(413, f"the body is larger than {limit} bytes")
            return message

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(h for h in SECURITY_HEADERS if h[0] not in present)]
            await send(message)

        await self._app(scope, bounded_receive, send_with_headers)

    def _body_limit(self, path: str) -> int:
        if path.startswith("/api/packages/"):
            return self._settings.max_package_bytes
        if path.startswith("/api/v1/workloads/") and path.endswith("/result"):
            return self._settings.max_result_bytes
        return self._settings.max_body_bytes

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if _from_another_site(headers):
            return problem("denied", "requests for pages of other sites are refused", 403)
        if self._settings.token is None:
            client = scope.get("client")
            if not _is_loopback(client[0] if client else ""):
                return problem("denied", "without a token only this machine may ask; set RAYORCH_TOKEN", 403)
            if not _is_loopback(_host_name(headers.get("host", ""))):
                return problem("denied", f"the host {headers.get('host', '')!r} is not this machine's loopback", 403)
            return None
        if scope["path"] in OPEN_PATHS:
            return None
        given = _token(headers)
        if given is None:
            refusal = problem("unauthenticated", "a bearer token is needed; set RAYORCH_TOKEN", 401)
            refusal.headers["WWW-Authenticate"] = 'Bearer realm="rayorch", Basic realm="rayorch"'
            return refusal
        good = [self._settings.token]
        if self._settings.jobs_token is not None and _of_jobs(scope["path"]):
            good.append(self._settings.jobs_token)
        if not any([hmac.compare_digest(given.encode(), token.encode()) for token in good]):  # noqa: C419 - all of them
            return problem("denied", "the bearer token is wrong", 403)
        return None


async def _refuse(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()  # websocket.connect
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": "refused"})
        return
    await response(scope, receive, send)


def _of_jobs(path: str) -> bool:
    """Whether it is one of Ray's Jobs routes."""
    return any(path == known or path.startswith(f"{known.rstrip('/')}/") for known in JOBS_PATHS)


def _token(headers: Headers) -> str | None:
    """The token that a request carries, None without one."""
    for name in ("authorization", "x-ray-authorization"):
        scheme, _, value = headers.get(name, "").partition(" ")
        if scheme.lower() == "bearer":
            return value.strip()
        if scheme.lower() == "basic":
            try:
                return base64.b64decode(value, validate=True).decode().partition(":")[2]
            except (binascii.Error, UnicodeDecodeError):
                return ""
    return None


def _from_another_site(headers: Headers) -> bool:
    """Whether a browser sends it on behalf of a page that is not ours."""
    if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
        return True
    origin = headers.get("origin")
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc != headers.get("host", "")
    except ValueError:  # no browser writes that
        return True


def _host_name(host: str) -> str:
    """The name in a Host header, its port and brackets left out."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback or bool(mapped and mapped.is_loopback)
