"""The epilogue of a product: from sums in registers to results in memory."""
