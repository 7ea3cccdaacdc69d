"""Errors of numbers in few bits, number by number: ``gq.error_table``.

table.py   the rows, and how they print
ways.py    each way to write a number: a code under a scale, a ggml block, a simulation
plot.py    error against value, drawn
"""

from .table import ErrorRow, ErrorTable, error_table

__all__ = ["ErrorRow", "ErrorTable", "error_table"]
