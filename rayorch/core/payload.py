"""What a runner has to start: the part of a workload that the planner never reads.

It travels as JSON text in `WorkloadSpec.payload`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from rayorch.core.errors import SpecError

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
"""A JSON value."""


@dataclass(frozen=True, slots=True)
class Payload:
    """How to start one workload, by kind.

    train, job: `entrypoint` is a shell command, run in the unpacked `runtime_env["working_dir"]` (a package
    URI such as gcs://_ray_pkg_….zip, or nothing) with `runtime_env` as Ray's Jobs API understands it, its
    `env_vars` included. `function` is the file name, inside the working directory, of a cloudpickled callable
    which the entrypoint runs; empty for a plain command. serve: `import_path` ("module:app") names a built
    application or a builder, called with `args`; `app_name` and `route_prefix` as in `serve.run`; `deployment`
    names the one whose replicas are the members (empty: the only one that asks for GPUs). gang: nothing.
    `metadata`: the user's own words, handed back as they came. `driver_role`: on whose first seat the command runs
    (empty: the first seat with a CPU). `driver_resources`: what the command itself takes of that seat, as Ray's
    `entrypoint_num_gpus` and its like: {"GPU": 1} makes that device visible to it.
    """

    entrypoint: str = ""
    runtime_env: Mapping[str, Json] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    function: str = ""
    import_path: str = ""
    args: Mapping[str, Json] = field(default_factory=dict)
    app_name: str = ""
    route_prefix: str = "/"
    deployment: str = ""
    driver_role: str = ""
    driver_resources: Mapping[str, Json] = field(default_factory=dict)

    def to_text(self) -> str:
        """As JSON with sorted keys; fields at their default are left out, so that equal payloads are equal texts."""
        empty = Payload()
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return json.dumps({k: v for k, v in values.items() if v != getattr(empty, k)}, sort_keys=True)

    @staticmethod
    def of_text(text: str) -> Payload:
        """Read it back; SpecError for text that is not a payload. Unknown keys are refused."""
        try:
            values = json.loads(text)
        except ValueError as error:
            raise SpecError("payload", f"is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise SpecError("payload", "must be a JSON object")
        known = {f.name: type(getattr(_EMPTY, f.name)) for f in fields(Payload)}
        for name, value in values.items():
            if name not in known:
                raise SpecError(f"payload.{name}", "is unknown")
            if not isinstance(value, known[name]):
                raise SpecError(f"payload.{name}", f"must be of type {known[name].__name__}")
        return Payload(**values)


_EMPTY = Payload()
