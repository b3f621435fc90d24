"""Text that becomes data: the YAML documents, checked and turned into core's values."""

from rayorch.config.calendar_documents import CronDocument, ReservationDocument
from rayorch.config.cluster import ClusterDocument, ClusterSettings, KubeRaySection, Pool
from rayorch.config.documents import API_VERSION, QueueDocument, ServeAppDocument, WorkloadDocument
from rayorch.config.parsing import Document, load_documents, parse_document
from rayorch.config.profile import POLICY_SLOTS, PRESETS, ProfileSettings, load_function, load_preset, load_profile
from rayorch.config.text import duration_s, load_json, load_yaml, typed_duration_s

__all__ = [
    "API_VERSION",
    "POLICY_SLOTS",
    "PRESETS",
    "ClusterDocument",
    "ClusterSettings",
    "CronDocument",
    "Document",
    "KubeRaySection",
    "Pool",
    "ProfileSettings",
    "QueueDocument",
    "ReservationDocument",
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
    "typed_duration_s",
]
