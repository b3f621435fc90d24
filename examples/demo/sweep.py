"""A batch sweep with plain Ray tasks: one GPU each, no placement named. Prints the best score of a ridge classifier."""

from __future__ import annotations

import time

import ray
from sklearn.datasets import load_digits
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import cross_val_score


@ray.remote(num_gpus=1)
def score(alpha: float) -> tuple[float, float]:
    """Mean cross-validated accuracy at one strength of regularisation."""
    digits = load_digits()
    began_s = time.time()
    mean = float(cross_val_score(RidgeClassifier(alpha=alpha), digits.data, digits.target, cv=3).mean())
    time.sleep(max(0.0, 2.0 - (time.time() - began_s)))  # stands for a trial that fills a GPU for a while
    return alpha, mean


def main() -> None:
    """Try every alpha, print each as it comes and the best last."""
    ray.init()
    waiting = [score.remote(alpha) for alpha in (1.0, 10.0, 100.0, 1000.0)]
    best = (0.0, 0.0)
    while waiting:
        done, waiting = ray.wait(waiting)
        alpha, mean = ray.get(done[0])
        print(f"alpha={alpha:g} accuracy={mean:.4f}", flush=True)
        best = max(best, (mean, alpha))
    print(f"best alpha={best[1]:g} accuracy={best[0]:.4f}", flush=True)


if __name__ == "__main__":
    main()
