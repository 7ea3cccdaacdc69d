"""A small model, the ladder as benchmarks, what benchmarks share; nothing else of the package imports it."""
