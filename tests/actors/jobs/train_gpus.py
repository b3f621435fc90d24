"""A user's Ray Train script: workers (argument 1) with so many GPUs each (argument 2) say which they have."""

import json
import os
import sys
from typing import Any

import ray
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


def loop(config: dict[str, Any]) -> None:
    context = ray.train.get_context()
    said = {
        "rank": context.get_world_rank(),
        "ids": sorted(ray.get_gpu_ids()),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "node": ray.get_runtime_context().get_node_id(),
    }
    with open(f"{config['folder']}/{context.get_world_rank()}.json", "w") as file:
        file.write(json.dumps(said))
    ray.train.report({"step": 1})


folder = sys.argv[3]
scaling = ScalingConfig(num_workers=int(sys.argv[1]), use_gpu=True, resources_per_worker={"GPU": float(sys.argv[2])})
trainer = DataParallelTrainer(
    loop, train_loop_config={"folder": folder}, scaling_config=scaling, run_config=RunConfig(storage_path=folder)
)
trainer.fit()
