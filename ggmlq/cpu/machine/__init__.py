"""The CPU itself: its instruction sets, how functions are compiled and kept, threads of microseconds."""
