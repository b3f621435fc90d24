"""Examples that run as they are: `python -m examples.NAME`."""
