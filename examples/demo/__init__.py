"""The main job, end to end, on an emulated cluster: `python -m examples.demo`."""
