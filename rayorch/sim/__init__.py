"""The simulated cluster: the same `step()` and policies as on Ray, with the actors replaced."""
