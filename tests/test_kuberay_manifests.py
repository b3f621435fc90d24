"""The rendered manifests: good by KubeRay's definitions, by Kubernetes' own types, by the adapter that will read them,
and the same as the files in configs/kuberay."""

from __future__ import annotations

import copy
import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rayorch.config import ClusterDocument, QueueDocument, load_documents
from rayorch.config.kuberay import (
    Finding,
    KubeRayValues,
    Manifest,
    check_manifests,
    check_schemas,
    group_from_text,
    load_manifests,
    load_values,
    render,
    render_secrets,
    to_json,
    to_yaml,
)
from rayorch.core.errors import SpecError
from rayorch.core.types import Resources
from rayorch.serve_apps.gateway.jobs_form import workload_of_request
from tests.kuberay.crd import definitions
from tests.source_tree import ROOT

SAMPLES = ROOT / "configs" / "kuberay"
PLURALS = {"RayCluster": "rayclusters", "RayJob": "rayjobs", "RayService": "rayservices"}
RENDERED = {"cluster": "values", "job": "values", "service": "values", "cluster-ray": "values-ray"}
"""Sample file → values that it was rendered from."""


def _values(name: str = "values") -> KubeRayValues:
    return load_values((SAMPLES / f"{name}.yaml").read_bytes(), name)


def _sample(name: str) -> tuple[Manifest, ...]:
    return render(_values(RENDERED[name]), name.split("-")[0])


def _all() -> list[Manifest]:
    return [document for name in RENDERED for document in _sample(name)]


def _one(documents: tuple[Manifest, ...] | list[Manifest], kind: str, name: str = "") -> Any:
    found = [d for d in documents if d["kind"] == kind and (not name or d["metadata"]["name"] == name)]  # type: ignore[index, call-overload]
    assert len(found) == 1, (kind, name, len(found))
    return copy.deepcopy(found[0])


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("name", RENDERED)
def test_the_sample_file_is_what_its_values_give(name: str) -> None:
    assert (SAMPLES / f"{name}.yaml").read_text(encoding="utf-8") == to_yaml(_sample(name))


@pytest.mark.parametrize("name", RENDERED)
def test_text_comes_back_as_it_was(name: str) -> None:
    documents = _sample(name)
    assert load_manifests(to_yaml(documents)) == documents
    assert load_manifests(to_json(documents)) == documents


def test_no_secret_is_in_what_is_rendered() -> None:
    assert not [d for d in _all() if d["kind"] == "Secret"]
    first, second = render_secrets(_values()), render_secrets(_values())
    assert [d["metadata"]["name"] for d in first] == ["main-rayorch-token", "main-ray-token", "main-redis"]  # type: ignore[index, call-overload]
    assert first != second, "tokens are fresh each time"
    text = to_yaml(_all())
    for secret in ("main-rayorch-token", "main-ray-token", "main-redis"):
        assert re.search(rf"(secretName|name): {secret}\b", text), secret


# ---------------------------------------------------------------- definitions and types


@pytest.mark.parametrize("document", [d for d in _all() if d["kind"] in PLURALS], ids=lambda d: d["kind"])
def test_kuberays_definitions_take_it_with_strict_fields(document: Manifest, crds_dir: Path) -> None:
    definition = definitions(crds_dir)[PLURALS[str(document["kind"])]]
    assert list(definition.errors(document)) == []
    assert definition.unknown(document) == []
    assert check_schemas([document], crds_dir) == []


def test_the_schema_check_sees_wrong_types_and_unknown_fields(crds_dir: Path) -> None:
    cluster = _one(_sample("cluster"), "RayCluster")
    cluster["spec"]["workerGroupSpecs"][0]["replicas"] = "two"
    cluster["spec"]["workerGroupSpecs"][1]["template"]["spec"]["containers"][0]["imagine"] = "ubuntu"
    cluster["spec"]["rayStartParams"] = {}
    found = {(f.field, f.message) for f in check_schemas([cluster], crds_dir)}
    assert ("spec.rayStartParams", "is not a field") in found
    assert ("spec.workerGroupSpecs[1].template.spec.containers[0].imagine", "is not a field") in found
    assert any(field == "spec.workerGroupSpecs.0.replicas" and "integer" in message for field, message in found)
    assert len(found) == 3


def test_a_folder_without_definitions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no CustomResourceDefinition"):
        check_schemas(_sample("cluster"), tmp_path)


MODELS = {
    "Namespace": "V1Namespace",
    "ServiceAccount": "V1ServiceAccount",
    "Role": "V1Role",
    "RoleBinding": "V1RoleBinding",
    "PersistentVolumeClaim": "V1PersistentVolumeClaim",
    "ConfigMap": "V1ConfigMap",
    "Secret": "V1Secret",
    "Service": "V1Service",
    "StatefulSet": "V1StatefulSet",
    "NetworkPolicy": "V1NetworkPolicy",
}


@pytest.mark.parametrize(
    "document",
    [d for d in [*_all(), *render_secrets(_values())] if d["kind"] not in PLURALS],
    ids=lambda d: f"{d['kind']}",
)
def test_kubernetes_own_types_hold_all_of_it(document: Manifest) -> None:
    """An unknown field would be lost on the way through the official client's model, a missing one be refused."""
    from kubernetes import client

    api: Any = client.ApiClient()
    model = api._ApiClient__deserialize(document, MODELS[str(document["kind"])])
    assert api.sanitize_for_serialization(model) == document


@pytest.mark.parametrize("name", ["cluster", "cluster-ray", "service"])
def test_pod_templates_hold_all_of_it(name: str) -> None:
    from kubernetes import client

    api: Any = client.ApiClient()
    kind = "RayService" if name == "service" else "RayCluster"
    spec = _one(_sample(name), kind)["spec"]
    spec = spec.get("rayClusterConfig", spec)
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        template = group["template"]
        model = api._ApiClient__deserialize(template, "V1PodTemplateSpec")
        assert api.sanitize_for_serialization(model) == template


# ---------------------------------------------------------------- the head


def _server_script(values: KubeRayValues) -> str:
    head = _one(render(values), "RayCluster")["spec"]["headGroupSpec"]["template"]["spec"]
    (server,) = (c for c in head["containers"] if c["name"] == "rayorch")
    assert server["command"] == ["/bin/bash", "-c"]
    (script,) = server["args"]
    return str(script)


@pytest.mark.parametrize("name", ["values", "values-ray"])
def test_the_servers_command_is_one_that_it_takes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rayorch.server import settings_from

    script = _server_script(_values(name))
    subprocess.run(["bash", "-n", "-c", script], check=True, timeout=30)
    given = re.search(r"-m rayorch\.server ([^;&]*)", script)
    assert given is not None
    data = _one(render(_values(name)), "ConfigMap")["data"]
    for file, text in data.items():
        (tmp_path / file).write_text(text)
    token = tmp_path / "token"
    token.write_text("a-token-long-enough\n")
    monkeypatch.setenv("RAYORCH_TOKEN_FILE", str(token))
    monkeypatch.setenv("RAYORCH_JOBS_TOKEN", "another-token-of-ray")
    settings = settings_from(shlex.split(given.group(1).replace("/etc/rayorch", str(tmp_path))))
    assert (settings.address, settings.host, settings.port) == ("127.0.0.1:6379", "0.0.0.0", 8266)
    assert settings.serve_port == 8000
    assert settings.leave_running and settings.jobs_token == "another-token-of-ray"
    assert [q.id for q in settings.queues] == ["research", "research/nlp"]


def test_the_kept_alive_server_starts_again_and_ends_by_sigterm(tmp_path: Path) -> None:
    """The loop around the server where the kubelet does not restart it, with another command in its place."""
    script = _server_script(_values("values-ray"))
    log = tmp_path / "log"
    loop = script.partition("; done; ")[2]
    loop = re.sub(r"python -P -m rayorch\.server [^&]*&", f"(echo up >> {log}; exec sleep 0.1) &", loop, count=1)
    process = subprocess.Popen(["bash", "-c", loop.replace("sleep 2", "sleep 0.1")])
    try:
        for _ in range(300):
            if log.exists() and log.read_text().count("up") >= 2:
                break
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.1)
        assert log.read_text().count("up") >= 2
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


def test_the_documents_name_the_cluster_and_are_good() -> None:
    values = _values()
    data = _one(render(values), "ConfigMap")["data"]
    (cluster,) = load_documents(data["cluster.yaml"])
    assert isinstance(cluster, ClusterDocument)
    settings = cluster.to_core()
    assert (settings.node_provider, settings.topology) == ("kuberay", ("zone", "rack"))
    assert settings.kuberay is not None and settings.kuberay.cluster == "main"
    assert settings.load_profile().lease_s == 120.0, "shorter than it takes to replace a head's pod, Redis helps nobody"
    assert [pool.name for pool in settings.pools] == [group.name for group in values.groups]
    queues = load_documents(data["queues.yaml"])
    assert [q.to_core().id for q in queues if isinstance(q, QueueDocument)] == ["research", "research/nlp"]


def test_the_gateway_is_the_head_services_dashboard_and_rays_own_is_not_reachable() -> None:
    head = _one(_sample("cluster"), "RayCluster")["spec"]["headGroupSpec"]
    ports = {p["name"]: p["containerPort"] for p in head["template"]["spec"]["containers"][0]["ports"]}
    assert ports["dashboard"] == 8266
    assert head["rayStartParams"]["dashboard-host"] == "127.0.0.1"
    plain = _one(_sample("service"), "RayService")["spec"]["rayClusterConfig"]["headGroupSpec"]
    ports = {p["name"]: p["containerPort"] for p in plain["template"]["spec"]["containers"][0]["ports"]}
    assert ports["dashboard"] == 8265


# ---------------------------------------------------------------- read by others


def test_the_adapter_reads_the_groups_as_they_were_meant() -> None:
    from rayorch.adapters.kuberay.groups import node_groups
    from rayorch.adapters.kuberay.models import RayCluster, parse

    view = node_groups(parse(RayCluster, _one(_sample("cluster"), "RayCluster"), "RayCluster"), None)
    assert view.notes == ()
    groups = {group.name: group for group in view.groups}
    first, spot, cpu = groups["h100-a"], groups["h100-spot"], groups["cpu"]  # type: ignore[index]
    assert Resources.of({"GPU": 8, "CPU": 96, "memory": 1000 * 2**30}).fits_in(first.total)
    assert (first.total.to_floats()["GPU"], first.total.to_floats()["CPU"]) == (8, 96)
    assert (first.model, first.spot, first.spares, first.idle_s) == ("H100", False, 1, 600.0)
    assert (first.label("rayorch.io/rack"), first.max_replicas) == ("a", 16)
    assert (spot.spot, spot.preference) == (True, 1)
    assert (cpu.model, cpu.min_replicas, cpu.total.gpu_units) == ("", 1, 0)


def test_the_role_has_what_the_adapter_says_it_sends_and_no_more() -> None:
    from rayorch.adapters import kuberay

    said = set()
    for group, resource, verbs in re.findall(
        r"^ {4}(\S+) +(\S+) +((?:get|list|watch|patch)[a-z ]*?)(?:  |$)", kuberay.__doc__ or "", re.M
    ):
        said |= {("" if group == "(core)" else group, resource, verb) for verb in verbs.split()}
    assert said

    def rights(name: str) -> set[tuple[str, str, str]]:
        rules = _one(_sample(name), "Role")["rules"]
        return {
            (g, r, v) for rule in rules for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]
        }

    assert rights("cluster") == said
    assert rights("cluster-ray") == said - {("ray.io", "rayclusters", "patch")}
    own = _one(_sample("cluster"), "Role")["rules"][0]
    assert own["resourceNames"] == ["main"], "no other RayCluster may be touched"


def test_the_sample_job_enters_its_queue_as_a_gang() -> None:
    spec = _one(_sample("job"), "RayJob")["spec"]
    body = {"entrypoint": spec["entrypoint"], "submission_id": "main-train-x1", "metadata": spec["metadata"]}
    workload = workload_of_request(json.dumps(body).encode(), None, "default", "")
    (workers,) = (role for role in workload.roles if role.name != "driver")
    assert (workload.queue, workload.kind.value) == ("research/nlp", "train")
    assert (workers.min_count, workers.bundle.to_floats()["GPU"]) == (2, 8.0)
    code = spec["entrypoint"].split("<<'END'\n")[1].split("\nEND")[0]
    compile(code, "job", "exec")


def test_the_samples_service_is_a_cluster_of_its_own() -> None:
    spec = _one(_sample("service"), "RayService")["spec"]
    (app,) = yaml.safe_load(spec["serveConfigV2"])["applications"]
    module, _, name = app["import_path"].partition(":")
    assert (ROOT / f"{module.replace('.', '/')}.py").exists() and name == "app"
    assert spec["rayClusterConfig"]["enableInTreeAutoscaling"] is True
    assert "gcsFaultToleranceOptions" not in spec["rayClusterConfig"], "it must not share the first cluster's store"


# ---------------------------------------------------------------- values


BAD = [
    ({"cluster": "Main"}, "cluster"),
    ({"cluster": "1main"}, "cluster"),
    ({"cluster": "a" * 54}, "cluster"),
    ({"cluster": "main_1"}, "cluster"),
    ({"namespace": "-x"}, "namespace"),
    ({"queue": "research//nlp"}, "queue"),
    ({"image": "no spaces allowed"}, "image"),
    ({"rayVersion": "latest"}, "rayVersion"),
    ({"mode": "both"}, "mode"),
    ({"clutser": "main"}, "clutser"),
    ({"gateway": {"port": 80}}, "gateway.port"),
    ({"gateway": {"port": 6379}}, ""),
    ({"journal": {"size": "lots"}}, "journal.size"),
    ({"journal": {"size": "0Gi"}}, "journal.size"),
    ({"head": {"cpu": -1}}, "head.cpu"),
    ({"head": {"cpu": "1Gi"}}, "head.cpu"),
    ({"head": {"memory": "500m"}}, "head.memory"),
    ({"groups": [{"name": "a", "cpu": "4k"}]}, "groups[0].cpu"),
    ({"levels": ["a b"]}, "levels[0]"),
    ({"levels": ["group"]}, ""),
    ({"levels": ["rack", "rack"]}, ""),
    ({"network": {"clientLabel": "a/b/c"}}, "network.clientLabel"),
    ({"lease": "1s"}, ""),
    ({"groups": []}, ""),
    ({"groups": [{"name": "a", "min": -1}]}, "groups[0].min"),
    ({"groups": [{"name": "a", "min": 3, "max": 2}]}, "groups[0]"),
    ({"groups": [{"name": "a", "replicas": 9, "max": 2}]}, "groups[0]"),
    ({"groups": [{"name": "a", "gpus": 8}]}, "groups[0]"),
    ({"groups": [{"name": "a", "model": "H100"}]}, "groups[0]"),
    ({"groups": [{"name": "a", "gpus": 8.5, "model": "H100"}]}, "groups[0].gpus"),
    ({"groups": [{"name": "a", "hosts": 0}]}, "groups[0].hosts"),
    ({"groups": [{"name": "a", "grace": "30s"}]}, "groups[0]"),
    ({"groups": [{"name": "a", "idle": "soon"}]}, "groups[0].idle"),
    ({"groups": [{"name": "a", "labels": {"bad key": "x"}}]}, "groups[0].labels"),
    ({"groups": [{"name": "a", "labels": {"key": "a,b"}}]}, "groups[0].labels"),
    ({"groups": [{"name": "a", "labels": {"key": 1}}]}, "groups[0].labels.key"),
    ({"groups": [{"name": "a", "labels": {"rayorch.io/group": "b"}}]}, "groups[0]"),
    ({"groups": [{"name": "a", "labels": {"ray.io/accelerator-type": "H100"}}]}, "groups[0]"),
    ({"groups": [{"name": "a"}, {"name": "a"}]}, ""),
    ({"groups": [{"name": "headgroup"}]}, ""),
    ({"groups": [{"name": "a", "maxReplicas": 1}]}, "groups[0].maxReplicas"),
    ({"redis": {"address": "redis://me:secret@redis:6379"}}, "redis.address"),
    ({"redis": {"enabled": False, "address": "redis://x"}}, ""),
    ({"mode": "ray", "groups": [{"name": "a", "spares": 1, "max": 2}]}, ""),
]


@pytest.mark.parametrize(("change", "field"), BAD, ids=lambda part: json.dumps(part)[:60])
def test_bad_values_are_refused_with_their_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as refused:
        load_values(yaml.safe_dump({"cluster": "main", **change}))
    assert refused.value.field == field


def test_longest_names_stay_within_kuberays_limits() -> None:
    values = load_values("", overrides={"cluster": "a" * 53})
    documents = [*render(values), *render(values, "job"), *render(values, "service")]
    assert [f for f in check_manifests(documents) if f.level == "error"] == []
    assert all(len(str(d["metadata"]["name"])) <= 63 for d in documents if d["kind"] == "Service")  # type: ignore[index, call-overload]


@pytest.mark.parametrize(
    "text", ["", "h100", "h100=8xH100", "h100=8xH100:0", "h100=xH100:0-1", "a=8gpu:0-1", "a=8xH100:0-1:cheap"]
)
def test_a_group_in_other_words_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="MIN-MAX"):
        group_from_text(text)


def test_a_group_of_the_command_line_is_one_of_the_values() -> None:
    groups = [group_from_text(text) for text in ("big=4xB200:1-9:spot", "cpu=32cpu:2-3")]
    values = load_values("", overrides={"cluster": "c", "groups": groups})
    big, cpu = values.groups
    assert (big.gpus, big.model, big.min, big.max, big.spot) == (4, "B200", 1, 9, True)
    assert (cpu.cpu, cpu.gpus, cpu.min, cpu.max) == ("32", 0, 2, 3)


# ---------------------------------------------------------------- check


def _named(findings: tuple[Finding, ...]) -> list[tuple[str, str]]:
    return [(f.level.value, f.field) for f in findings]


def test_nothing_is_wrong_with_what_is_rendered() -> None:
    for name in ("cluster", "cluster-ray", "job"):
        assert check_manifests(_sample(name)) == ()


HEAD = "spec.headGroupSpec"
POD = f"{HEAD}.template.spec"


def _group(cluster: Any, number: int = 0) -> Any:
    return cluster["spec"]["workerGroupSpecs"][number]


def _pod(cluster: Any) -> Any:
    return cluster["spec"]["headGroupSpec"]["template"]["spec"]


BREAKS: list[tuple[Callable[[Any], Any], tuple[str, str]]] = [
    (lambda c: c["metadata"].update(name="Main"), ("error", "metadata.name")),
    (lambda c: c["metadata"].update(name="m" * 54), ("error", "metadata.name")),
    (lambda c: _group(c).update(replicas=-1), ("error", "spec.workerGroupSpecs[0].replicas")),
    (lambda c: _group(c).update(minReplicas=20), ("error", "spec.workerGroupSpecs[0].minReplicas")),
    (lambda c: _group(c, 1).update(groupName="h100-a"), ("error", "spec.workerGroupSpecs[1].groupName")),
    (lambda c: _group(c).update(resources={"GPU": "8"}), ("error", "spec.workerGroupSpecs[0].resources")),
    (
        lambda c: _group(c)["rayStartParams"].update(labels="a=b"),
        ("error", "spec.workerGroupSpecs[0].rayStartParams.labels"),
    ),
    (lambda c: c["spec"].update(rayVersion=""), ("error", "spec.rayVersion")),
    (lambda c: c["spec"].update(authOptions={"mode": "disabled"}), ("warning", "spec.authOptions.mode")),
    (lambda c: c["spec"].pop("gcsFaultToleranceOptions"), ("warning", "spec.gcsFaultToleranceOptions")),
    (lambda c: _pod(c)["containers"].pop(), ("error", f"{POD}.containers")),
    (lambda c: _pod(c).pop("shareProcessNamespace"), ("error", f"{POD}.shareProcessNamespace")),
    (
        lambda c: _pod(c)["containers"][0]["ports"][1].update(containerPort=8265),
        ("error", f"{POD}.containers[0].ports"),
    ),
    (lambda c: _pod(c)["containers"][0]["volumeMounts"].pop(), ("error", f"{POD}.containers[0].volumeMounts")),
    (
        lambda c: c["spec"]["headGroupSpec"]["rayStartParams"].pop("num-cpus"),
        ("warning", f"{HEAD}.rayStartParams.num-cpus"),
    ),
    (lambda c: _pod(c).update(serviceAccountName="other"), ("error", HEAD)),
    (
        lambda c: _group(c)["template"]["spec"].update(terminationGracePeriodSeconds=30),
        ("warning", "spec.workerGroupSpecs[0].template.spec.terminationGracePeriodSeconds"),
    ),
    (
        lambda c: _group(c)["template"]["spec"]["containers"][0].update(image="other"),
        ("warning", "spec.workerGroupSpecs[0].template.spec.containers[0].image"),
    ),
    (
        lambda c: c["metadata"]["annotations"].update({"rayorch.io/groups": '{"h100-a": {"spare": 1}}'}),
        ("error", "metadata.annotations.rayorch.io/groups"),
    ),
    *(
        (
            lambda c, text=text: c["metadata"]["annotations"].update({"rayorch.io/groups": text}),
            ("error", "metadata.annotations.rayorch.io/groups"),
        )
        for text in ("{", "[" * 100_000, '{"cpu": 1}', '{"cpu": {"spares": -1}}', '{"cpu": {"idleSeconds": NaN}}')
    ),
]


@pytest.mark.parametrize(("breaks", "finding"), BREAKS, ids=[f"{n}-{f[1]}" for n, (_, f) in enumerate(BREAKS)])
def test_what_is_broken_is_found(breaks: Callable[[Any], Any], finding: tuple[str, str]) -> None:
    documents = [copy.deepcopy(d) for d in _sample("cluster")]
    (cluster,) = (d for d in documents if d["kind"] == "RayCluster")
    breaks(cluster)
    assert _named(check_manifests(documents)) == [finding]


def test_autoscaler_v2_allows_no_restart() -> None:
    documents = [copy.deepcopy(d) for d in _sample("cluster-ray")]
    (cluster,) = (d for d in documents if d["kind"] == "RayCluster")
    _group(cluster)["template"]["spec"]["restartPolicy"] = "Always"
    assert _named(check_manifests(documents)) == [("error", "spec.workerGroupSpecs[0].template.spec.restartPolicy")]


def test_a_job_that_would_miss_the_queues_is_found() -> None:
    job = _one(_sample("job"), "RayJob")
    del job["spec"]["clusterSelector"], job["spec"]["metadata"]
    assert _named(check_manifests([job])) == [("warning", "spec.clusterSelector"), ("warning", "spec.metadata")]


def _places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything inside."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [place for key in keys for place in [(value, key), *_places(value[key])]]


@pytest.mark.parametrize("name", ["cluster-ray", "job", "service"])
def test_checks_survive_whatever_stands_in_a_field(name: str) -> None:
    """Somebody else's manifests may hold anything; what is wrong there is the schema's to say, never a traceback."""
    documents = [copy.deepcopy(d) for d in _sample(name) if d["kind"] in PLURALS]
    places = _places(documents[0]["spec"]) + _places(documents[0]["metadata"])
    assert len(places) > 8
    for container, key in places:
        kept = container[key]
        for odd in (None, 7, -1, True, "", "x", [], [None], ["x"], {}, {"a": None}):
            container[key] = odd
            check_manifests(documents)
        container[key] = kept
    assert [f for f in check_manifests(documents) if f.level == "error"] == []


# ---------------------------------------------------------------- network


def _lets_in(policy: Any, pod: dict[str, str], namespace: dict[str, str], port: int) -> bool:
    """Whether a NetworkPolicy lets a pod of a namespace with these labels reach the port, as Kubernetes defines it."""

    def matches(selector: Any, labels: dict[str, str]) -> bool:
        wanted = selector.get("matchLabels", {})
        terms = selector.get("matchExpressions", [])
        assert all(term["operator"] == "In" for term in terms)
        return all(labels.get(k) == v for k, v in wanted.items()) and all(
            labels.get(term["key"]) in term["values"] for term in terms
        )

    def from_there(peer: Any) -> bool:
        own = namespace.get("kubernetes.io/metadata.name") == policy["metadata"]["namespace"]
        there = matches(peer["namespaceSelector"], namespace) if "namespaceSelector" in peer else own
        return there and matches(peer.get("podSelector", {}), pod)

    return any(
        any(from_there(peer) for peer in rule["from"])
        and ("ports" not in rule or port in [p["port"] for p in rule["ports"]])
        for rule in policy["spec"]["ingress"]
    )


OWN = {"kubernetes.io/metadata.name": "rayorch"}
WORKER = {"ray.io/cluster": "main", "ray.io/node-type": "worker"}
OTHER_CLUSTER = {"ray.io/cluster": "other", "ray.io/node-type": "worker"}
CLIENT = {"rayorch.io/client": "true"}
OPERATOR = {"kubernetes.io/metadata.name": "kuberay-system"}
ELSEWHERE = {"kubernetes.io/metadata.name": "elsewhere"}


@pytest.mark.parametrize(
    ("policy", "pod", "namespace", "ports"),
    [
        ("main-head", WORKER, OWN, {6379, 8265, 8266, 10001, 8000, 8080}),
        ("main-head", OTHER_CLUSTER, OWN, set()),
        ("main-head", {}, OWN, set()),
        ("main-head", WORKER, ELSEWHERE, set()),
        ("main-head", {}, OPERATOR, {8266}),
        ("main-head", CLIENT, OWN, {8266, 8000, 8080}),
        ("main-head", CLIENT, ELSEWHERE, set()),
        ("main-head", {}, {**ELSEWHERE, **CLIENT}, {8266, 8000, 8080}),
        ("main-workers", {"ray.io/cluster": "main"}, OWN, {6379, 8265, 8266, 10001, 8000, 8080}),
        ("main-workers", {}, OPERATOR, set()),
        ("main-workers", CLIENT, OWN, {8000, 8080}),
        ("main-redis", {"ray.io/cluster": "main", "ray.io/node-type": "head"}, OWN, {6379}),
        ("main-redis", {"ray.io/cluster": "main", "ray.io/node-type": "redis-cleanup"}, OWN, {6379}),
        ("main-redis", WORKER, OWN, set()),
        ("main-redis", CLIENT, OWN, set()),
    ],
)
def test_the_network_lets_in_those_and_nobody_else(
    policy: str, pod: dict[str, str], namespace: dict[str, str], ports: set[int]
) -> None:
    rules = _one(_sample("cluster"), "NetworkPolicy", policy)
    asked = (6379, 8265, 8266, 10001, 8000, 8080)
    assert {port for port in asked if _lets_in(rules, pod, namespace, port)} == ports
