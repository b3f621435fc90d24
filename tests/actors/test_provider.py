"""Who provides nodes: the Cluster document first, then the pod that the server runs in, else nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayorch.actors.group_facts import GroupWishes
from rayorch.actors.node_groups import GroupSettings
from rayorch.actors.provider import group_settings
from rayorch.adapters.kuberay import KubeRaySettings
from rayorch.config import ClusterDocument, load_documents
from rayorch.core.errors import SpecError
from rayorch.core.node_groups import GroupKnobs

POD = {"RAY_CLUSTER_NAME": "ml", "KUBERNETES_SERVICE_HOST": "10.0.0.1", "RAY_CLUSTER_NAMESPACE": "research"}


def _settings(spec: str, environment: dict[str, str], namespace_file: Path = Path("/nowhere")) -> GroupSettings | None:
    text = f"apiVersion: rayorch/v1\nkind: Cluster\nmetadata: {{name: c}}\nspec: {spec}\n"
    (document,) = load_documents(text)
    assert isinstance(document, ClusterDocument)
    cluster = document.to_core()
    return group_settings(cluster, cluster.load_profile(), ("rack",), environment, namespace_file)


def _kuberay(spec: str, environment: dict[str, str], namespace_file: Path = Path("/nowhere")) -> KubeRaySettings | None:
    settings = _settings(spec, environment, namespace_file)
    assert settings is not None
    return settings.kuberay


def test_nobody_provides_nodes_where_nothing_says_so() -> None:
    assert _settings("{}", {}) is None
    assert _settings("{}", {"RAY_CLUSTER_NAME": "ml"}) is None  # a name alone is no pod
    assert _settings("{nodeProvider: none}", POD) is None


def test_in_a_pod_of_a_raycluster_its_groups_are_looked_after() -> None:
    assert _kuberay("{}", POD) == KubeRaySettings("ml", "research")
    assert _kuberay("{kuberay: {}}", POD) == KubeRaySettings("ml", "research")


def test_the_document_goes_before_the_pod() -> None:
    section = "{kuberay: {cluster: big, namespace: prod, kubeconfig: /etc/kube, context: west}}"
    assert _kuberay(section, POD) == KubeRaySettings("big", "prod", "/etc/kube", "west")


def test_the_namespace_is_the_pods_own_or_default(tmp_path: Path) -> None:
    pod = {name: value for name, value in POD.items() if name != "RAY_CLUSTER_NAMESPACE"}
    own = tmp_path / "namespace"
    own.write_text("team-a\n")
    assert _kuberay("{}", pod, own) == KubeRaySettings("ml", "team-a")
    assert _kuberay("{kuberay: {cluster: big}}", {}) == KubeRaySettings("big", "default")


def test_rays_autoscaler_can_be_named_outside_of_kubernetes() -> None:
    settings = _settings("{nodeProvider: ray}", {})
    assert settings is not None and settings.kuberay is None and settings.declared == ()


def test_the_pools_are_the_node_types_of_an_autoscaler_that_shows_none() -> None:
    pools = "{name: h100, gpusPerNode: 8, maxNodes: 4, match: {ray.io/accelerator-type: H100}, preference: 2}"
    settings = _settings(f"{{nodeProvider: ray, nodePools: [{pools}, {{name: any}}]}}", {})
    assert settings is not None
    h100, other = settings.declared
    assert (h100.name, h100.max_replicas, h100.model, h100.preference) == ("h100", 4, "H100", 2)
    assert h100.total.gpu_units == 80_000 and h100.total.units("CPU") > 10**12  # not what limits it
    assert (other.max_replicas, other.model) == (1_000_000, "")


@pytest.mark.parametrize(
    ("spec", "environment", "field"),
    [
        ("{nodeProvider: kuberay}", {}, "spec.kuberay.cluster"),
        ("{kuberay: {}}", {}, "spec.kuberay.cluster"),
        ("{kuberay: {cluster: Big_One}}", {}, "kuberay.cluster"),
        ("{nodeProvider: ray, kuberay: {cluster: big}}", {}, "spec.nodeProvider"),
        ("{nodeProvider: cloud}", {}, "spec.nodeProvider"),
        ("{kuberay: {cluster: big, port: 1}}", {}, "spec.kuberay.port"),
        ("{nodePools: [{name: a, spares: -1}]}", {}, "spec.nodePools[0].spares"),
        ("{nodePools: [{name: a, idle: soon}]}", {}, "spec.nodePools[0].idle"),
    ],
)
def test_what_can_not_be_is_refused_with_its_field(spec: str, environment: dict[str, str], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        _settings(spec, environment)
    assert caught.value.field == field


def test_pools_say_how_groups_of_their_name_are_treated_and_timings_become_knobs() -> None:
    settings = _settings(
        "{nodeProvider: ray, nodePools: [{name: h100, spares: 1, idle: 2m, preference: 3}, {name: l4}],"
        " timing: {provision: 4m, provisionDeadlineFactor: 3.0, groupBackoff: 30s, groupBackoffMax: 1h}}",
        {},
    )
    assert settings is not None
    assert settings.wishes == (GroupWishes("h100", 1, 120.0, 3), GroupWishes("l4"))
    assert settings.knobs == GroupKnobs(provision_s=240.0, deadline_factor=3.0, backoff_s=30.0, backoff_max_s=3600.0)
    assert settings.levels == ("rack",)
