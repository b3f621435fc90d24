"""Serve the digits classifier: POST 64 numbers from 0 to 1, get the digit. An ordinary Ray Serve application.

The model is read from the newest checkpoint below DIGITS_CHECKPOINTS when a replica starts.
"""

from __future__ import annotations

import glob
import os
import time
from typing import Any

import torch
from ray import serve
from starlette.requests import Request

from examples.demo.train_digits import build_model

ANSWER_S = 0.15
"""Least time per answer: it stands for a model that fills a GPU."""


@serve.deployment(
    ray_actor_options={"num_gpus": 1, "num_cpus": 1},
    max_ongoing_requests=4,
    autoscaling_config={"min_replicas": 1, "max_replicas": 3, "target_ongoing_requests": 2},
)
class Digits:
    """One replica: a model on one GPU."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.model = build_model()
        self.step = 0
        found = sorted(
            glob.glob(os.path.join(os.environ["DIGITS_CHECKPOINTS"], "**", "state.pt"), recursive=True),
            key=os.path.getmtime,
        )
        if found:
            state = torch.load(found[-1])
            self.step = state["step"]
            self.model.load_state_dict(state["model"])
        self.model.eval()

    async def __call__(self, request: Request) -> dict[str, Any]:
        """Name one digit."""
        import asyncio

        began_s = time.monotonic()
        pixels = torch.tensor(await request.json(), dtype=torch.float32).reshape(1, 1, 8, 8)
        with torch.no_grad():
            digit = int(self.model(pixels).argmax())
        await asyncio.sleep(max(0.0, ANSWER_S - (time.monotonic() - began_s)))
        return {"digit": digit, "step": self.step, "pid": os.getpid()}


app = Digits.bind()
