"""The gateway: HTTP for people, programs, `ray job submit` and the overview page."""

from rayorch.serve_apps.gateway.app import create_app
from rayorch.serve_apps.gateway.backend import Backend
from rayorch.serve_apps.gateway.run import DEFAULT_PORT, UvicornGateway, check_listening, gateway_app, serve_uvicorn
from rayorch.serve_apps.gateway.settings import GatewaySettings, jobs_token_from, token_from

__all__ = [
    "DEFAULT_PORT",
    "Backend",
    "GatewaySettings",
    "UvicornGateway",
    "check_listening",
    "create_app",
    "gateway_app",
    "jobs_token_from",
    "serve_uvicorn",
    "token_from",
]
