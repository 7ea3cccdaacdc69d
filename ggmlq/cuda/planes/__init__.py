"""Operands of int8 kernels: codes in one array, scales in another."""
