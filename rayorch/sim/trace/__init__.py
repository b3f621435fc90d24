"""Whole traces through the engine: what a trace is, the cluster that it runs on, the loop and what comes out."""
