"""A client of a gateway over a fake cluster, through a real socket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import rayorch
from rayorch import Client
from tests.serve_apps.conftest import Served, backend, served

__all__ = ["backend", "client", "served"]


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    """Connected."""
    with rayorch.connect(served.address) as connected:
        yield connected
