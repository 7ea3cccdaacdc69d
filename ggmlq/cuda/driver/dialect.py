"""The dialect in which Numba reads kernels: plain integers beside unsigned words are unsigned words, too, and
device functions are inlined quickly.

Both hold for kernels alone, while they are compiled; Numba itself stays as it is for all others.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from ..intrinsics.language import extending, types, uint32, uint64

CORE = "numba.cuda.core"  # of numba-cuda 0.30


@contextmanager
def dialect() -> Iterator[None]:
    """Read kernels so inside ``with``; Numba's lock is held."""
    with import_module(f"{CORE}.compiler_lock").global_compiler_lock, unsigned_integers(), quick_inlining():
        yield


# Plain integers as words. Numba takes each ``8`` for a signed number of 64 bits, and then ``uint32 + 8`` for
# one, too, while ``uint32 + uint32(8)`` is unsigned. Here a plain integer becomes what the word beside it is,
# as in NumPy (NEP 50): kernels write ``at + 8``, and ``i = 0`` before a loop that counts words. Results of
# arithmetic stay 64 bits wide, as Numba has them; ``uint32(…)`` makes 32 bits of them. Arithmetic on plain
# integers alone is compiled as Numba compiles it: its type tells the value, but no constant replaces it.

_NAMES = ("add", "sub", "mul", "floordiv", "mod", "and_", "or_", "xor", "lshift", "rshift")
ARITHMETIC: dict[Any, Callable[[int, int], int]] = {
    operation: getattr(operator, name)
    for name in _NAMES
    for operation in (getattr(operator, name), getattr(operator, "i" + name.rstrip("_")))
}
COMPARISONS = frozenset(getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne"))
WORD_BITS = 32
WORDS = (uint32, uint64)


class Computed(types.IntegerLiteral):  # type: ignore[misc]
    """The type of a result of arithmetic on plain integers: a plain integer, but no literal of the source."""


extending.register_model(Computed)(extending.core_models.IntegerModel)


@extending.lower_cast(Computed, types.Integer)
@extending.lower_cast(Computed, types.Float)
def _cast(context: Any, builder: Any, kind: Any, other: Any, value: Any) -> Any:
    """Cast the result as Numba does without the dialect: its value, not a constant in its place.

    A literal is cast to a constant. Where ``block[at + 1]`` has one for its index, LLVM computes a block's
    address in another order, in decoders of iq2_s, iq3_xxs, iq4_xs and tq1_0 for example.
    """
    return context.cast(builder, value, kind.literal_type, other)


def is_plain(kind: Any) -> bool:
    """True for a plain integer, whose value is known while a kernel is compiled."""
    return isinstance(kind, types.IntegerLiteral)


def word_beside(left: Any, right: Any) -> Any:
    """The type of an unsigned word beside a plain integer that fits into it; None for other pairs."""
    plain, word = (left, right) if is_plain(left) else (right, left)
    fits = word in WORDS and is_plain(plain) and 0 <= plain.literal_value < 1 << WORD_BITS
    return word if fits else None


def plain_result(operation: Any, left: Any, right: Any) -> Any:
    """The type of arithmetic on two plain integers, a plain one, too; None where there is none.

    So ``at + 8 * stages`` is a sum of a word and a plain integer.
    """
    try:
        return Computed(ARITHMETIC[operation](left.literal_value, right.literal_value))
    except (KeyError, ArithmeticError, ValueError):  # a division by zero, say, which Numba refuses
        return None


@contextmanager
def unsigned_integers() -> Iterator[None]:
    """Take plain integers for unsigned words beside such, inside ``with``."""
    context: Any = import_module("numba.cuda.descriptor").cuda_target.typing_context
    signature: Any = import_module("numba.cuda.typing.templates").signature
    function: Any = types.Function
    type_of_call, unify = function.get_call_type, context.unify_pairs

    def type_of(self: Any, context: Any, arguments: Any, options: Any) -> Any:
        operation = self.typing_key
        if len(arguments) == 2 and _is_of_integers(operation):
            if word := word_beside(*arguments):
                return type_of_call(self, context, (word, word), options)
            if all(map(is_plain, arguments)) and (kind := plain_result(operation, *arguments)):
                self._impl_keys[tuple(arguments)] = operation  # by which Numba finds the operator's code
                return signature(kind, *arguments)
        return type_of_call(self, context, arguments, options)

    function.get_call_type = type_of
    context.unify_pairs = lambda first, second: word_beside(first, second) or unify(first, second)
    try:
        yield
    finally:
        function.get_call_type = type_of_call
        del context.unify_pairs


def _is_of_integers(operation: Any) -> bool:
    """True if a function's key is an operator that integers have; keys of others may not be hashable."""
    return type(operation) is type(operator.add) and (operation in ARITHMETIC or operation in COMPARISONS)


# Quick inlining: Numba inlines the device functions of a kernel in a fraction of the time.
#
# It copies each function twice before it inlines it, although it has just made it for that: with
# ``cuda:warp_specialized`` three quarters of the time of a compilation. And for each variable with several
# assignments it goes through all statements, twice: here it takes the blocks that have the variable. After
# each step it finds the variables that live at the beginning of each block, which generators alone need. The
# PTX is the same.

UNCOPIED = SimpleNamespace(copy=copy.copy, deepcopy=lambda item: item)


@contextmanager
def quick_inlining() -> Iterator[None]:
    """Inline quickly inside ``with``; nothing changes where Numba inlines in another way."""
    try:
        inlining: Any = import_module(f"{CORE}.inline_closurecall")
        ssa: Any = import_module(f"{CORE}.ssa")
        after: Any = import_module(f"{CORE}.postproc")
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
