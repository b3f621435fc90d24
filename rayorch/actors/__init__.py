"""Thin Ray actors: they own the facts and carry out decisions; every rule is in `rayorch.core`."""
