"""Text that becomes data: the YAML documents, checked and turned into core's values."""

from rayorch.config.cluster import ClusterDocument, ClusterSettings, KubeRaySection, Pool
from rayorch.config.documents import (
    API_VERSION,
    Document,
    QueueDocument,
    ServeAppDocument,
    WorkloadDocument,
    load_documents,
    parse_document,
)
from rayorch.config.profile import POLICY_SLOTS, PRESETS, ProfileSettings, load_function, load_preset, load_profile
from rayorch.config.text import duration_s, load_json, load_yaml

__all__ = [
    "API_VERSION",
    "POLICY_SLOTS",
    "PRESETS",
    "ClusterDocument",
    "ClusterSettings",
    "Document",
    "KubeRaySection",
    "Pool",
    "ProfileSettings",
    "QueueDocument",
    "ServeAppDocument",
    "WorkloadDocument",
    "duration_s",
    "load_documents",
    "load_function",
    "load_json",
    "load_preset",
    "load_profile",
    "load_yaml",
    "parse_document",
]
