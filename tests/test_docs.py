"""What the documents point to exists, and what they show can be read by Python and make."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import rayorch
from rayorch.client.connection import Client
from rayorch.client.handle import WorkloadHandle
from rayorch.config import ClusterDocument, load_documents, load_profile
from tests.source_tree import ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "configs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
MAKE = re.compile(r"\bmake ([a-z][a-z-]*)")
documents = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def _anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ +(.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@documents
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for link in LINK.findall(BLOCK.sub("", text)):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), link
        if anchor:
            assert anchor in _anchors(target.read_text(encoding="utf-8")), link


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = [path.name for path in (ROOT / "docs").glob("*.md") if path.name != "README.md"]
    assert [page for page in pages if f"({page})" not in index] == []


@documents
def test_python_in_documents_compiles(path: Path) -> None:
    for language, code in BLOCK.findall(path.read_text(encoding="utf-8")):
        if language == "python":
            compile(code, str(path), "exec")


def test_yaml_in_documents_passes_the_check_of_apply() -> None:
    """Whole documents, so that a reader can copy them; Kubernetes' own objects are the two pages on KubeRay's."""
    checked = set()
    for path in DOCUMENTS:
        for language, code in BLOCK.findall(path.read_text(encoding="utf-8")):
            if language == "yaml" and not path.name.startswith("kuberay"):
                for document in load_documents(code, path.name):
                    checked.add(document.kind)
                    if isinstance(document, ClusterDocument):
                        load_profile(document.to_core().profile)
    assert checked == {"Cluster", "Queue", "Workload", "ServeApp", "Reservation", "Cron"}


def test_documents_name_targets_that_the_makefile_has() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {
        name
        for path in DOCUMENTS
        for text in re.findall(r"`(make [^`]*)`|^(make .*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        for name in MAKE.findall("".join(text))
    }
    assert {"demo", "test"} <= named <= targets, named - targets


def _notebook_example() -> str:
    blocks = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    (example,) = [code for language, code in blocks if language == "python"]
    return str(example)


def test_the_notebook_example_calls_the_client_as_it_is() -> None:
    methods = {"connect": rayorch.connect, "submit": Client.submit, "gang": Client.gang}
    methods |= {name: getattr(WorkloadHandle, name) for name in ("explain", "logs", "result")}
    called = set()
    for call in ast.walk(ast.parse(_notebook_example())):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in methods:
            name = call.func.attr
            receiver = [] if name == "connect" else [None]
            keywords = {str(keyword.arg): None for keyword in call.keywords}
            inspect.signature(methods[name]).bind(*receiver, *call.args, **keywords)
            called.add(name)
    assert called == set(methods)


def test_the_notebook_example_fits_on_a_page() -> None:
    example = _notebook_example()
    assert len([line for line in example.splitlines() if line.strip()]) <= 20
