"""The words that kernels are written in: types, instructions, a format's atoms. They know no device."""
