"""Quick inlining: Numba inlines the device functions of a kernel in a fraction of the time.

It copies each function twice before it inlines it, although it has just made it for that: with
``cuda:warp_specialized`` three quarters of the time of a compilation. And for each variable with several
assignments it goes through all statements, twice: here it takes the blocks that have the variable. After each
step it finds the variables that live at the beginning of each block, which generators alone need. The PTX is
the same.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

CORE = "numba.cuda.core"  # of numba-cuda 0.30
UNCOPIED = SimpleNamespace(copy=copy.copy, deepcopy=lambda item: item)


@contextmanager
def quick_inlining() -> Iterator[None]:
    """Compile quickly inside ``with``; nothing changes where Numba inlines in another way."""
    try:
        inlining: Any = import_module(f"{CORE}.inline_closurecall")
        ssa: Any = import_module(f"{CORE}.ssa")
        after: Any = import_module(f"{CORE}.postproc")
        lock: Any = import_module(f"{CORE}.compiler_lock")
        worker, usual, finish = inlining.InlineWorker, inlining.copy, after.PostProcessor.run
        inline, run, rewrite = worker.inline_function, ssa._run_ssa, ssa._run_block_rewrite
    except (ImportError, AttributeError):
        usual = None
    if usual is not copy:
        yield
        return

    def inline_uncopied(self: Any, caller: Any, block: Any, i: int, function: Any, types: Any = None) -> Any:
        """Inline a function, whose form for that nothing else has."""
        form, names = self.run_untyped_passes(function), function.__code__.co_freevars
        inlining.copy = UNCOPIED
        try:
            return self.inline_ir(caller, block, i, form, names, arg_typs=types)
        finally:
            inlining.copy = usual

    def finish_quickly(self: Any, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
        """Do what follows a step, except for what generators need."""
        function = self.func_ir
        if function.is_generator:
            finish(self, emit_dels, extend_lifetimes)
            return
        function.blocks = after.transforms.canonicalize_cfg(function.blocks)
        function.variable_lifetime, function.generator_info = after.VariableLifetime(function.blocks), None
        if emit_dels:
            self._insert_var_dels(extend_lifetimes=extend_lifetimes)

    quick: Any = _QuickRewrites(run, rewrite)
    with lock.global_compiler_lock:
        worker.inline_function, after.PostProcessor.run = inline_uncopied, finish_quickly
        ssa._run_ssa, ssa._run_block_rewrite = quick.run, quick.rewrite
        try:
            yield
        finally:
            worker.inline_function, after.PostProcessor.run = inline, finish
            ssa._run_ssa, ssa._run_block_rewrite = run, rewrite


class _QuickRewrites:
    """Numba's rewriting to single assignments, of the blocks that have a variable."""

    def __init__(self, run: Any, rewrite: Any) -> None:
        self._run, self._rewrite = run, rewrite
        self._names: dict[int, set[str]] = {}  # of variables, by the label of a block

    def run(self, blocks: Any) -> Any:
        """Rewrite all variables of a function's blocks."""
        self._names = {
            label: {variable.name for statement in block.body for variable in statement.list_vars()}
            for label, block in blocks.items()
        }
        return self._run(blocks)

    def rewrite(self, blocks: Any, states: Any, handler: Any) -> Any:
        """The blocks with one variable rewritten, in their order."""
        has = {label: block for label, block in blocks.items() if states["varname"] in self._names[label]}
        rewritten = self._rewrite(has, states, handler)
        return {label: rewritten.get(label, block) for label, block in blocks.items()}
