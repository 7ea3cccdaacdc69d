"""The CPU side. Only this folder and ``cuda`` import Numba."""
