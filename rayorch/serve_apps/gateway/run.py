"""Two ways to run the gateway: under uvicorn alone, and as a Serve application on the head."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI

from rayorch.core.errors import SpecError
from rayorch.serve_apps.gateway.app import create_app
from rayorch.serve_apps.gateway.settings import GatewaySettings, jobs_token_from, token_from

if TYPE_CHECKING:
    from ray.serve import Application

log = logging.getLogger(__name__)

DEFAULT_PORT = 8266
MAX_ONGOING_REQUESTS = 2000
"""Above `GatewaySettings.max_streams`: a log tail is one request that lasts as long as its workload."""
SHUTDOWN_GRACE_S = 5
KEEP_ALIVE_S = 60
"""Longer than clients keep an idle connection (httpx: 5 s), or one would be closed while they send on it."""
BACKLOG = 1024


class UvicornGateway:
    """The gateway under uvicorn: bound when it is made, so that its address is known before it runs.

    Port 0 takes a free one. SpecError when it would listen beyond this machine without a token.
    """

    def __init__(self, app: FastAPI, host: str, port: int, settings: GatewaySettings) -> None:
        check_listening(host, settings.token)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{self._listener.getsockname()[1]}"
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                server_header=False,
                ws="websockets-sansio",
                ws_max_size=settings.max_body_bytes,
                timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
                timeout_keep_alive=KEEP_ALIVE_S,
                lifespan="off",
            )
        )

    def run(self) -> None:
        """Serve until a signal, or `stop`, ends it; in the main thread it handles signals."""
        log.info("gateway at %s", self.address)
        self._server.run(sockets=[self._listener])

    async def serve(self) -> None:
        """The same inside a running event loop."""
        await self._server.serve(sockets=[self._listener])

    def stop(self) -> None:
        """End it; from any thread."""
        self._server.should_exit = True


def check_listening(host: str, token: str | None) -> None:
    """SpecError when a gateway would listen beyond this machine without a token."""
    if token is None and host not in ("127.0.0.1", "::1", "localhost"):
        raise SpecError("host", f"{host} is reachable from outside; set RAYORCH_TOKEN or listen on 127.0.0.1")


def serve_uvicorn(app: FastAPI, host: str, port: int, settings: GatewaySettings) -> None:
    """Serve in this thread until a signal ends it."""
    UvicornGateway(app, host, port, settings).run()


def gateway_app(args: dict[str, str]) -> Application:
    """The gateway as a Serve application: `serve.run(gateway_app({"instance": "main"}), name="gateway")`.

    It runs beside Serve's proxies with no CPU of its own. The bearer tokens are read on the node where it runs.
    """
    from ray import serve

    from rayorch.actors.names import on_head
    from rayorch.serve_apps.gateway.ray_backend import RayBackend

    instance = args.get("instance", "main")
    folder = Path(args["folder"]) if "folder" in args else None

    def build() -> FastAPI:
        settings = GatewaySettings(instance=instance, token=token_from(), jobs_token=jobs_token_from())
        return create_app(RayBackend(instance, folder), settings)

    class Gateway:
        """The ASGI app in a replica."""

    deployment = serve.deployment(
        name="gateway",
        num_replicas=1,
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        ray_actor_options={"num_cpus": 0, "resources": on_head()},
    )(serve.ingress(build)(Gateway))
    return deployment.bind()
