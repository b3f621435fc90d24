"""Scenarios of other schedulers, run through the planner under the preset that promises their behaviour."""
