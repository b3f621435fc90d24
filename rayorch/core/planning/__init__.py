"""The stages of a plan; `core/planner.py` calls them in order."""
