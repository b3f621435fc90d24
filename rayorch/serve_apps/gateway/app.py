"""The ASGI application: Ray's Jobs routes, /api/v1, health and the overview page, over one backend."""

from __future__ import annotations

import time
from collections.abc import Callable

from fastapi import FastAPI
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp

from rayorch.core.errors import ClusterError
from rayorch.serve_apps.gateway import problems
from rayorch.serve_apps.gateway.api_routes import ApiRoutes
from rayorch.serve_apps.gateway.backend import Backend
from rayorch.serve_apps.gateway.follow import RecentOverview
from rayorch.serve_apps.gateway.guard import Guard
from rayorch.serve_apps.gateway.jobs_routes import JobsRoutes
from rayorch.serve_apps.gateway.page import Page
from rayorch.serve_apps.gateway.settings import GatewaySettings
from rayorch.serve_apps.gateway.timing_routes import TimingRoutes


def create_app(
    backend: Backend, settings: GatewaySettings | None = None, clock: Callable[[], float] = time.time
) -> FastAPI:
    """The gateway over a backend; the guard is its outermost layer."""
    settings = settings or GatewaySettings()
    app = FastAPI(title="rayorch", docs_url=None, redoc_url=None, openapi_url="/api/v1/openapi.json")
    recent = RecentOverview(backend, settings)
    page = Page(settings, recent)
    app.include_router(JobsRoutes(backend, settings, recent).router())
    app.include_router(ApiRoutes(backend, settings, recent, clock).router())
    app.include_router(TimingRoutes(backend).router())
    app.add_api_route("/", page.overview, methods=["GET"], include_in_schema=False)
    app.add_api_route("/ui/{name}", page.asset, methods=["GET"], include_in_schema=False)

    async def healthz() -> Response:
        return JSONResponse({"ok": True})

    async def readyz() -> Response:
        """200 when the owners answer."""
        try:
            view = await recent.get()
        except ClusterError as error:
            return problems.problem("cluster", str(error))
        return JSONResponse({"ok": True, "cycle": view.cycle, "synced": view.synced})

    async def gcs_healthz() -> Response:
        """In the words of Ray's dashboard, which KubeRay's submitters wait for before they submit."""
        ready = await readyz()
        return ready if ready.status_code != 200 else PlainTextResponse("success")

    app.add_api_route("/healthz", healthz, methods=["GET"], include_in_schema=False)
    app.add_api_route("/readyz", readyz, methods=["GET"], include_in_schema=False)
    app.add_api_route("/api/gcs_healthz", gcs_healthz, methods=["GET"], include_in_schema=False)
    problems.install(app)
    app.add_middleware(_guard, settings=settings)
    return app


def _guard(app: ASGIApp, settings: GatewaySettings) -> ASGIApp:
    return Guard(app, settings)
