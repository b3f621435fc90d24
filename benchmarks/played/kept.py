"""Runs of the openb lists that are done, so that a benchmark of an hour can go on where it was stopped."""

from __future__ import annotations

import json
from pathlib import Path

Run = tuple[str, str, int]
"""(list, policy, seed)."""


class Kept:
    """Runs that are done, in a file of one JSON object a line; without a file in memory alone.

    They are taken for done whatever the code was then. What is left of a line after an interruption is dropped.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.done: dict[Run, dict[int, float]] = {}
        if path is None or not path.exists():
            return
        whole, _, rest = path.read_text(encoding="utf-8").rpartition("\n")
        if rest:
            path.write_text(f"{whole}\n" if whole else "", encoding="utf-8")
        for line in whole.splitlines():
            row = json.loads(line)
            self.done[row["list"], row["policy"], row["seed"]] = {int(load): x for load, x in row["loads"].items()}

    def put(self, run: Run, loads: dict[int, float]) -> None:
        """One more."""
        self.done[run] = loads
        if self.path is not None:
            row = {"list": run[0], "policy": run[1], "seed": run[2], "loads": loads}
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
