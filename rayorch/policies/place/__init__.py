"""Which node a seat goes to."""
