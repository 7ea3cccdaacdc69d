"""Inputs, comparisons that raise, and timers, which tests, benchmarks, tools and the demo share."""
