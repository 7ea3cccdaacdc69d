"""Shared by tests, benchmarks and tools: inputs, and comparisons that raise."""
