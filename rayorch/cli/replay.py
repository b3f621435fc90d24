"""`rayorch replay`: play a scenario's file on a simulated cluster. Needs no Ray, no gateway and no GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rayorch.cli.exits import guarded_as

NOT_AS_EXPECTED = 1


@guarded_as("interrupted")
def replay(
    files: Annotated[list[Path], typer.Argument(help="Scenarios, see docs/scenarios.md.", metavar="FILE...")],
    quiet: Annotated[bool, typer.Option("--quiet", help="Say only what is wrong, and the results.")] = False,
) -> None:
    """Play scenarios, saying at each step what was expected and what was seen; exit 1 when they differ."""
    from rayorch.core.errors import SpecError
    from rayorch.sim.replay import report
    from rayorch.sim.scenario import Scenario

    bad = 0
    for file in files:
        try:
            lines = list(report(Scenario.read(file)))
        except SpecError as error:
            raise SpecError(error.field, f"{error.message} ({file})") from error
        for text, good in lines[:-1]:
            if not (quiet and good):
                sys.stdout.write(f"{text}\n")
        result, good = lines[-1]
        sys.stdout.write(f"{file}: {result}\n")
        bad += not good
    if bad:
        raise typer.Exit(NOT_AS_EXPECTED)
