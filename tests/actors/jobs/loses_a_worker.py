"""A job whose Ray worker is killed in its first attempt."""

import os
import signal

import ray

ray.init()


@ray.remote(num_gpus=1, num_cpus=0, max_retries=0)
def work(attempt: int) -> int:
    if attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return attempt


print("WORKED", ray.get(work.remote(int(os.environ["RAYORCH_ATTEMPT"]))), flush=True)
