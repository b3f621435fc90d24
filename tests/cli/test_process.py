"""The command as a process: what it loads, its pipes, and the server that `up` starts and `down` ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rayorch.core.errors import SpecError
from tests.serve_apps.conftest import Served, backend, served

__all__ = ["backend", "served"]

COMMAND = Path(sys.executable).with_name("rayorch")


def _run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(COMMAND), *words], env={**os.environ, **env}, capture_output=True, text=True, timeout=120, check=False
    )


def test_help_loads_nothing_heavy(capsys: pytest.CaptureFixture[str]) -> None:
    before = os.times()
    done = _run("--help")
    after = os.times()
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    with capsys.disabled():
        print(f"\nrayorch --help: {cpu_s:.2f} CPU seconds")
    assert done.returncode == 0
    assert "explain" in done.stdout and done.stdout.isascii()
    heavy = ("ray", "torch", "numpy", "httpx", "pydantic", "fastapi", "rich.table")
    code = f"import sys, rayorch.cli.main; print([m for m in {heavy!r} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_the_package_can_be_run_in_place_of_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rayorch", "simulate", "--help"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Usage: python -m rayorch simulate" in done.stdout


def test_a_whole_command_loads_no_ray(served: Served) -> None:
    code = (
        "import sys\nfrom rayorch.cli.main import app\n"
        "try:\n    app(['ps', '-o', 'json'])\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "assert 'ray' not in sys.modules and 'torch' not in sys.modules\n"
    )
    env = {**os.environ, "RAYORCH_ADDRESS": served.address}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_a_reader_that_has_enough_is_no_error(served: Served) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [str(COMMAND), "nodes", "-o", "json"],
            env={**os.environ, "RAYORCH_ADDRESS": served.address, "PYTHONUNBUFFERED": ""},
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


SERVER = '''
"""Plays rayorch.server: takes its arguments, writes its state file, ends on SIGTERM."""
import json, os, pathlib, signal, sys
arguments = sys.argv[1:]
instance = arguments[arguments.index("--instance") + 1]
if "--port" in arguments and arguments[arguments.index("--port") + 1] == "1":
    sys.exit("port 1 is not for us")
folder = pathlib.Path(os.environ["RAYORCH_HOME"]) / instance
state = {"pid": os.getpid(), "address": "127.0.0.1:6379", "gateway_url": "http://127.0.0.1:1", "arguments": arguments}
(folder / "server.json").write_text(json.dumps(state))
signal.sigwait([signal.SIGTERM])
'''


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home for servers, and a stand-in for the real one on the path."""
    fake = tmp_path / "site"
    fake.mkdir()
    (fake / "sitecustomize.py").write_text(
        "import sys, runpy\n"
        "if sys.orig_argv[2:4] == ['-m', 'rayorch.server']:\n"
        f"    sys.argv = ['rayorch.server', *sys.orig_argv[4:]]\n    exec({SERVER!r})\n    raise SystemExit\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(fake))
    monkeypatch.setenv("RAYORCH_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def _lives(pid: int) -> bool:
    """Whether it runs; one that has ended and was not collected by its parent does not."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except FileNotFoundError:
        return False


def test_up_starts_one_server_and_down_ends_it(home: Path) -> None:
    up = _run("up", "--emulate", "4x8", "--racks", "2", "-o", "json")
    assert up.returncode == 0, up.stderr
    state = json.loads(up.stdout)
    assert _lives(state["pid"])
    assert state["arguments"] == ["--instance", "main", "--emulate", "4x8", "--racks", "2"]
    again = _run("up", "-o", "json")
    assert json.loads(again.stdout)["pid"] == state["pid"]
    down = _run("down")
    assert down.returncode == 0, down.stderr
    assert not _lives(state["pid"])
    assert not (home / "main" / "server.json").exists()
    assert "no rayorch server" in _run("down").stderr


def test_a_server_that_does_not_start_is_shown_with_its_last_words(home: Path) -> None:
    (home / "main").mkdir(parents=True)
    (home / "main" / "server.log").write_text("what an earlier start said\n")
    up = _run("up", "--port", "1")
    assert up.returncode == 100
    assert "port 1 is not for us" in up.stderr
    assert "earlier" not in up.stderr


@pytest.mark.parametrize("name", ["../other", "a/b", "", ".."])
def test_a_name_that_leads_out_of_the_home_starts_nothing(home: Path, name: str) -> None:
    up = _run("up", "--instance", name)
    assert up.returncode == 105, up.stderr
    assert not home.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-f", "/nonexistent.yaml"], "file: can't read /nonexistent.yaml"),
        (["--host", "0.0.0.0"], "host: 0.0.0.0 is reachable from outside"),
        (["--instance", "../x"], "instance: "),
    ],
)
def test_a_server_with_wrong_arguments_says_so_before_it_starts_anything(words: list[str], said: str) -> None:
    from rayorch.server import settings_from

    with pytest.raises(SpecError, match=said):
        settings_from(words)


def test_down_ends_no_process_that_only_has_the_number(home: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        (home / "main").mkdir(parents=True)
        (home / "main" / "server.json").write_text(json.dumps({"pid": other.pid, "gateway_url": "http://127.0.0.1:1"}))
        assert "no rayorch server" in _run("down").stderr
        time.sleep(0.1)
        assert other.poll() is None
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()
