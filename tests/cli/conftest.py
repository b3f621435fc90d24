"""The command against a gateway over a fake cluster."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from typer.testing import CliRunner, Result

from rayorch.cli.main import app
from tests.serve_apps.conftest import Served, backend, served

__all__ = ["Run", "backend", "run", "served"]

Run = Callable[..., Result]


@pytest.fixture
def run(served: Served, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("ps", "-o", "json")`: exit code, stdout and stderr of the command."""
    monkeypatch.setenv("RAYORCH_ADDRESS", served.address)
    monkeypatch.setattr("rayorch.client.transport.RETRY_PAUSES_S", (0.01,))
    runner = CliRunner()

    def call(*words: str, input: str | None = None) -> Result:
        result = runner.invoke(app, list(words), input=input)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call
