"""Work on files spread over any ``concurrent.futures.Executor``: processes, dask's, mpi4py's.

Paths travel, not data: a task names a file and a range of its bytes, a worker maps the file itself. What
comes back is small, and is put together in the order of the file, so results do not depend on who did what.

engine.py     tasks handed out, and those of killed workers handed out again, by any executor
rows.py       a tensor as a path and a range of bytes
pools.py      the executors behind --workers, --dask and --mpi
"""

from .engine import Task, run
from .rows import Rows, rows_of, slices

__all__ = ["Rows", "Task", "rows_of", "run", "slices"]
