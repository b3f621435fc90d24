"""Fixtures for all tests, and an environment in which no test sees the user's own Ray or rayorch."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.ray_cluster import EmulatedCluster, start_cluster

ROOT = Path(__file__).resolve().parent.parent
KEPT_VARIABLES = (
    *("RAYORCH_DATA", "RAYORCH_CASES", "RAYORCH_CRDS", "RAYORCH_TOOLS"),
    *("RAYORCH_CRD_SERVER", "RAYORCH_CAPACITY_API"),
    *("RAYORCH_LIVES", "RAYORCH_FIRST_LIFE"),
)


def _isolate_environment() -> None:
    """Settle everything that Ray reads from the environment before any test imports it."""
    for name in list(os.environ):
        if name == "RAY_ADDRESS" or (name.startswith("RAYORCH_") and name not in KEPT_VARIABLES):
            del os.environ[name]
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_DISABLE_IMPORT_WARNING"] = "1"
    os.environ["RAYORCH_READ_DEVICES"] = "0"  # this machine's own GPUs are not those of emulated nodes
    os.environ.setdefault("RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S", "1")
    os.environ.setdefault("RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S", "1")
    if "RAY_TMPDIR" not in os.environ:
        # Short, because the path of a socket in it may have 107 characters at most.
        folder = tempfile.mkdtemp(prefix="ro", dir="/tmp")
        os.environ["RAY_TMPDIR"] = folder
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


_isolate_environment()

# Nothing is timed in a test, on a busy machine least of all; in CI the same cases every time.
settings.register_profile(
    "rayorch",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
    print_blob=True,
)
settings.load_profile("rayorch")


def _folder(variable: str, default: str) -> Path:
    folder = Path(os.environ.get(variable) or ROOT / default).resolve()
    if not folder.is_dir():
        pytest.skip(f"{folder} does not exist; set {variable} to the folder that holds it")
    return folder


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Traces and measurements: RAYORCH_DATA, or ../shared/data beside the checkout; skips when absent."""
    return _folder("RAYORCH_DATA", "../shared/data")


@pytest.fixture(scope="session")
def cases_dir() -> Path:
    """Conformance cases: RAYORCH_CASES, or ../shared/cases beside the checkout; skips when absent."""
    return _folder("RAYORCH_CASES", "../shared/cases")


@pytest.fixture(scope="session")
def crds_dir() -> Path:
    """KubeRay's definitions: RAYORCH_CRDS, or ../shared/kuberay/crds beside the checkout; skips when absent."""
    return _folder("RAYORCH_CRDS", "../shared/kuberay/crds")


@pytest.fixture(scope="session")
def tools_dir() -> Path:
    """Tools of tests (the CRD API server): RAYORCH_TOOLS, or ../shared/tools beside the checkout; skips when absent."""
    return _folder("RAYORCH_TOOLS", "../shared/tools")


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[Callable[..., EmulatedCluster]]:
    """A factory of emulated clusters, `ray_cluster(nodes=2, gpus=4, racks=("r1", "r2"))`: see `start_cluster`.

    A module has one cluster at a time: the same arguments give the running one, others end it and start anew.
    Whatever runs is ended with the module.
    """
    running: list[tuple[dict[str, Any], EmulatedCluster]] = []

    def factory(fresh: bool = False, **shape: Any) -> EmulatedCluster:
        if running and not fresh and running[0][0] == shape:
            return running[0][1]
        _end(running)
        running.append((shape, start_cluster(**shape)))
        return running[0][1]

    yield factory
    _end(running)


def _end(running: list[tuple[dict[str, Any], EmulatedCluster]]) -> None:
    while running:
        running.pop()[1].shutdown()
