"""A Ray Train script as a user writes it: it knows nothing of rayorch. Run by test_ray_train.py as a driver.

Each step adds one to `value`, so that the final value tells whether a step was lost or done twice.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import ray.train
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig


def save(folder: str, step: int, value: int) -> Checkpoint:
    Path(folder, "state.json").write_text(json.dumps({"step": step, "value": value}))
    return Checkpoint.from_directory(folder)


def resume() -> tuple[int, int]:
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0, 0
    with checkpoint.as_directory() as folder:
        state = json.loads(Path(folder, "state.json").read_text())
    return state["step"], state["value"]


def write(config: dict[str, Any], **fields: Any) -> None:
    if ray.train.get_context().get_world_rank() == 0:
        with Path(config["log"]).open("a") as log:
            log.write(json.dumps({"at": time.time(), "pid": os.getpid(), **fields}) + "\n")


def add_one(value: int, torch: bool) -> int:
    if not torch:
        return value + 1
    import torch as t
    import torch.distributed as dist

    ones = t.ones(1)
    dist.all_reduce(ones)
    return value + int(ones.item()) // dist.get_world_size()


def obedient(config: dict[str, Any]) -> None:
    step, value = resume()
    context = ray.train.get_context()
    seats = ray.get_runtime_context().get_node_id(), ray.get_gpu_ids()
    write(config, event="start", world=context.get_world_size(), step=step, seats=seats)
    while step < config["steps"]:
        time.sleep(config["step_s"])
        value = add_one(value, config["torch"])
        step += 1
        info = ray.train.get_preemption_info()
        due = info is not None or step % config["every"] == 0 or step == config["steps"]
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = save(folder, step, value) if due and context.get_world_rank() == 0 else None
            write(config, event="step", step=step)
            ray.train.report({"step": step, "value": value}, checkpoint=checkpoint)
        if config["quits"] and info is not None:
            return


def stubborn(config: dict[str, Any]) -> None:
    """Saves once and then never looks up; after a resume it ends."""
    step, value = resume()
    world = ray.train.get_context().get_world_size()
    write(config, event="start", world=world, step=step)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = save(folder, step + 1, value + 1) if ray.train.get_context().get_world_rank() == 0 else None
        ray.train.report({"step": step + 1, "value": value + 1}, checkpoint=checkpoint)
    if step == 0:
        time.sleep(3600)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", required=True)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--step-s", type=float, default=0.1)
    parser.add_argument("--every", type=int, default=1_000_000)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--quits", action="store_true", help="return when asked to checkpoint, instead of going on")
    parser.add_argument("--stubborn", action="store_true")
    parser.add_argument("--log", required=True)
    options = parser.parse_args()
    low, _, high = options.workers.partition(",")
    arguments: dict[str, Any] = {
        "train_loop_config": vars(options),
        "scaling_config": ScalingConfig(num_workers=(int(low), int(high)) if high else int(low), use_gpu=True),
        "run_config": RunConfig(failure_config=FailureConfig(max_failures=0)),
    }
    loop = stubborn if options.stubborn else obedient
    if options.torch:
        from ray.train.torch import TorchConfig, TorchTrainer

        result = TorchTrainer(loop, torch_config=TorchConfig(backend="gloo"), **arguments).fit()
    else:
        from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

        result = DataParallelTrainer(loop, **arguments).fit()
    print("RESULT", json.dumps({"metrics": result.metrics, "path": result.path}), flush=True)


if __name__ == "__main__":
    main()
