"""Ctrl-C from the first moment on: one line and exit code 130, whatever was being loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.source_tree import ROOT

TRACE = str(ROOT / "examples/traces/two-teams.csv")
WORDS = ("simulate", TRACE, "-c", "4x8", "--jobs", "5", "--quiet")
# A signal in the middle of the import of one module, where an exception may be lost or become another.
INTERRUPTED_AT = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            try:
                exec("os.kill(os.getpid(), signal.SIGINT)", {{"os": os, "signal": signal}})
            except KeyboardInterrupt:
                raise ImportError("as modules written in C make of it") from None
        return None

sys.meta_path.insert(0, Interrupt())
sys.argv = ["rayorch", *{words!r}]
from rayorch.cli.entry import main
main()
"""


def interrupted_at(module: str, *more: str) -> subprocess.CompletedProcess[str]:
    """The command, which gets the signal when it imports this module."""
    code = INTERRUPTED_AT.format(module=module, words=(*WORDS, *more))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    "module", ["rayorch.cli.main", "typer", "rayorch.cli.simulate", "numpy", "pydantic", "rayorch.experiment.store"]
)
def test_while_it_is_loaded(module: str) -> None:
    done = interrupted_at(module)
    assert done.returncode == 130
    assert done.stdout == "" and done.stderr.startswith("interrupted") and len(done.stderr.splitlines()) == 1


def test_while_the_runs_begin(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "import rayorch.experiment.side_by_side as module\n"
        "def play(*given):\n    os.kill(os.getpid(), signal.SIGINT)\n"
        "module.play = play\n"
        f"sys.argv = ['rayorch', *{WORDS!r}, '--out', {str(tmp_path / 'out')!r}]\n"
        "from rayorch.cli.entry import main\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted after 0 of 1 runs\n")
