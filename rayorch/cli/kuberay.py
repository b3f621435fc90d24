"""`rayorch kuberay`: manifests of a RayCluster that runs rayorch. Needs no cluster and no gateway."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rayorch.cli import exits
from rayorch.cli.exits import guarded
from rayorch.cli.output import Column, Format, say, show

if TYPE_CHECKING:
    from rayorch.config.kuberay import KubeRayValues

app = typer.Typer(
    name="kuberay",
    help="Manifests for KubeRay: render them, make their secrets, check them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Part(StrEnum):
    """What to render."""

    CLUSTER = "cluster"
    JOB = "job"
    SERVICE = "service"


class Text(StrEnum):
    """`-o` of manifests."""

    YAML = "yaml"
    JSON = "json"


Cluster = Annotated[str | None, typer.Option("--cluster", help="The RayCluster's name; else the file's.")]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Else the file's, else rayorch.")]
ValuesFile = Annotated[Path | None, typer.Option("--file", "-f", help="YAML with the values, see docs/kuberay.md.")]
Output = Annotated[Text, typer.Option("--output", "-o", help="yaml or json.")]


@app.command()
@guarded
def render(
    part: Annotated[Part, typer.Argument(help="cluster (all around it, too), job or service.")] = Part.CLUSTER,
    cluster: Cluster = None,
    namespace: Namespace = None,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="The queue that the job enters.")] = None,
    image: Annotated[str | None, typer.Option("--image", help="With Ray and rayorch in it.")] = None,
    mode: Annotated[str | None, typer.Option("--mode", help="ours (rayorch scales) or ray (its autoscaler).")] = None,
    groups: Annotated[
        list[str] | None, typer.Option("--groups", "-g", help="h100=8xH100:0-16[:spot] or cpu=16cpu:1-8; repeatable.")
    ] = None,
    file: ValuesFile = None,
    output: Output = Text.YAML,
) -> None:
    """Print the manifests, ready for `kubectl apply -f -`; the same values give the same text."""
    from rayorch.config.kuberay import render as render_part
    from rayorch.config.kuberay import to_json, to_yaml

    given = {"cluster": cluster, "namespace": namespace, "queue": queue, "image": image, "mode": mode}
    documents = render_part(_values(file, given, groups), part.value)
    sys.stdout.write(to_json(documents) if output is Text.JSON else to_yaml(documents))


@app.command()
@guarded
def secrets(
    cluster: Cluster = None, namespace: Namespace = None, file: ValuesFile = None, output: Output = Text.YAML
) -> None:
    """Print the Secrets that the manifests refer to, with fresh random tokens: apply them once, keep them nowhere."""
    from rayorch.config.kuberay import render_secrets, to_json, to_yaml

    documents = render_secrets(_values(file, {"cluster": cluster, "namespace": namespace}, None))
    sys.stdout.write(to_json(documents) if output is Text.JSON else to_yaml(documents))


@app.command()
@guarded
def check(
    file: Annotated[str, typer.Argument(help="A YAML file of manifests, - for stdin.")],
    crds: Annotated[Path | None, typer.Option("--crds", help="A folder with KubeRay's CRDs, to check against.")] = None,
    output: Annotated[Format, typer.Option("--output", "-o", help="table, json, yaml, name or csv.")] = Format.TABLE,
) -> None:
    """Say what is wrong with manifests before they are applied (exit 105): by KubeRay's rules and by rayorch's."""
    from rayorch.config.kuberay import check_manifests, check_schemas, load_manifests
    from rayorch.core.errors import SpecError

    documents = load_manifests(_read(file), file)
    if not documents:  # what should have written them has failed
        raise SpecError("", f"{file} holds no manifests")
    findings = list(check_manifests(documents))
    if crds is not None:
        findings += check_schemas(documents, crds)
    rows: list[dict[str, object]] = [
        {"level": f.level.value, "object": f.where, "field": f.field, "message": f.message} for f in findings
    ]
    if rows or output in (Format.JSON, Format.YAML):
        show(rows, FINDING_COLUMNS, output, key="field")
    say(f"{len(documents)} objects, {len(rows)} findings")
    if any(row["level"] == "error" for row in rows):
        raise typer.Exit(exits.REJECTED)


FINDING_COLUMNS = (
    Column("LEVEL", lambda f: f["level"]),
    Column("OBJECT", lambda f: f["object"]),
    Column("FIELD", lambda f: f["field"]),
    Column("FINDING", lambda f: f["message"]),
)


def _values(file: Path | None, given: dict[str, str | None], groups: list[str] | None) -> KubeRayValues:
    from rayorch.config.kuberay import group_from_text, load_values

    overrides: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    if groups:
        overrides["groups"] = [group_from_text(text) for text in groups]
    return load_values("" if file is None else _read(str(file)), "" if file is None else str(file), overrides)


def _read(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"can't read {file}: {error}") from error
