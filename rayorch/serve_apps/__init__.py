"""Ray Serve applications: the gateway, and examples that serve a model."""
