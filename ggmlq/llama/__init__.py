"""ggml's own code, where the user has it: the judge of what ggmlq computes."""
