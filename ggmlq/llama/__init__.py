"""ggml's own code, where the user has it: the judge of what ggmlq computes."""

from .bridge import Bridge, Measurement
from .devices import Device

__all__ = ["Bridge", "Device", "Measurement"]
