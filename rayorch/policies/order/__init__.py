"""Who goes first within a queue."""
