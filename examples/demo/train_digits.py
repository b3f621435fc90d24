"""Train a digits classifier with Ray Train. An ordinary script: nothing in it knows who schedules it.

Data: scikit-learn's copy of the UCI handwritten digits, 1,797 images of 8x8 (CC BY 4.0). Data-parallel over gloo,
elastic from 2 to 4 workers, a checkpoint every `--checkpoint-every` steps and one whenever Ray Train says that the
workers are about to be taken (`ray.train.get_preemption_info`).
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time

import numpy as np
import ray.train
import torch
import torch.distributed as dist
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from sklearn.datasets import load_digits
from torch import nn

BATCH = 128
"""Images per step over all workers, so that a step is the same step at any size."""


def build_model() -> nn.Module:
    """A small convolutional network for 8x8 images."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 16, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def load_split() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Train images and labels, test images and labels; every fifth image is for the test."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(digits.target)
    test = torch.arange(len(labels)) % 5 == 0
    return images[~test], labels[~test], images[test], labels[test]


def batch_of(step: int, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch of one step, shifted by up to one pixel; it depends on the step alone, so a resumed run sees it too."""
    rng = np.random.default_rng(step)
    rows = torch.from_numpy(rng.integers(0, len(labels), BATCH))
    down, right = (int(n) for n in rng.integers(-1, 2, 2))
    return torch.roll(images[rows], (down, right), dims=(2, 3)), labels[rows]


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """The share of images that the model names rightly."""
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(dim=1) == labels).float().mean()
    model.train()
    return float(right)


def report(
    step: int, model: nn.Module, optimizer: torch.optim.Optimizer, metrics: dict[str, float], save: bool
) -> None:
    """Tell Ray Train where we are; with `save`, rank 0 hands over a checkpoint. Every rank must call it."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if save and ray.train.get_context().get_world_rank() == 0:
            inner = getattr(model, "module", model)
            state = {"step": step, "model": inner.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, os.path.join(folder, "state.pt"))
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"step": step, **metrics}, checkpoint=checkpoint)


def told_to_finish(finish: str, rank: int) -> bool:
    """Whether rank 0 sees the file that ends the training; the same answer on every rank."""
    flag = torch.tensor([float(rank == 0 and (not finish or os.path.exists(finish)))])
    dist.broadcast(flag, src=0)
    return bool(flag.item())


def train_loop(config: dict[str, float | int | str]) -> None:
    """What each worker runs, from the last checkpoint to the last step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    images, labels, test_images, test_labels = load_split()
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    start = 0
    if (found := ray.train.get_checkpoint()) is not None:
        with found.as_directory() as folder:
            state = torch.load(os.path.join(folder, "state.pt"))
        start = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    model = prepare_model(model, move_to_device=False)
    saved_for_preemption = False
    history = str(config["history"])
    every, least, most = (int(config[name]) for name in ("checkpoint_every", "steps", "max_steps"))
    for step in range(start + 1, most + 1):
        began_s = time.time()
        batch, target = batch_of(step, images, labels)
        mine = slice(rank * BATCH // world, (rank + 1) * BATCH // world)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch[mine]), target[mine])
        loss.backward()
        optimizer.step()
        # A step takes at least this long: it stands for the compute of a model that fills a GPU.
        time.sleep(max(0.0, float(config["step_s"]) - (time.time() - began_s)))
        if rank == 0:
            with open(history, "a") as file:
                file.write(
                    json.dumps({"step": step, "world": world, "at_s": time.time(), "loss": float(loss.detach())}) + "\n"
                )
        leaving = ray.train.get_preemption_info() is not None and not saved_for_preemption
        boundary = step % every == 0
        last = step == most or (boundary and step >= least and told_to_finish(str(config["finish"]), rank))
        if leaving or last or boundary:
            score = accuracy(getattr(model, "module", model), test_images, test_labels)
            report(step, model, optimizer, {"accuracy": score, "loss": float(loss.detach())}, save=True)
            saved_for_preemption = saved_for_preemption or leaving
        if last:
            break
    dist.barrier()


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300, help="least number of steps")
    parser.add_argument("--max-steps", type=int, default=20_000)
    parser.add_argument("--finish", default="", help="train on until this file exists; without it, --steps is the end")
    parser.add_argument("--checkpoint-every", type=int, default=25)
    parser.add_argument("--step-s", type=float, default=0.1, help="least time of one step [s]")
    parser.add_argument("--min-workers", type=int, default=2)
    parser.add_argument("--max-workers", type=int, default=4)
    parser.add_argument("--storage", required=True, help="folder for checkpoints")
    parser.add_argument("--name", default="digits")
    parser.add_argument("--history", required=True, help="file that gets one line per step")
    options = parser.parse_args()
    trainer = TorchTrainer(
        train_loop,
        train_loop_config={
            "steps": options.steps,
            "max_steps": options.max_steps,
            "finish": options.finish,
            "checkpoint_every": options.checkpoint_every,
            "step_s": options.step_s,
            "history": options.history,
        },
        # Emulated GPUs exist in Ray's books only: gloo on the CPU, where a real cluster takes NCCL.
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=(options.min_workers, options.max_workers), use_gpu=True),
        run_config=RunConfig(
            name=options.name,
            storage_path=options.storage,
            checkpoint_config=CheckpointConfig(num_to_keep=2),
            failure_config=FailureConfig(max_failures=0),
        ),
    )
    result = trainer.fit()
    metrics = result.metrics or {}
    print(json.dumps({"accuracy": metrics.get("accuracy"), "step": metrics.get("step")}), flush=True)


if __name__ == "__main__":
    main()
