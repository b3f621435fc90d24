"""Rooms that are played in simulated time, without a cluster."""
