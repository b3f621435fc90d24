"""Greedy gradient: again and again the step that brings most, less what it costs, until none is worth it.

Fragmentation gradient descent (Weng et al., "Beware of Fragmentation", ATC'23) applied to what runs already, with the
number of moves bounded as in "Towards VM Rescheduling Optimization Through Deep Reinforcement Learning" (EuroSys'25).
Differs from both in that the work that a move loses counts: a step is worth the GPUs by which fragmentation falls times
what one of them is worth (`DefragmentKnobs.worth_s`), less that. So fragmentation never rises by a step.
"""

from __future__ import annotations

from rayorch.core.moves import Board, MovesView, Step


def moves(view: MovesView) -> tuple[Step, ...]:
    """The steps, the best first."""
    return climbed(Board(view))


def climbed(board: Board) -> tuple[Step, ...]:
    """All steps on the board, after the best ones were added for as long as there are any."""
    while (step := next(iter(board.options(1)), None)) is not None and worth_it(step, board.view):
        board.do(step)
    return tuple(board.steps)


def worth_it(step: Step, view: MovesView) -> bool:
    """Whether it brings something, at least as much as it must, and more than it costs."""
    return step.gain > 0 and step.gain >= view.least_gain and step.net_gpu_s > 0
