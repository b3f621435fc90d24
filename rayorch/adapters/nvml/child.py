"""The process that calls NVML: for each line on its input one look, answered by one line of JSON.

Before each call it writes its name ("@3 nvmlDeviceGetPowerUsage"), so that whoever waits knows which one hangs.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

import pynvml

from rayorch.adapters.nvml.library import Library
from rayorch.core.device_facts import Sight


def _trace(index: int, name: str) -> None:
    os.write(1, f"@{index} {name}\n".encode())


def main() -> None:
    """Until the input ends: that is also how it learns that its parent is gone."""
    library: Library | None = None
    for line in sys.stdin:
        skip = frozenset(int(index) for index in json.loads(line))
        try:
            if library is None:
                library = Library(_trace)
            sight = library.read(skip)
        except pynvml.NVMLError as error:
            sight = Sight(error=f"NVML: {error}")
        os.write(1, json.dumps(asdict(sight)).encode() + b"\n")


if __name__ == "__main__":
    main()
