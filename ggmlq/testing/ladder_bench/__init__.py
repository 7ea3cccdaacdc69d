"""The ladder of ``linear`` as benchmarks of pytest-benchmark, from the tree or from an installed wheel.

    pytest --pyargs ggmlq.testing.ladder_bench --benchmark-enable --benchmark-sort=name
    pytest --pyargs ggmlq.testing.ladder_bench --benchmark-enable -k "q4_0 and M1-"
    pytest --pyargs ggmlq.testing.ladder_bench --benchmark-enable --benchmark-autosave
    pytest --pyargs ggmlq.testing.ladder_bench --benchmark-enable --benchmark-compare

A group is a type, a shape and a device; the names of its rungs sort as the ladder does. Beside
pytest-benchmark's columns stand GFLOP/s, GB/s and the share of the nearer roof. Rungs of the GPU run if
CuPy is installed, otherwise those of the CPU. Where benchmarks are disabled each rung multiplies a small
shape once, and is judged in float64.

test_rungs.py   which rungs, types and shapes; one case: operands, kernels compiled ahead, the clock
conftest.py     the hooks of pytest-benchmark, and the columns beside the names
"""
