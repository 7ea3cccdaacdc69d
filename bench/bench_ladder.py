"""The ladder of ``linear`` as a benchmark: rung by type by shape; one shape prints as one ladder.

    pytest bench/bench_ladder.py --benchmark-enable --benchmark-sort=name --benchmark-json ladder.json

The cases, the clock and the columns are those that come with the package: ggmlq/testing/ladder_bench. Without
a GPU the CPU's rungs run, on a smaller shape. ``tools/keep.py`` puts the file's figures beside those of other
machines, for ``tools/table.py ladder``.
"""

from ggmlq.testing.ladder_bench.test_rungs import cupy
from ggmlq.testing.ladder_bench.test_rungs import test_rung as bench_linear

__all__ = ["bench_linear", "cupy"]
