"""A user's script whose two actors hold a GPU each until a file appears; then each says which group it was in."""

import sys
import time
from pathlib import Path

import ray

ray.init()


@ray.remote(num_gpus=1)
class Holder:
    def group(self) -> str:
        group = ray.util.get_current_placement_group()
        return group.id.hex() if group is not None else "none"


go = Path(sys.argv[1])
holders = [Holder.remote() for _ in range(2)]  # type: ignore[attr-defined]
groups = ray.get([h.group.remote() for h in holders])
print("HELD " + " ".join(groups))
while not go.exists():
    time.sleep(0.1)
for holder in holders:
    ray.kill(holder)
print("LET GO")
time.sleep(1000)
