"""The process that calls NVML: for each line on its input one look, answered by one line of JSON.

Before each call it writes its name ("@3 nvmlDeviceGetPowerUsage"), so that whoever waits knows which one hangs.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict

import pynvml

from rayorch.adapters.nvml.library import Library
from rayorch.core.device_facts import Sight

PARENT_PERIOD_S = 1.0


def _trace(index: int, name: str) -> None:
    os.write(1, f"@{index} {name}\n".encode())


def _end_with(parent: int) -> None:
    """End the process when its parent has: also while a call hangs, unless it hangs in the kernel."""
    while os.getppid() == parent:
        time.sleep(PARENT_PERIOD_S)
    os._exit(1)


def main() -> None:
    """Until the input ends."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
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
