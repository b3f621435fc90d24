"""Text becomes data, or is refused with the field named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rayorch.config import (
    ClusterDocument,
    ProfileSettings,
    duration_s,
    load_documents,
    load_function,
    load_json,
    load_profile,
    load_yaml,
    parse_document,
)
from rayorch.core.admission import check_workload
from rayorch.core.errors import SpecError
from rayorch.core.payload import Payload
from rayorch.core.types import (
    GroupSpec,
    JointGang,
    Kind,
    QueueSpec,
    Resources,
    Role,
    Segment,
    TopologyRequest,
    WorkloadSpec,
)

WORKLOAD = """
apiVersion: rayorch/v1
kind: Workload
metadata: {name: llm-7b, queue: research/nlp, annotations: {team: nlp}}
spec:
  kind: train
  gang: {workers: [2, 4], resources: {GPU: 8, CPU: 96}}
  topology: {require: rack, prefer: nvlinkDomain}
  accelerators: [H100, A100-80G]
  entrypoint: python train.py
  runtimeEnv: {workingDir: ., envVars: {A: "1"}}
  env: {B: "2"}
  priority: 50
  preemption: {allowed: true, grace: 120s, minRuntime: 30m}
  retry: {max: 3}
"""

QUEUE = """
apiVersion: rayorch/v1
kind: Queue
metadata: {name: research/nlp}
spec: {deserved: {gpu: 24}, borrowLimit: 16, lendLimit: {GPU: 24}, weight: 2, maxPending: 2000}
"""

SERVE = """
apiVersion: rayorch/v1
kind: ServeApp
metadata: {name: llama, queue: prod/serve}
spec: {importPath: "serve_apps.llama:app", replicas: {min: 1, max: 4, gpusPer: 0.5}, priority: 90, args: {n: 3}}
"""

CLUSTER = """
apiVersion: rayorch/v1
kind: Cluster
metadata: {name: main}
spec:
  nodePools: [{name: h100, match: {gpu: h100}, gpusPerNode: 8, resources: {CPU: 96}, maxNodes: 4}]
  topology: [zone, rack]
  timing: {lease: 20s, growCooldown: 1m}
  preemption: false
"""


def _workload(**spec: object) -> dict[str, object]:
    """A small good workload with some fields of its spec replaced."""
    return {
        "apiVersion": "rayorch/v1",
        "kind": "Workload",
        "metadata": {"name": "w", "queue": "q"},
        "spec": {"entrypoint": "true", **spec},
    }


def _core(value: object) -> object:
    return parse_document(value).to_core()


def _refused(value: object) -> SpecError:
    with pytest.raises(SpecError) as caught:
        _core(value)
    return caught.value


def test_a_workload_document_says_what_core_needs() -> None:
    (document,) = load_documents(WORKLOAD)
    spec = document.to_core()
    assert isinstance(spec, WorkloadSpec)
    assert (spec.id, spec.name, spec.queue, spec.kind) == ("llm-7b", "llm-7b", "research/nlp", Kind.TRAIN)
    assert spec.roles == (
        Role("worker", Resources.of({"GPU": 8, "CPU": 96}), 2, 4),
        Role("driver", Resources.of({"CPU": 1}), 1, 1),
    )
    assert spec.topology == TopologyRequest("rack", "nvlinkDomain")
    assert spec.accelerators == ("H100", "A100-80G")
    assert (spec.grace_s, spec.min_runtime_s, spec.max_retries, spec.priority) == (120, 1800, 3, 50)
    assert spec.preemptible and spec.resizable
    payload = Payload.of_text(spec.payload)
    assert payload.entrypoint == "python train.py"
    assert payload.runtime_env == {"working_dir": ".", "env_vars": {"A": "1", "B": "2"}}
    assert payload.metadata == {"team": "nlp"}


GANG = """
apiVersion: rayorch/v1
kind: Workload
metadata: {name: rl, queue: research}
spec:
  kind: job
  entrypoint: python rl.py
  topology: {prefer: zone, balanced: true}
  joint: {name: rl-7, count: 2}
  groups:
    - {name: actors, minChildren: 1}
    - {name: learner, topology: {require: rack, balanced: true}}
  roles:
    - {name: generate, workers: [4, 8], resources: {GPU: 1}, group: actors}
    - name: learn
      workers: 16
      resources: {GPU: 1}
      group: learner
      segments: [{size: 8, level: rack}, {size: 4, level: node, channel: true}]
"""


def test_a_workload_document_says_how_its_members_belong_together() -> None:
    (document,) = load_documents(GANG)
    core = document.to_core()
    assert isinstance(core, WorkloadSpec)
    check_workload(core)
    assert core.topology == TopologyRequest(None, "zone", balanced=True)
    assert core.joint == JointGang("rl-7", 2)
    assert core.groups == (
        GroupSpec("actors", min_children=1),
        GroupSpec("learner", topology=TopologyRequest("rack", balanced=True)),
    )
    generate, learn, driver = core.roles
    assert (generate.group, generate.min_count, generate.max_count) == ("actors", 4, 8)
    assert learn.segments == (Segment(8, "rack"), Segment(4, "node", channel=True))
    assert (driver.name, driver.group, core.resizable) == ("driver", "", True)


def test_one_accelerator_may_stand_alone() -> None:
    for value, models in (("H100", ("H100",)), (["H100"], ("H100",)), ([], ())):
        spec = _core(_workload(accelerators=value))
        assert isinstance(spec, WorkloadSpec)
        assert spec.accelerators == models
    app = {"importPath": "a:b", "accelerators": "L4"}
    serve = _core(
        {"apiVersion": "rayorch/v1", "kind": "ServeApp", "metadata": {"name": "s", "queue": "q"}, "spec": app}
    )
    assert isinstance(serve, WorkloadSpec)
    assert serve.accelerators == ("L4",)


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ("", "spec.accelerators[0]"),
        ("H100,A100", "spec.accelerators[0]"),
        (["H100", "H100"], "spec.accelerators[1]"),
        ([5], "spec.accelerators[0]"),
        ({"H100": 1}, "spec.accelerators"),
        (None, "spec.accelerators"),
        (["x" * 64], "spec.accelerators[0]"),
    ],
)
def test_bad_accelerators_are_refused_with_their_place(value: object, field: str) -> None:
    assert _refused(_workload(accelerators=value)).field == field


def test_a_queue_document_counts_bare_numbers_as_gpus() -> None:
    (document,) = load_documents(QUEUE)
    assert document.to_core() == QueueSpec(
        id="research/nlp",  # type: ignore[arg-type]
        deserved=Resources.of({"GPU": 24}),
        borrow_limit=Resources.of({"GPU": 16}),
        lend_limit=Resources.of({"GPU": 24}),
        weight=2,
        max_pending=2000,
    )


def test_a_serve_document_makes_its_minimum_the_gang() -> None:
    (document,) = load_documents(SERVE)
    spec = document.to_core()
    assert isinstance(spec, WorkloadSpec)
    assert spec.roles == (Role("replica", Resources.of({"GPU": 0.5, "CPU": 1}), 1, 4),)
    assert spec.kind is Kind.SERVE and spec.resizable and not spec.preemptible
    payload = Payload.of_text(spec.payload)
    assert (payload.import_path, payload.args, payload.app_name) == ("serve_apps.llama:app", {"n": 3}, "llama")


def test_a_cluster_document_gives_pools_and_knobs() -> None:
    (document,) = load_documents(CLUSTER)
    assert isinstance(document, ClusterDocument)
    settings = document.to_core()
    (pool,) = settings.pools
    assert (pool.total, pool.max_count, pool.labels) == (
        Resources.of({"GPU": 8, "CPU": 96}),
        4,
        (("gpu", "h100"),),
    )
    assert settings.topology == ("zone", "rack")
    assert settings.profile.knobs == {"lease_s": 20.0, "grow_cooldown_s": 60.0, "preemption": False}


@pytest.mark.parametrize(
    ("policies", "name"), [({"name": "mine"}, "mine"), ({"preset": "kai"}, "kai"), ({}, "default")]
)
def test_a_profile_has_its_own_name_or_that_of_its_preset(policies: dict[str, str], name: str) -> None:
    value = {"apiVersion": "rayorch/v1", "kind": "Cluster", "metadata": {"name": "c"}, "spec": {"policies": policies}}
    document = parse_document(value)
    assert isinstance(document, ClusterDocument)
    assert load_profile(document.to_core().profile).name == name


def test_without_an_id_the_name_is_the_id_and_with_one_it_is_not() -> None:
    value = _workload()
    assert _core(value).id == "w"  # type: ignore[attr-defined]
    value["metadata"] = {"name": "w", "queue": "q", "id": "w-1"}
    assert _core(value).id == "w-1"  # type: ignore[attr-defined]


def test_bundles_of_a_leased_gang_keep_their_order() -> None:
    value = _workload(kind="gang", entrypoint="", bundles=[{"GPU": 1}, {"GPU": 1}, {"CPU": 2}, {"GPU": 1}])
    roles = _core(value).roles  # type: ignore[attr-defined]
    assert [(r.bundle.to_floats(), r.min_count) for r in roles] == [({"GPU": 1}, 2), ({"CPU": 2}, 1), ({"GPU": 1}, 1)]
    value["spec"]["bundles"] = [{"GPU": 1}, {"GPU": 0}]  # type: ignore[index]
    assert _refused(value).field == "spec.bundles[1]"


def test_a_command_given_as_words_is_quoted() -> None:
    spec = _core(_workload(entrypoint=["python", "-c", "print('a b')"]))
    assert Payload.of_text(spec.payload).entrypoint == """python -c 'print('"'"'a b'"'"')'"""  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"gang": {"workers": 0}}, "spec.gang.workers"),
        ({"gang": {"workers": -1}}, "spec.gang.workers"),
        ({"gang": {"workers": [3, 2]}}, "spec.gang.workers"),
        ({"gang": {"workers": 1.5}}, "spec.gang.workers"),
        ({"gang": {"workers": True}}, "spec.gang.workers"),
        ({"gang": {"workers": "2"}}, "spec.gang.workers"),
        ({"gang": {"workers": 10**9}}, "spec.gang.workers"),
        ({"gang": {"workers": 2, "minWorkers": 3}}, "spec.gang.minWorkers"),
        ({"gang": {"workers": 2, "minWorkers": 0}}, "spec.gang.minWorkers"),
        ({"gang": {"workers": 1, "resources": {"GPU": -1}}}, "spec.gang.resources.GPU"),
        ({"gang": {"workers": 1, "resources": {"GPU": float("nan")}}}, "spec.gang.resources.GPU"),
        ({"gang": {"workers": 1, "resources": {"GPU": float("inf")}}}, "spec.gang.resources.GPU"),
        ({"gang": {"workers": 1, "resources": {"memory": 1e300}}}, "spec.gang.resources.memory"),
        ({"gang": {"workers": 1, "resources": {"memory": 10**400}}}, "spec.gang.resources.memory"),
        ({"gang": {"workers": 100_000, "resources": {"memory": 10**13}}}, "spec.gang.resources.memory"),
        ({"gang": {"workers": 1, "resources": {"GPU": 0.00001}}}, "spec.gang.resources.GPU"),
        ({"gang": {"workers": 1, "resources": {"GPU": True}}}, "spec.gang.resources.GPU"),
        ({"gang": {"workers": 1, "resources": {"GPU": "1"}}}, "spec.gang.resources.GPU"),
        ({"gang": {"workers": 1, "resources": {"GPU": 1, "gpu": 1}}}, "spec.gang.resources.gpu"),
        ({"gang": {"workers": 1, "resources": {}}}, "spec.gang.resources"),
        ({"gang": {"workers": 1, "resources": {"GPU": 0}}}, "spec.gang.resources"),
        ({"gang": {"wokers": 1}}, "spec.gang.workers"),
        ({"gang": {"workers": 1, "colour": 1}}, "spec.gang.colour"),
        ({"priority": 10**7}, "spec.priority"),
        ({"priority": "high"}, "spec.priority"),
        ({"priority": True}, "spec.priority"),
        ({"entrypoint": " "}, "spec.entrypoint"),
        ({"entrypoint": 5}, "spec.entrypoint"),
        ({"kind": "train"}, "spec.gang"),
        ({"kind": "gang", "gang": {"workers": 1}}, "spec.entrypoint"),
        ({"kind": "array"}, "spec.kind"),
        ({"preemption": {"grace": "soon"}}, "spec.preemption.grace"),
        ({"roles": [{"name": "a", "workers": 1}], "gang": {"workers": 2}}, "spec.roles"),
        ({"kind": "train", "roles": [{"name": "a", "workers": 1}]}, "spec.roles"),
        ({"roles": [{"name": "driver", "workers": 1}]}, "spec.roles[0].name"),
        ({"gang": {"workers": 2, "segments": [{"size": 0, "level": "x"}]}}, "spec.gang.segments[0].size"),
        ({"groups": [{"name": "g", "minChildren": 0}]}, "spec.groups[0].minChildren"),
        ({"groups": [{"name": "g", "topology": {"require": 5}}]}, "spec.groups[0].topology.require"),
        ({"joint": {"name": "x", "count": 1}}, "spec.joint.count"),
        ({"preemption": {"grace": "-1s"}}, "spec.preemption.grace"),
        ({"preemption": {"grace": float("nan")}}, "spec.preemption.grace"),
        ({"preemption": {"allowed": "yes"}}, "spec.preemption.allowed"),
        ({"retry": {"max": -1}}, "spec.retry.max"),
        ({"runtimeEnv": {"working_dir": ".", "workingDir": "."}}, "spec.runtimeEnv.workingDir"),
        ({"env": {"A": 1}}, "spec.env.A"),
        ({"driver": {}}, "spec.driver"),
        ({"driver": {"GPU": 1.5}}, "spec.driver.GPU"),
        ({"gang": {"workers": 1, "resources": {"GPU": 1.5}}}, "spec.gang.resources.GPU"),
        ({"env": {"A=B": "1"}}, "spec.env"),
        ({"env": {"": "1"}}, "spec.env"),
        ({"runtimeEnv": {"envVars": {"A=B": "1"}}}, "spec.runtimeEnv.envVars"),
        ({"runtimeEnv": {"config": [{"a": float("inf")}]}}, "spec.runtimeEnv.config[0].a"),
        ({"bundles": [{"GPU": 1}]}, "spec.bundles"),
        ({"unknown": 1}, "spec.unknown"),
    ],
)
def test_a_bad_workload_is_refused_with_its_field(spec: dict[str, object], field: str) -> None:
    assert _refused(_workload(**spec)).field == field


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"apiVersion": "v1"}, "apiVersion"),
        ({"kind": "Job"}, "kind"),
        ({"kind": ["Queue"]}, "kind"),
        ({"metadata": {"queue": "q"}}, "metadata.name"),
        ({"metadata": {"name": "a/b", "queue": "q"}}, "metadata.name"),
        ({"metadata": {"name": "w", "queue": "/q"}}, "metadata.queue"),
        ({"metadata": {"name": "w", "queue": "q//r"}}, "metadata.queue"),
        ({"metadata": {"name": "../../etc", "queue": "q"}}, "metadata.name"),
        ({"metadata": {"name": "x" * 200, "queue": "q"}}, "metadata.name"),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_bad_frame_is_refused_with_its_field(change: dict[str, object], field: str) -> None:
    assert _refused({**_workload(), **change}).field == field


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"deserved": -1}, "spec.deserved.GPU"),
        ({"deserved": {"GPU": float("inf")}}, "spec.deserved.GPU"),
        ({"weight": 0}, "spec.weight"),
        ({"maxPending": -1}, "spec.maxPending"),
        ({"minPriority": 5, "maxPriority": 4}, "spec.minPriority"),
        ({"borrowLimit": "all"}, "spec.borrowLimit"),
    ],
)
def test_a_bad_queue_is_refused_with_its_field(spec: dict[str, object], field: str) -> None:
    value = {"apiVersion": "rayorch/v1", "kind": "Queue", "metadata": {"name": "q"}, "spec": spec}
    assert _refused(value).field == field


def test_an_unknown_policy_is_refused_with_its_slot() -> None:
    text = CLUSTER + "  policies: {order: 'rayorch.policies.order.nonesuch:key'}\n"
    (document,) = load_documents(text)
    assert isinstance(document, ClusterDocument)
    with pytest.raises(SpecError) as caught:
        document.to_core().load_profile()
    assert caught.value.field == "spec.policies.order"


def test_a_policy_that_can_not_be_called_as_one_is_refused_with_its_slot() -> None:
    with pytest.raises(SpecError, match=r"spec\.policies\.order: can't be called .*\(workload, view\)"):
        load_profile(ProfileSettings("x", {"order": "os.path:basename"}))


def test_a_policy_whose_module_fails_is_refused_with_its_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "policy_with_a_slip.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SpecError, match=r"spec\.policies\.order: can't import policy_with_a_slip: ZeroDivisionError"):
        load_profile(ProfileSettings("x", {"order": "policy_with_a_slip:key"}))


@pytest.mark.parametrize("path", ["json:nonesuch", "json", "json:", "os.path.join", "a b:c", "json:__doc__"])
def test_an_import_string_that_names_no_function_is_refused(path: str) -> None:
    with pytest.raises(SpecError):
        load_function(path, "spec.policies.order")


def test_an_import_string_gives_the_function() -> None:
    assert load_function("json:dumps", "x") is json.dumps


# ---------------------------------------------------------------- YAML


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("a: 1\na: 2", "a"),
        ("a: {b: 1, b: 1}", "a.b"),
        ("a: [{b: 1, b: 1}]", "a[0].b"),
        ("a: &x [1]\nb: *x", "a"),
        ("a: *x", "a"),
        ("a: &x {b: 1}\nc: {<<: *x}", "a"),
        ("a: {<<: {b: 1}}", "a"),
        ("a: !!python/object/apply:os.system ['true']", "a"),
        ("a: !!binary aGk=", "a"),
        ("1: a", ""),
        ("true: a", ""),
        ("? [a, b]\n: c", ""),
        ("a: [", ""),
        ("[" * 40 + "]" * 40, None),
        ("a: '" + "x" * 2**20 + "'", ""),
        ("---\na: 1\n" * 1001, ""),
        (b"a: \xff\xfe", ""),
        ('a: {b: ["x", "\\0"]}', "a.b[1]"),
        ('"a\\0": 1', ""),
    ],
)
def test_unsafe_yaml_is_refused(text: str | bytes, field: str | None) -> None:
    with pytest.raises(SpecError) as caught:
        load_yaml(text)
    assert field is None or caught.value.field == field


def test_an_alias_bomb_is_refused_at_its_first_anchor() -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    with pytest.raises(SpecError, match="anchors are not allowed"):
        load_yaml("\n".join(lines))


def test_words_and_numbers_mean_what_they_look_like() -> None:
    (value,) = load_yaml(
        "{q: no, on: yes, port: 010, v: '1.10', n: 12, f: 0.5, t: true, e: null, d: 2024-01-01, h: 0x1F}"
    )
    assert value == {
        "q": "no",
        "on": "yes",
        "port": "010",
        "v": "1.10",
        "n": 12,
        "f": 0.5,
        "t": True,
        "e": None,
        "d": "2024-01-01",
        "h": "0x1F",
    }


def test_nan_and_infinity_in_yaml_are_named_as_such() -> None:
    with pytest.raises(SpecError, match="finite") as caught:
        load_documents(WORKLOAD.replace("GPU: 8", "GPU: .nan"))
    assert caught.value.field == "spec.gang.resources.GPU"


def test_the_file_and_line_are_in_the_message() -> None:
    with pytest.raises(SpecError, match=r"queues\.yaml:2"):
        load_yaml("a: 1\na: 2", "queues.yaml")


def test_two_documents_of_one_name_are_refused() -> None:
    with pytest.raises(SpecError) as caught:
        load_documents(f"{QUEUE}---{QUEUE}")
    assert caught.value.field == "documents[1].metadata.name"


def test_one_bad_document_of_many_is_named_by_its_number() -> None:
    with pytest.raises(SpecError) as caught:
        load_documents(f"{QUEUE}---{WORKLOAD.replace('GPU: 8', 'GPU: -8')}")
    assert caught.value.field == "documents[1].spec.gang.resources.GPU"


@pytest.mark.parametrize(
    "text", ['{"a": NaN}', '{"a": Infinity}', '{"a": 1, "a": 2}', "[" * 40 + "]" * 40, "{", "1" * 2**21]
)
def test_unsafe_json_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        load_json(text)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (r'{"a": [1, "x\u0000"]}', "a[1]"),
        (r'{"a": {"b": "\ud800"}}', "a.b"),
        (r'{"a": {"\udfff": 1}}', "a"),
        (r'{"\ud800": 1, "\ud800": 1}', "?"),
        ('{"a": 1e999}', ""),
        ('{"a": -1e999}', ""),
    ],
)
def test_json_that_nothing_could_hold_is_refused_and_the_refusal_can_be_written(text: str, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_json(text)
    assert caught.value.field == field
    str(caught.value).encode()


@pytest.mark.parametrize("text", ['"' + '\\"' * 400_000, '"' + '\\"' * 400_000 + "\\", '{"a":' + '"\\' * 400_000])
def test_text_that_never_ends_is_refused_without_a_second_look_at_it(text: str) -> None:
    with pytest.raises(SpecError, match="is not JSON"):
        load_json(text)  # hours, if each quote in it began a new search for the end


def test_brackets_inside_json_text_are_not_depth() -> None:
    assert load_json('{"a": "' + "[{" * 100 + '\\""}') == {"a": "[{" * 100 + '"'}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("120s", 120), ("30m", 1800), ("24h", 86400), ("1h30m", 5400), ("500ms", 0.5), ("7d", 604800), (90, 90), (0, 0)],
)
def test_durations(text: object, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "10", "1 h", "1h 30m", "-5s", -1, float("nan"), float("inf"), 10**400, True, None, "9" * 30 + "d"]
)
def test_durations_that_are_none(text: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        duration_s(text)


def test_a_payload_reads_back_as_it_was_written() -> None:
    payload = Payload("python x.py", {"env_vars": {"A": "1"}}, {"k": "v"}, args={"n": [1, None, {"x": 0.5}]})
    assert Payload.of_text(payload.to_text()) == payload


@pytest.mark.parametrize("text", ["", "[]", '{"nope": 1}', '{"entrypoint": 5}', "{"])
def test_a_payload_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        Payload.of_text(text)


def test_the_documents_in_configs_are_good() -> None:
    folder = Path(__file__).resolve().parent.parent / "configs"
    for path in sorted(folder.glob("*.yaml")):
        if "apiVersion: rayorch/v1" in path.read_text(encoding="utf-8"):
            load_documents(path.read_bytes(), path.name)


def test_a_pool_of_a_cluster_document_limits_what_it_names_and_nothing_else() -> None:
    text = """
apiVersion: rayorch/v1
kind: Cluster
metadata: {name: main}
spec:
  nodePools:
    - {name: h100, match: {gpu: h100}, gpusPerNode: 8, maxNodes: 4}
"""
    (document,) = load_documents(text)
    assert isinstance(document, ClusterDocument)
    (pool,) = document.to_core().pools
    shape = pool.shape()
    assert (shape.max_count, shape.labels) == (4, (("gpu", "h100"),))
    assert Resources.of({"GPU": 8, "CPU": 500, "memory": 1e12}).fits_in(shape.total)
    assert not Resources.of({"GPU": 9}).fits_in(shape.total)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"args": {"a": [float("nan")]}}, "spec.args.a[0]"),
        ({"replicas": {"gpusPer": 1.5}}, "spec.replicas.gpusPer"),
        ({"replicas": {"resources": {"GPU": 2.5}}}, "spec.replicas.resources.GPU"),
    ],
)
def test_a_bad_serve_app_is_refused_with_its_field(change: dict[str, object], field: str) -> None:
    value = {"apiVersion": "rayorch/v1", "kind": "ServeApp", "metadata": {"name": "a", "queue": "q"}}
    with pytest.raises(SpecError) as caught:
        parse_document({**value, "spec": {"importPath": "m:app", **change}}).to_core()
    assert caught.value.field == field


def test_a_misspelt_field_is_named_beside_the_one_that_is_missing() -> None:
    text = "apiVersion: rayorch/v1\nkind: Queue\nmetadata: {nam: team}\nspec: {}\n"
    with pytest.raises(SpecError, match=r"metadata\.name: Field required; also wrong: metadata\.nam$"):
        load_documents(text)
    with pytest.raises(SpecError, match=r"spec\.gpus: there is no such field"):
        load_documents(text.replace("nam:", "name:").replace("{}", "{gpus: 1}"))
