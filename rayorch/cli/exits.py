"""Exit codes and how errors become them.

0 ok · 1 to 99 the workload's own exit code, when waited for · 2 wrong usage · 100 lost to the infrastructure ·
101 not finished in time · 102 not found · 103 cancelled · 105 rejected or invalid · 106 denied · 107 no gateway ·
108 conflict · 130 interrupted (the workload goes on).
"""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import typer

from rayorch.cli.interrupts import EXIT_CODE, raise_again
from rayorch.cli.output import say

LOST = 100
NOT_FINISHED = 101
NOT_FOUND = 102
CANCELLED = 103
REJECTED = 105
DENIED = 106
UNREACHABLE = 107
CONFLICT = 108
INTERRUPTED = EXIT_CODE
MAX_OWN = 99
FULL = (errno.ENOSPC, errno.EDQUOT)
"""What stdout says where it is a file on a disk that is full."""

BY_CODE = {
    "invalid": REJECTED,
    "rejected": REJECTED,
    "not_found": NOT_FOUND,
    "conflict": CONFLICT,
    "denied": DENIED,
    "unreachable": UNREACHABLE,
    "cluster": LOST,
    "gang_lost": LOST,
    "cancelled": CANCELLED,
}


def of_workload(info: dict[str, Any]) -> int:
    """The exit code for a workload that was waited for."""
    state, code = info["state"], info["exitCode"]
    if state == "SUCCEEDED":
        return 0
    if state == "CANCELLED":
        return CANCELLED
    if state != "FAILED":
        return NOT_FINISHED
    if not isinstance(code, int) or code == 0:
        return LOST
    return code if 0 < code <= MAX_OWN else 1


Command = TypeVar("Command", bound=Callable[..., None])


def guarded(command: Command) -> Command:
    """The command with its errors as one line on stderr (cause, field) and as an exit code."""
    return guarded_as("interrupted; what was submitted goes on (rayorch ps)")(command)


def guarded_as(interrupted: str) -> Callable[[Command], Command]:
    """The same for a command that says something else after Ctrl-C."""

    def of(command: Command) -> Command:
        @functools.wraps(command)
        def run(*args: Any, **kwargs: Any) -> None:
            raise_again()
            _run(functools.partial(command, *args, **kwargs), interrupted)

        return cast(Command, run)

    return of


def _run(command: Callable[[], None], interrupted: str) -> None:
    try:
        from rayorch.core.errors import RayorchError

        try:
            command()
            sys.stdout.flush()  # here, where a closed pipe is no error
        except TimeoutError as error:
            say(f"rayorch: {error}")
            raise typer.Exit(NOT_FINISHED) from None
        except BrokenPipeError:
            # The reader has what it wanted; Python would complain when it flushes stdout at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except OSError as error:
            if error.errno not in FULL:
                raise
            say(f"rayorch: can't write: {error.strerror}")
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except RayorchError as error:
            say(f"rayorch: {error}")
            raise typer.Exit(BY_CODE.get(error.code, 1)) from None
    except KeyboardInterrupt:
        say(interrupted)
        raise typer.Exit(INTERRUPTED) from None
