"""Products of codes with scales on the CPU: one rung a file, from the plainest to the fastest."""
