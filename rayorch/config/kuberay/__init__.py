"""Kubernetes manifests of a RayCluster that runs rayorch: rendered from a few checked values, and checked again.

Pure text to data and back: no Kubernetes client, no cluster. `render` gives the same text for the same values.
"""

from rayorch.config.kuberay.checks import Finding, Level, check_manifests
from rayorch.config.kuberay.documents import Manifest, load_manifests, to_json, to_yaml
from rayorch.config.kuberay.render import render, render_secrets
from rayorch.config.kuberay.schemas import check_schemas
from rayorch.config.kuberay.values import GroupValues, KubeRayValues, Mode, group_from_text, load_values

__all__ = [
    "Finding",
    "GroupValues",
    "KubeRayValues",
    "Level",
    "Manifest",
    "Mode",
    "check_manifests",
    "check_schemas",
    "group_from_text",
    "load_manifests",
    "load_values",
    "render",
    "render_secrets",
    "to_json",
    "to_yaml",
]
