"""A Redis of a test's own: a port on loopback, a password, a folder that goes with the test."""

from __future__ import annotations

import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rayorch.adapters.ray_emulation import RedisStore
from tests.instance import eventually
from tests.machine import free_port


@contextmanager
def redis_store(folder: Path) -> Iterator[RedisStore]:
    """A running Redis with a namespace that nobody has used; skips where redis-server is not installed."""
    server = shutil.which("redis-server")
    if server is None:
        pytest.skip("redis-server is not installed (apt-get install redis-server)")
    port, password = free_port(), secrets.token_hex(8)
    command = [server, "--bind", "127.0.0.1", "--port", str(port), "--requirepass", password, "--dir", str(folder)]
    with (folder / "redis.log").open("wb") as log:
        process = subprocess.Popen([*command, "--appendonly", "yes", "--save", ""], stdout=log, stderr=log)
    try:
        eventually("Redis answers", lambda: process.poll() is None and _listens(port))
        yield RedisStore(f"127.0.0.1:{port}", password, f"ns{secrets.token_hex(6)}")
    finally:
        process.terminate()
        process.wait(30)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
