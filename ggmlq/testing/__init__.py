"""Inputs, comparisons that raise, timers and roofs, which tests, benchmarks, tools and the demo share."""
