"""What options of the command line say, as values."""

from __future__ import annotations

import re

import typer


def pair_of(text: str, option: str) -> tuple[str, str]:
    """NAME=VALUE of an option."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{option} takes NAME=VALUE, got {text!r}")
    return name, value


def workers_of(text: str | None) -> int | tuple[int, int] | None:
    """2, or 2:4 for a gang that may grow."""
    if text is None:
        return None
    least, colon, most = text.partition(":")
    try:
        return (int(least), int(most)) if colon else int(least)
    except ValueError as error:
        raise typer.BadParameter(f"--workers takes 2 or 2:4, got {text!r}") from error


def amount_of(text: str) -> tuple[str, float | str]:
    """NAME=AMOUNT; an amount with a unit stays text."""
    name, value = pair_of(text, "--resource")
    try:
        return name, float(value)
    except ValueError:
        return name, value


def gang_of(text: str) -> tuple[int | tuple[int, int], float]:
    """2x8 or 2-4x8, as `rayorch ps` shows it."""
    found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?x(\d{1,9}(?:\.\d{1,4})?)", text)
    if found is None:
        raise typer.BadParameter(f"--gang takes 2x8 or 2-4x8, got {text!r}")
    least, most, gpus = found.groups()
    return (int(least), int(most)) if most else int(least), float(gpus)
