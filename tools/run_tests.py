"""All tests: those without a Ray cluster in as many processes as the machine has cores, then those with one by one.

A Ray cluster takes most of a small machine, and two at a time would only wait for each other. Arguments go to pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys

NOTHING_TO_RUN = 5
"""pytest's exit code where a selection holds no test."""
MOST = 8
"""Processes at most: beyond that the slowest files decide."""


def main(arguments: list[str]) -> int:
    """Run both parts, the second also after failures of the first; the first failure's exit code."""
    workers = str(min(MOST, os.cpu_count() or 1))
    # All tests of a file in one process: what a module prepares once is prepared once.
    plain = _pytest(["-m", "not ray", "-n", workers, "--dist", "loadfile", *arguments])
    real = _pytest(["-m", "ray", *arguments])
    codes = [code for code in (plain, real) if code != NOTHING_TO_RUN]
    return next((code for code in codes if code), 0) if codes else NOTHING_TO_RUN


def _pytest(arguments: list[str]) -> int:
    command = [sys.executable, "-m", "pytest", *arguments]
    print("===", " ".join(command), flush=True)
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
