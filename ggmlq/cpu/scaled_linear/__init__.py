"""The CPU ladder of ``scaled_linear``, products of codes with scales: one rung a file, the plainest first."""
