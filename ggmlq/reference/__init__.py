"""Oracles: operations in float64 on the host, slow and right."""

from .linear import linear

__all__ = ["linear"]
