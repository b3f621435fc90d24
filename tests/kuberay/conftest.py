"""Fixtures of the KubeRay tests: the fake API server, the real one, and each in turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kuberay.crd_server import MISSING, CrdServer, start_server
from tests.kuberay.fake_api import FakeApi

SPEEDS = pytest.StashKey[list[str]]()


@pytest.fixture
def fake(crds_dir: Path) -> Iterator[FakeApi]:
    """A fake API server with KubeRay's definitions."""
    with FakeApi(crds_dir) as api:
        yield api


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory, crds_dir: Path, tools_dir: Path) -> Iterator[CrdServer]:
    """The real API server for custom resources; skips where it was not built."""
    server = start_server(tmp_path_factory.mktemp("crd"), crds_dir, tools_dir)
    yield server
    server.stop()


@pytest.fixture
def real(real_server: CrdServer) -> CrdServer:
    """The same, without objects."""
    real_server.clear()
    return real_server


@pytest.fixture(params=["fake", "real"])
def server(request: pytest.FixtureRequest) -> Any:
    """Each server in turn: what passes on both holds of Kubernetes, not of our idea of it."""
    return request.getfixturevalue(request.param)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """What the servers took; a run that did not see the real one says so, with the number of tests left out."""
    for line in config.stash.get(SPEEDS, []):
        terminalreporter.line(f"Kubernetes API, {line}")
    skipped = terminalreporter.stats.get("skipped", [])
    for sign, title, what in (
        (MISSING, "NO REAL KUBERNETES API SERVER", "contract tests ran against the fake server only"),
        ("set RAYORCH_TOOLS", "NO REAL KUBERNETES API SERVER", "contract tests ran against the fake server only"),
        ("set RAYORCH_CRDS", "NO DEFINITIONS OF KUBERAY'S", "tests of KubeRay did not run at all"),
    ):
        if count := sum(1 for report in skipped if sign in str(report.longrepr)):
            terminalreporter.section(title, sep="!")
            terminalreporter.line(f"{count} {what}: {sign}")
