"""The tool behind ``ggmlq check``: a library's kernels on seeded cases, judged one by one."""
