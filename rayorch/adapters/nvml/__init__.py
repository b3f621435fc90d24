"""NVIDIA's management library, read in a process of its own, so that a call which never returns stops nobody."""

from rayorch.adapters.nvml.reader import NvmlReader, ReaderLimits, nvml_present

__all__ = ["NvmlReader", "ReaderLimits", "nvml_present"]
