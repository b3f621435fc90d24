"""/api/v1: entries of arrays, reservations, and what is submitted by a schedule."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import JSONResponse, Response

from rayorch.core.requests import EntriesRequest
from rayorch.core.types import WorkloadId
from rayorch.serve_apps.gateway.backend import Backend
from rayorch.serve_apps.gateway.json_views import API_VERSION
from rayorch.serve_apps.gateway.problems import raise_unless_accepted
from rayorch.serve_apps.gateway.timing_views import cron_json, entry_json, reservation_json

Limit = Annotated[int, Query(ge=1, le=1000)]
First = Annotated[int, Query(ge=0, le=2**40)]


class TimingRoutes:
    """The routes over one backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def router(self) -> APIRouter:
        """Those below /api/v1 that concern time."""
        router = APIRouter(prefix="/api/v1")
        router.add_api_route("/workloads/{workload}/entries", self.entries, methods=["GET"])
        router.add_api_route("/reservations", self.reservations, methods=["GET"])
        router.add_api_route("/reservations/{reservation}", self.delete_reservation, methods=["DELETE"])
        router.add_api_route("/crons", self.crons, methods=["GET"])
        router.add_api_route("/crons/{cron}", self.delete_cron, methods=["DELETE"])
        return router

    async def entries(self, workload: str, first: First = 0, limit: Limit = 100) -> Response:
        """Entries of an array in the order of their indices; `nextFirst` is null on the last page."""
        page = await self._backend.entries(EntriesRequest(WorkloadId(workload), first, limit))
        items = [entry_json(workload, row) for row in page.entries]
        return JSONResponse({"apiVersion": API_VERSION, "items": items, "nextFirst": page.next_first})

    async def reservations(self) -> Response:
        """All of them, with what each holds now."""
        view = await self._backend.overview()
        items = [reservation_json(found, view.now_s) for found in view.reservations]
        return JSONResponse({"apiVersion": API_VERSION, "items": items})

    async def delete_reservation(self, reservation: str) -> Response:
        """Hold it no longer; what runs in it goes on."""
        raise_unless_accepted(await self._backend.delete_reservation(reservation))
        return Response(status_code=204)

    async def crons(self) -> Response:
        """All of them, with what has come of each."""
        items = [cron_json(view) for view in await self._backend.crons()]
        return JSONResponse({"apiVersion": API_VERSION, "items": items})

    async def delete_cron(self, cron: str) -> Response:
        """Submit no more of it; what was submitted goes on."""
        raise_unless_accepted(await self._backend.delete_cron(cron))
        return Response(status_code=204)
