"""The ladder of ``expert_linear`` on the CPU: products of rows with the experts that their tokens use."""
