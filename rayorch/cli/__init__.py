"""The command line: a thin HTTP client that never imports ray."""
