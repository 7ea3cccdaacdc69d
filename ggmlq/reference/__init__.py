"""Oracles: operations in float64 on the host, slow and right."""

from .linear import ARITHMETICS, linear

__all__ = ["ARITHMETICS", "linear"]
