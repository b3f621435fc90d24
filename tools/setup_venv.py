"""Make `.venv/` ready for the tests and the demo. Running it again does nothing until an input has changed.

uv does the work where it can be installed (a minute), pip otherwise (several). A machine without an NVIDIA GPU
gets the CPU build of PyTorch. Standard library only: this runs before anything is installed.
"""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".rayorch-setup"
CONSTRAINTS = ROOT / "constraints-dev.txt"
EXTRAS = ".[torch,test]"
OLDEST = (3, 11)
CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # where PyTorch publishes its CPU builds


def main() -> int:
    """Create or complete the environment; returns the exit code."""
    if sys.version_info < OLDEST:
        print(f"rayorch needs Python {'.'.join(map(str, OLDEST))} or later, this is {sys.version.split()[0]}")
        return 2
    wanted = fingerprint()
    if STAMP.exists() and STAMP.read_text() == wanted and PYTHON.exists():
        print(f"{VENV.name} is up to date")
        return 0
    if not PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    folders = wheel_folders()
    if not (install_uv() and install_with_uv(folders)):
        print("uv could not do it, falling back to pip (minutes)", flush=True)
        install_with_pip(folders)
    STAMP.write_text(wanted)
    return 0


def fingerprint() -> str:
    """A digest of everything that decides what the environment holds."""
    digest = hashlib.sha256()
    for path in (ROOT / "pyproject.toml", CONSTRAINTS, Path(__file__)):
        digest.update(path.read_bytes())
    digest.update(f"{sys.version_info[:2]} {VENV} gpu={has_gpu()}".encode())
    return digest.hexdigest()


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU, and so wants PyTorch with CUDA."""
    return Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi") is not None


def wheel_folders() -> list[str]:
    """Folders and pages of wheels: UV_FIND_LINKS if set, else what pip is configured with; uv does not read pip's."""
    if os.environ.get("UV_FIND_LINKS"):
        return [part for part in os.environ["UV_FIND_LINKS"].replace(",", " ").split() if part]
    listing = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    folders: list[str] = []
    for line in listing.splitlines():
        key, equals, value = line.partition("=")
        if equals and key.endswith(".find-links"):
            for part in str(ast.literal_eval(value)).split():
                if part not in folders and ("://" in part or Path(part).is_dir()):
                    folders.append(part)
    return folders


def holds_cpu_torch(folders: Sequence[str]) -> bool:
    """Whether one of the local folders has a CPU build of PyTorch."""
    return any(next(Path(f).glob("torch-*+cpu-*.whl"), None) for f in folders if "://" not in f)


def install_uv() -> bool:
    """Put uv into the environment, unless some uv is on the path."""
    if shutil.which("uv"):
        return True
    return run([str(PYTHON), "-m", "pip", "install", "--quiet", "uv"])


def install_with_uv(folders: Sequence[str]) -> bool:
    """Install everything with uv; False if it could not."""
    uv = shutil.which("uv") or str(VENV / "bin" / "uv")
    # Compiled now, once: else the first workers that import torch would all compile it at the same time.
    command = [uv, "pip", "install", "--compile-bytecode", "--python", str(PYTHON), "--constraint", str(CONSTRAINTS)]
    for folder in folders:
        command += ["--find-links", folder]
    if not has_gpu() and not holds_cpu_torch(folders):
        command += ["--torch-backend", "cpu"]
    # The certificates that pip is told to trust are those that uv must trust as well.
    env = dict(os.environ)
    if "PIP_CERT" in env:
        env.setdefault("SSL_CERT_FILE", env["PIP_CERT"])
    return run([*command, "--editable", EXTRAS], env)


def install_with_pip(folders: Sequence[str]) -> None:
    """Install everything with pip; raises CalledProcessError if it could not."""
    command = [str(PYTHON), "-m", "pip", "install", "--constraint", str(CONSTRAINTS)]
    for folder in folders:
        command += ["--find-links", folder]
    if not has_gpu() and not holds_cpu_torch(folders):
        command += ["--extra-index-url", CPU_INDEX]
    subprocess.run([*command, "--editable", EXTRAS], check=True, cwd=ROOT)


def run(command: Sequence[str], env: dict[str, str] | None = None) -> bool:
    """Run in the repository's root; whether it succeeded. Its output is the user's to see."""
    print("+ " + " ".join(command), flush=True)
    return subprocess.run(command, cwd=ROOT, env=env).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
