"""The smallest Serve application that can be deployed by its import path: it answers with what it was sent."""

from __future__ import annotations

from ray import serve
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

MAX_BYTES = 64 * 1024


class Echo:
    """Answers a request with the beginning of its body."""

    async def __call__(self, request: Request) -> Response:
        """At most MAX_BYTES of the body, as text."""
        body = await request.body()
        return PlainTextResponse(body[:MAX_BYTES].decode(errors="replace") or "nothing\n")


app = serve.deployment(name="Echo")(Echo).bind()
