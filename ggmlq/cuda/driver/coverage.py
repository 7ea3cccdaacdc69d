"""The kernels that need no compiler on a GPU: their number, and if those of some products are among them."""

from __future__ import annotations

import importlib
import json
import pickle
import pkgutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ... import cuda
from ...base.hooks import Hook
from ...store.origin import Origin
from . import served

GRU = Hook("kernels of GRUs")
kernels_of = Hook("kernels that a product launches")
MOST_SECONDS = 120  # that another process may take
ANSWER = """\
import json, pickle, sys
sys.path.insert(0, sys.argv[1])
from ggmlq.cuda.driver.coverage import packed
print(json.dumps(packed(pickle.load(sys.stdin.buffer))))
"""


def families() -> dict[str, Any]:
    """All families of kernels by name, in the order of names: that of imports is another in each process."""
    _register_all()
    return dict(sorted(importlib.import_module(f"{cuda.__name__}.driver.launch").FAMILIES.items()))


@cache
def _register_all() -> None:
    """Import the modules of all families, which registers them."""
    for package in (cuda, GRU.room()):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(f"{cuda.__name__}.intrinsics."):  # of which one imports Numba
                importlib.import_module(module.name)


def coverage(capability: tuple[int, int]) -> dict[str, Any]:
    """The number of kernels whose code the package has for a capability, of all kernels; rooms with none."""
    totals, served_counts = Counter[str](), Counter[str]()
    for name, family in families().items():
        room = Origin(name, ()).pack.partition(".")[0]
        for case in family.cases:
            kernel = family.make(*case)
            totals[room] += 1
            served_counts[room] += served.is_served(kernel.origin, capability, kernel.exact)
    rooms_without = sorted(room for room in totals if not served_counts[room])
    return {"served": served_counts.total(), "all": totals.total(), "lacking": rooms_without}


def packed(cases: dict[str, list[Any]]) -> dict[str, bool | None]:
    """By rung, whether all kernels that it launches for some problems come with the package for their card.

    The launches are noted on paper (ops/dry_run.py), which puts other functions in the place of CuPy's.
    So a process that has loaded CuPy leaves this to another one. None: the answer is not known.
    """
    if "cupy" in sys.modules:
        return _in_process(cases)
    return {kernel: not any(unpacked(problems, kernel)) for kernel, problems in cases.items()}


def unpacked(problems: Iterable[Any], kernel: str = "auto") -> Iterator[Any]:
    """The kernels of a rung for some problems that are not in the package, for float32 and float16."""
    for problem in problems:
        for kind in (np.float32, np.float16) if hasattr(problem, "format") else (np.float32,):
            for launched in kernels_of(problem, kernel, kind):
                if not served.is_served(launched.origin, problem.card.capability, launched.exact):
                    yield launched


def _in_process(cases: dict[str, list[Any]]) -> dict[str, bool | None]:
    """The answer of another process, in which nothing uses the GPU; all unknown if it gives none."""
    command = [sys.executable, "-c", ANSWER, str(Path(cuda.__file__).parents[2])]
    try:
        answer = subprocess.run(
            command, input=pickle.dumps(cases), capture_output=True, timeout=MOST_SECONDS, check=True
        )
        facts: dict[str, bool | None] = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return dict.fromkeys(cases)
    return facts
