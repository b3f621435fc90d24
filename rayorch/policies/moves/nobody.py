"""Nobody is moved."""

from __future__ import annotations

from rayorch.core.marks import marked
from rayorch.core.moves import MovesView, Step


@marked(nobody=True)
def moves(view: MovesView) -> tuple[Step, ...]:
    """No steps."""
    return ()
