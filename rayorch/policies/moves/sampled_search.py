"""Sampled search: the best of several sequences of steps, each drawn beside the best one so far.

It begins with the greedy sequence. Each sample keeps the first so many steps of the best sequence and goes on with
steps that are drawn, the better ones more often, also such as do harm at first; what is kept of it is the part up to
where it was worth most. Sampling many trajectories in an exact model and keeping the best is how the agent of "Towards
VM Rescheduling Optimization Through Deep Reinforcement Learning" (EuroSys'25) is used; here nothing is learned.

The draws follow from the seed and from who may be moved, so the same turn gives the same plan.
"""

from __future__ import annotations

from hashlib import blake2b

from rayorch.core.moves import Board, MovesView, Step
from rayorch.policies.moves.greedy_gradient import climbed

SAMPLES = 12
WIDTH = 6
"""How many next steps are drawn from; each is half as probable as the one before it."""
HARM = 2
"""So many steps one after the other may be worth less than nothing; then the sequence ends."""


def moves(view: MovesView) -> tuple[Step, ...]:
    """The steps of the sequence that is worth most; never one that is worth less than the greedy one."""
    start = Board(view)
    best = climbed(start.copy())
    best_s = sum(step.net_gpu_s for step in best)
    draws = _Draws(f"{view.seed}/{'/'.join(mover.id for mover in view.movers)}")
    for _ in range(SAMPLES):
        board = start.copy()
        for step in best[: draws.below(len(best) + 1)]:
            board.do(step)
        found, found_s = _explored(board, draws)
        if found_s > best_s and is_worth_it(found, view):
            best, best_s = found, found_s
    return best


def is_worth_it(steps: tuple[Step, ...], view: MovesView) -> bool:
    """Whether fragmentation falls by all of them together, for each gang that is moved by as much as it must."""
    gain, gangs = sum(step.gain for step in steps), len({step.mover for step in steps})
    return gain > 0 and gain >= view.least_gain * gangs


def _explored(board: Board, draws: _Draws) -> tuple[tuple[Step, ...], float]:
    """The board's steps and some that are drawn, up to where they are worth most; and how much that is."""
    most, best, harm = board.net_gpu_s, len(board.steps), 0
    while harm <= HARM and (options := board.options(WIDTH)):
        board.do(options[min(draws.halving(), len(options) - 1)])
        if board.net_gpu_s > most:
            most, best, harm = board.net_gpu_s, len(board.steps), 0
        else:
            harm += 1
    return tuple(board.steps[:best]), most


class _Draws:
    """Numbers that follow from a text alone."""

    def __init__(self, text: str) -> None:
        self._text = blake2b(text.encode(), digest_size=16).hexdigest()
        self._count = 0

    def below(self, bound: int) -> int:
        """One of 0 … bound - 1."""
        return self._next() % bound

    def halving(self) -> int:
        """0 in half of all draws, 1 in a quarter, …"""
        number = self._next() | 1 << 63
        return (number & -number).bit_length() - 1

    def _next(self) -> int:
        self._count += 1
        return int.from_bytes(blake2b(f"{self._text}/{self._count}".encode(), digest_size=8).digest())
