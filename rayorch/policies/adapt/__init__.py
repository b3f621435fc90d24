"""How large a running gang should be."""
