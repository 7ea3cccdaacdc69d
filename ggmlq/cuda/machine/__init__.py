"""The GPU itself: which it is, how kernels are compiled, kept and launched, how bytes get there."""
