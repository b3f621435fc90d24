"""Fixtures of the KubeRay tests: the CRDs and the fake API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kuberay.fake_api import FakeApi


@pytest.fixture
def fake(crds_dir: Path) -> Iterator[FakeApi]:
    """A fake API server with KubeRay's definitions."""
    with FakeApi(crds_dir) as api:
        yield api
