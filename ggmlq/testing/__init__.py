"""Inputs and comparisons that raise, shared by tests, benchmarks and tools; nothing else imports them."""
