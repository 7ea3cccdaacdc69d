"""What rungs make of rows of activations: other floats, or int8 codes."""
