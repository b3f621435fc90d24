"""Which processes are Ray's, and the raylet's environment. That Ray names its pid: see tests/actors/test_devices.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayorch.adapters.ray_visible import is_ray_process, raylet_environment


def test_the_raylets_environment_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "77").mkdir()
    (tmp_path / "77" / "environ").write_bytes(b"A=1\0CUDA_VISIBLE_DEVICES=3,1\0B=x=y\0noise\0")
    monkeypatch.setenv("RAY_RAYLET_PID", "77")
    assert raylet_environment(tmp_path) == {"A": "1", "CUDA_VISIBLE_DEVICES": "3,1", "B": "x=y"}


@pytest.mark.parametrize("pid", ["78", "", "x"])
def test_where_it_can_not_be_read_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pid: str) -> None:
    monkeypatch.setenv("RAY_RAYLET_PID", pid)
    assert raylet_environment(tmp_path) is None


@pytest.mark.parametrize(
    ("environment", "command", "ours"),
    [
        ({b"RAY_JOB_ID=01000000"}, b"python\0x.py", True),
        ({b"RAY_RAYLET_PID=9"}, b"python\0x.py", True),
        (set(), b"ray::Actor.method", True),
        ({b"MY_RAY_JOB_ID=1", b"RAYORCH_X=1"}, b"raytrace\0ray::", False),
    ],
)
def test_which_processes_are_rays(environment: set[bytes], command: bytes, ours: bool) -> None:
    assert is_ray_process(frozenset(environment), command) is ours
