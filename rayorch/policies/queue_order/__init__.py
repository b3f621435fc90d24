"""Which queue goes first."""
