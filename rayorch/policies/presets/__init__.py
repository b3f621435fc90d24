"""Named sets of policies and knobs: our own default, and those that behave like other schedulers."""
