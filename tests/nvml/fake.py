"""Builds the stand-in for NVIDIA's library, and is the machine whose GPUs it shows."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")


class FakeMachine:
    """A machine with `count` H100s. `environment` is what a process needs to see them, from its start on."""

    def __init__(self, folder: Path, library: Path, count: int = 8) -> None:
        self.state = folder / "gpus"
        self.state.write_text("")
        self.environment = {
            "LD_LIBRARY_PATH": str(library.parent),
            "FAKE_NVML_STATE": str(self.state),
            "FAKE_NVML_COUNT": str(count),
        }

    def shows(self, *lines: str) -> None:
        """From now on the GPUs are healthy but for these lines (see fake_nvml.c)."""
        whole = self.state.with_suffix(".new")
        whole.write_text("".join(f"{line}\n" for line in lines))
        whole.replace(self.state)


def build(folder: Path) -> Path:
    """The library's path; skips, and says why, where it can't be built."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: the stand-in for NVIDIA's library can't be built")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(
        [compiler, "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(library), str(SOURCE)], check=True
    )
    return library
