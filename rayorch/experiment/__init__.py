"""Experiments on traces: profiles × loads × seeds, each run once, kept in a file, and reported side by side."""

from rayorch.experiment.side_by_side import Report, simulate

__all__ = ["Report", "simulate"]
