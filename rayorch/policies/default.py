"""The profile in force where nothing else is configured, by a short name."""

from rayorch.policies.presets.default import PRESET as DEFAULT

__all__ = ["DEFAULT"]
