"""What a group's nodes have, from what its specification says: accelerator model, spot or not, labels.

A Kubernetes node selector names hardware in each cloud's own words; Ray names models in its own. Without a word of
either the model is not known, and a group whose model is not known serves only gangs that don't ask for one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from rayorch.core.types import MODEL_LABEL

MARKET_LABEL = "ray.io/market-type"
GROUP_LABEL = "ray.io/node-group"  # Ray sets it on each node from KubeRay's RAY_NODE_TYPE_NAME

MODEL_SELECTORS = (
    MODEL_LABEL,
    "nvidia.com/gpu.product",  # GPU feature discovery: NVIDIA-H100-80GB-HBM3
    "cloud.google.com/gke-accelerator",  # nvidia-h100-80gb
    "karpenter.k8s.aws/instance-gpu-name",  # h100
    "k8s.amazonaws.com/accelerator",  # nvidia-tesla-v100
)
MODELS = (
    *("GB300", "GB200", "B300", "B200", "H200", "H100", "H20", "A100", "A10G", "L40S", "L4"),
    *("V100", "P100", "P4", "T4", "K80", "RTX-PRO-6000"),
)
"""Ray's names for NVIDIA's models; the others are taken as they are written in the label."""

SPOT_SELECTORS = {
    MARKET_LABEL: "spot",
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-provisioning": "spot",
    "eks.amazonaws.com/capacitytype": "spot",
    "karpenter.sh/capacity-type": "spot",
    "kubernetes.azure.com/scalesetpriority": "spot",
}
"""Label (in lower case) and value (in lower case) of nodes that their owner may take back at any time."""


def accelerator_model(labels: Mapping[str, str], selector: Mapping[str, str]) -> str:
    """Ray's name of the accelerator, from the group's own label first, then from node selectors; empty when unknown."""
    if own := labels.get(MODEL_LABEL, "").strip():
        return own
    for key in MODEL_SELECTORS:
        if product := selector.get(key, "").strip():
            return product if key == MODEL_LABEL else _ray_name(product)
    return ""


def _ray_name(product: str) -> str:
    words = re.split(r"[^A-Z0-9]+", product.upper())
    for model in MODELS:
        parts = model.split("-")
        if any(words[i : i + len(parts)] == parts for i in range(len(words))):
            return model
    return ""


def is_spot(*labels: Mapping[str, str]) -> bool:
    """Whether any of these labels says that the nodes may be taken back."""
    return any(
        SPOT_SELECTORS.get(key.lower()) == value.strip().lower() for given in labels for key, value in given.items()
    )


def start_labels(text: str) -> dict[str, str]:
    """The labels of `ray start --labels "a=b,c=d"`; ValueError for what Ray would not take."""
    found: dict[str, str] = {}
    for part in text.strip().strip("\"'").split(","):
        if not part.strip():
            continue
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"not a list of label=value: {text[:80]!r}")
        found[key.strip()] = value.strip()
    return found
