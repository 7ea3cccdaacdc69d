"""GPU kernels compiled ahead, on all cores; the cache on disk keeps them."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from ggmlq.dispatch.ladder import rungs
from ggmlq.formats import Format


def compile_ahead(names: set[str], formats: set[str], capability: tuple[int, int]) -> None:
    """Compile the kernels of the named rungs for formats, on all cores, and print the time it took."""
    modules = {rung.launch.__module__ for rung in rungs("linear", "cuda") if rung.name in names}
    compile_all(list(kernels_of(modules, formats)), capability)


def compile_all(tasks: list[tuple[str, int]], capability: tuple[int, int]) -> None:
    """Compile kernels, each a family and the number of its case, on all cores, and print the time it took."""
    began = time.monotonic()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max(1, min(len(tasks), os.cpu_count() or 1)), context) as pool:
        failed = [error for error in pool.map(_compile, [(*task, capability) for task in tasks]) if error]
    print(f"compiled {len(tasks)} kernels in {time.monotonic() - began:.0f} s", *failed, sep="\n", flush=True)


def kernels_of(modules: set[str], formats: set[str]) -> Iterator[tuple[str, int]]:
    """The kernels that these modules of rungs may use for formats: family, and number of the case."""
    from ggmlq.cuda.driver.launch import FAMILIES

    for name, family in FAMILIES.items():
        place = name.rpartition(".")[0]
        other = ".cuda.ladder.linear." in place and place not in modules
        if other or place.startswith("ggmlq.cuda.kernels.quantize"):
            continue
        for i, case in enumerate(family.cases):
            if all(part.name in formats for part in case if isinstance(part, Format)):
                yield name, i


def _compile(task: tuple[str, int, tuple[int, int]]) -> str | None:
    from ggmlq.cuda.driver.launch import FAMILIES

    rungs("linear", "cuda")
    name, i, capability = task
    try:
        kernel = FAMILIES[name].make(*FAMILIES[name].cases[i])
        if kernel.least <= capability:
            kernel.cubin(capability)
    except Exception as error:  # whoever launches it will say so again
        return f"{name} {i}: {type(error).__name__}: {error}"
    return None
