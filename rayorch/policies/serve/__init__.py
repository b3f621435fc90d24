"""How many replicas an application should have."""
