"""`rayorch kuberay`: manifests on stdout, words on stderr, and exit codes; no gateway is asked."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from rayorch.cli.main import app
from rayorch.client.connection import Client
from rayorch.core.bypass import Bypass
from rayorch.core.types import Resources
from rayorch.serve_apps.gateway.fake import FakeBackend
from tests.cli.conftest import Run
from tests.source_tree import ROOT

SAMPLES = ROOT / "configs" / "kuberay"


def _run(*words: str, input: str | None = None) -> Result:
    return CliRunner().invoke(app, ["kuberay", *words], input=input)


@pytest.mark.parametrize(
    ("part", "values", "file"),
    [
        ("cluster", "values", "cluster"),
        ("job", "values", "job"),
        ("service", "values", "service"),
        ("cluster", "values-ray", "cluster-ray"),
    ],
)
def test_the_samples_are_what_the_command_prints(part: str, values: str, file: str) -> None:
    done = _run("render", part, "-f", str(SAMPLES / f"{values}.yaml"))
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == (SAMPLES / f"{file}.yaml").read_text()


def test_a_name_is_enough(tmp_path: Path) -> None:
    done = _run("render", "--cluster", "small", "-n", "lab", "-q", "lab/vision", "-g", "a100=4xA100:0-2", "-o", "json")
    assert done.exit_code == 0, done.stderr
    items = json.loads(done.stdout)["items"]
    (cluster,) = (item for item in items if item["kind"] == "RayCluster")
    assert cluster["metadata"]["name"] == "small"
    assert {item["metadata"].get("namespace", "lab") for item in items} == {"lab"}
    (group,) = cluster["spec"]["workerGroupSpecs"]
    assert (group["groupName"], group["maxReplicas"]) == ("a100", 2)
    assert group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "4"


def test_options_go_over_the_file() -> None:
    done = _run("render", "-f", str(SAMPLES / "values.yaml"), "--mode", "ours", "--image", "other:1", "--cluster", "c2")
    (cluster,) = (d for d in yaml.safe_load_all(done.stdout) if d["kind"] == "RayCluster")
    images = {c["image"] for c in cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"]}
    assert (cluster["metadata"]["name"], images) == ("c2", {"other:1"})


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["render"], 105, "cluster"),
        (["render", "--cluster", "Main"], 105, "cluster: must be"),
        (["render", "--cluster", "c", "-g", "h100=many"], 105, "groups: takes"),
        (["render", "--cluster", "c", "--mode", "both"], 105, "mode"),
        (["render", "pods", "--cluster", "c"], 2, "pods"),
        (["render", "-f", "nowhere.yaml"], 2, "can't read"),
        (["check", "nowhere.yaml"], 2, "can't read"),
    ],
)
def test_bad_input_is_refused_by_name(words: list[str], code: int, said: str) -> None:
    done = _run(*words)
    assert (done.exit_code, done.stdout) == (code, "")
    assert said in done.stderr


def test_secrets_are_fresh_and_have_the_names_that_are_referred_to() -> None:
    first, second = (_run("secrets", "--cluster", "main").stdout for _ in range(2))
    assert first != second
    names = [d["metadata"]["name"] for d in yaml.safe_load_all(first)]
    assert names == ["main-rayorch-token", "main-ray-token", "main-redis"]
    for document in yaml.safe_load_all(first):
        (token,) = document["stringData"].values()
        assert len(token) == 64


def test_check_is_silent_about_what_is_good() -> None:
    done = _run("check", str(SAMPLES / "cluster.yaml"))
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "13 objects, 0 findings\n")


def test_check_names_object_and_field_and_fails(crds_dir: Path) -> None:
    text = (SAMPLES / "cluster.yaml").read_text().replace("containerPort: 8266", "containerPort: 8265")
    text = text.replace("shareProcessNamespace: true", "shareProcessNamespce: true")
    done = _run("check", "-", "--crds", str(crds_dir), "-o", "json", input=text)
    assert done.exit_code == 105
    found = {(row["level"], row["field"].rpartition(".")[2]) for row in json.loads(done.stdout)}
    assert found == {
        ("error", "ports"),
        ("error", "shareProcessNamespace"),
        ("error", "shareProcessNamespce"),
    }


def test_a_warning_does_not_fail() -> None:
    text = (SAMPLES / "job.yaml").read_text().replace("rayorch.queue: research/nlp", "note: none")
    done = _run("check", "-", input=text)
    assert done.exit_code == 0
    assert "spec.metadata" in done.stdout and "default" in done.stdout


def test_check_refuses_what_is_no_yaml() -> None:
    done = _run("check", "-", input="a: [")
    assert done.exit_code == 105
    assert "is not YAML" in done.stderr


def test_checking_nothing_is_no_success() -> None:
    """`render | check` must fail when the first of the two did."""
    done = _run("check", "-", input="")
    assert (done.exit_code, done.stderr) == (105, "rayorch: - holds no manifests\n")


def _commands_of_the_page() -> list[list[str]]:
    """Every `rayorch kuberay …` that docs/kuberay.md tells people to type, without what the shell does to it."""
    text = (ROOT / "docs" / "kuberay.md").read_text(encoding="utf-8")
    found = re.findall(r"^\$ rayorch kuberay ([^|>\n]*)", text, re.MULTILINE)
    return [shlex.split(words) for words in found]


def test_the_ten_minutes_of_the_page_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = _commands_of_the_page()
    assert [words[0] for words in commands] == ["render", "check", "secrets", "render"]
    for words in commands:
        done = _run(*words)
        assert done.exit_code == 0, (words, done.stderr)
        if words[0] == "check":
            assert done.stderr == "13 objects, 0 findings\n"
        elif "job" not in words and words[0] == "render":
            Path("cluster.yaml").write_text(done.stdout)


def test_ps_says_who_came_past_the_queues(run: Run, backend: FakeBackend) -> None:
    assert "past the queues" not in run("ps").stderr
    held = Resources.of({"GPU": 2})
    backend.bypasses.append(Bypass("straight", "python -c 'a\n b'", "eve", backend.now_s, held=held))
    done = run("ps")
    assert "past the queues: Ray job straight of eve, 2 GPUs: python -c 'a b'" in done.stderr
    assert "straight" not in done.stdout
    assert run("ps", "-o", "json").stderr == ""


def test_ps_works_with_a_gateway_that_knows_no_bypasses(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def older(self: Client) -> None:
        self._http.call("GET", "/api/v1/there-is-no-such-path")

    monkeypatch.setattr(Client, "bypasses", older)
    assert run("ps").exit_code == 0
