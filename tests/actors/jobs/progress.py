"""A job that counts up and keeps its count in a file, as training does with its checkpoints; imports no Ray.

usage: progress.py FILE LAST [PERIOD_S]. Each step is one line "attempt step pid", appended in one write, so
that the file also shows whether two attempts ever ran at the same time.
"""

import os
import sys
import time

path, last = sys.argv[1], int(sys.argv[2])
period_s = float(sys.argv[3]) if len(sys.argv) > 3 else 0.1
try:
    with open(path) as file:
        step = max((int(line.split()[1]) for line in file), default=0)
except FileNotFoundError:
    step = 0
attempt = os.environ["RAYORCH_ATTEMPT"]
print(f"attempt {attempt} goes on from step {step}", flush=True)
with open(path, "a", buffering=1) as file:
    while step < last:
        step += 1
        file.write(f"{attempt} {step} {os.getpid()}\n")
        print(f"step {step}", flush=True)
        time.sleep(period_s)
