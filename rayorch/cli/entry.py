"""The entry point of the `rayorch` command. It loads next to nothing itself, so that Ctrl-C is looked after from the
first moment."""

from __future__ import annotations

from rayorch.cli.interrupts import end_at_once


def main() -> None:
    """Run the command of `sys.argv`; `exits.guarded` looks after Ctrl-C once it has begun."""
    end_at_once()
    from rayorch.cli.main import app

    app()
