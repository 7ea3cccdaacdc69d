"""Errors of numbers in few bits: number by number, ``gq.error_table``; of attention, ``gq.cache_error``.

table.py   each way to write a number (a code under a scale, a ggml block, a simulation); rows and chart
cache.py   attention with a cache of each type
"""

from .cache import CacheError, CacheErrors, cache_error
from .table import ErrorRow, ErrorTable, error_table

__all__ = ["CacheError", "CacheErrors", "ErrorRow", "ErrorTable", "cache_error", "error_table"]
