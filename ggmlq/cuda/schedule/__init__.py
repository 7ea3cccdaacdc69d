"""The schedule of a product: which block computes which steps of which tile."""
