"""Errors as application/problem+json (RFC 9457), with the stable code and the field of the error tree."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from rayorch.core.errors import AdmissionError, ClusterError, RayorchError, SpecError
from rayorch.core.requests import Reply

log = logging.getLogger(__name__)

STATUS = {"invalid": 400, "not_found": 404, "conflict": 409, "stale": 409, "rejected": 422, "cluster": 503}
"""HTTP status by code of the error tree; anything else is 500."""

HTTP_CODES = {401: "unauthenticated", 403: "denied", 404: "not_found", 413: "too_large", 429: "busy"}

TITLES = {
    "invalid": "The request is wrong",
    "rejected": "Refused by this cluster",
    "conflict": "Another one of that id exists",
    "not_found": "There is no such thing",
    "cluster": "The cluster can't answer now",
    "stale": "The facts have changed",
}


class NotFoundError(RayorchError):
    """No workload, queue or node of that id."""

    code = "not_found"


class ConflictError(RayorchError):
    """The id is taken by something else."""

    code = "conflict"


def raise_unless_accepted(reply: Reply) -> None:
    """Turn a refusal into the error that it stands for."""
    if reply.accepted:
        return
    if reply.code == "invalid":
        raise SpecError(reply.field, reply.message)
    if reply.code == "rejected":
        if reply.field in ("id", "metadata.id"):
            raise ConflictError(reply.message)
        raise AdmissionError(reply.field, reply.message)
    if reply.code == "cluster":
        raise ClusterError(reply.message)
    raise ConflictError(reply.message)


def problem(code: str, detail: str, status: int | None = None, field: str = "") -> JSONResponse:
    """One problem document."""
    status = status or STATUS.get(code, 500)
    body: dict[str, object] = {
        "type": "about:blank",
        "title": TITLES.get(code, "Something went wrong"),
        "status": status,
        "code": code,
        "detail": detail,
    }
    if field:
        body["field"] = field
    headers = {"Retry-After": "1"} if status in (429, 503) else None
    return JSONResponse(body, status, headers, media_type="application/problem+json")


async def _on_rayorch_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RayorchError)
    field = error.field if isinstance(error, SpecError | AdmissionError) else ""
    return problem(error.code, str(error), field=field)


async def _on_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return problem(HTTP_CODES.get(error.status_code, "http"), str(error.detail), error.status_code)


async def _on_bad_parameter(_: Request, error: Exception) -> Response:
    """A parameter of the URL, or a header, of the wrong type or out of its range."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = str(first["loc"][-1])
    return problem("invalid", f"{field}: {first['msg']}", field=field)


async def _on_hung_up(request: Request, _: Exception) -> Response:
    """The client left in the middle of its body: nobody reads the answer, and nothing is wrong here."""
    log.info("%s %s: the client hung up", request.method, request.url.path)
    return problem("http", "the body is not whole", 400)


async def _on_any_error(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem("internal", "an error that the gateway did not expect; its log has the details", 500)


def install(app: FastAPI) -> None:
    """Make every error of the app a problem document."""
    handlers: tuple[tuple[type[Exception], Callable[[Request, Exception], Awaitable[Response]]], ...] = (
        (RayorchError, _on_rayorch_error),
        (HTTPException, _on_http_error),
        (RequestValidationError, _on_bad_parameter),
        (ClientDisconnect, _on_hung_up),
        (Exception, _on_any_error),
    )
    for kind, handler in handlers:
        app.add_exception_handler(kind, handler)
