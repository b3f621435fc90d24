"""Ray Serve: applications whose replicas use granted seats only. See docs/serve.md."""

from rayorch.adapters.ray_serve.apps import (
    CALLBACK_VARIABLE,
    AppStatus,
    ReplicaStatus,
    app_spec,
    app_status,
    controller_callback,
    deploy,
    ensure_serve_started,
    seats_in_use,
    undeploy,
)
from rayorch.adapters.ray_serve.builder import AppSpec, DeployedApp
from rayorch.adapters.ray_serve.policy import GrantPolicy
from rayorch.adapters.ray_serve.seats import deployment_of

__all__ = [
    "CALLBACK_VARIABLE",
    "AppSpec",
    "AppStatus",
    "DeployedApp",
    "GrantPolicy",
    "ReplicaStatus",
    "app_spec",
    "app_status",
    "controller_callback",
    "deploy",
    "deployment_of",
    "ensure_serve_started",
    "seats_in_use",
    "undeploy",
]
