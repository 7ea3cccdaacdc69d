"""numba-cuda-mlir's words, so that all instructions and kernels stay as they are for numba-cuda.

Importing this file imports the compiler: language.py does so only where kernels are compiled, and where
GGMLQ_CUDA_COMPILER picks it. docs/compilers.md says what version 0.6 compiles and lacks. Names that begin
with an underscore are private parts of it, for which there is no public way yet.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from types import SimpleNamespace
from typing import Any

from numba_cuda_mlir import cuda, tools
from numba_cuda_mlir import extending as _extending
from numba_cuda_mlir._mlir.dialects import arith
from numba_cuda_mlir.compiler import _compile_and_optimize
from numba_cuda_mlir.descriptor import mlir_target
from numba_cuda_mlir.lowering_utilities import coerce_numpy_scalars_for_binary_op
from numba_cuda_mlir.models import OpaqueModel
from numba_cuda_mlir.numba_cuda import types

from . import mlir_ir as ir
from .mlir_builder import Builder, Context, as_value, converted

__all__ = ["SIMULATED", "compiled", "cuda", "extending", "ir", "types"]

SIMULATED = False  # it has no simulator of a GPU
CONTEXT = Context()

# It asks the driver for the capability of the machine's GPU before it compiles for any, so without a GPU it
# compiles nothing. It keeps the answer here.
tools._cached_cc = (9, 0)


def compiled(kernel: Any, capability: tuple[int, int], output: str) -> Any:
    """A kernel's function as PTX or LTO IR.

    ``cuda.compile`` loses the "a" of a capability without a word, and with it all instructions of Hopper's
    own; the function below takes the chip by its name.
    """
    tools._cached_cc = capability
    chip = f"sm_{capability[0]}{capability[1]}" + "a" * kernel.exact
    options = {
        "chip": chip,
        "abi": "numba",
        "launch_bounds": (kernel.threads, kernel.blocks),
        "_compile_output": output,
        "lto": output == "ltoir",
    }
    code = _compile_and_optimize(kernel.function, types.void(*kernel.parameters), options)
    return code.metadata["ltoir"] if output == "ltoir" else code.ptx


def _intrinsic(typing: Callable[..., Any]) -> Any:
    """The intrinsic of a typing function, as numba-cuda's ``intrinsic`` makes one.

    It casts operands to the types of the signature, which numba-cuda does by itself.
    """

    def typing_here(*operands: Any) -> Any:
        signature, emit = typing(*operands)

        def lower(lowering: Any, target: Any, variables: Any, options: Any) -> None:
            kinds = [lowering.get_numba_type(each.name) for each in variables]
            values = map(lowering.load_var, variables)
            fitting = [converted(*each) for each in zip(values, kinds, signature.args, strict=True)]
            result = emit(CONTEXT, Builder(lowering), signature, fitting)
            lowering.store_var(target, None if signature.return_type == types.void else as_value(result))

        return signature, lower

    typing_here.__signature__ = typing.__signature__  # type: ignore[attr-defined]
    typing_here.__name__, typing_here.__doc__ = typing.__name__, typing.__doc__
    intrinsic = _extending.intrinsic(typing_here)
    if mlir_target._typingctx_initialized:  # kernels were compiled before this intrinsic was made
        _extending.refresh_registries(typing=True, target=False, include_uninitialized_cuda=False)
    return intrinsic


def _lower_builtin(*call: Any) -> Callable[[Any], Any]:
    """Decorate the function that writes the code of a call of Python's own, such as ``table[i]``."""

    def decorate(emit: Any) -> Any:
        def lower(lowering: Any, target: Any, variables: Any, options: Any) -> None:
            kinds = [lowering.get_numba_type(each.name) for each in variables]
            operands = [
                None if isinstance(kind, types.Dummy) else lowering.load_var(each)
                for each, kind in zip(variables, kinds, strict=True)
            ]
            signature = SimpleNamespace(args=kinds)
            lowering.store_var(target, emit(CONTEXT, Builder(lowering), signature, operands))

        _extending.lower_builtin(*call)(lower)
        return emit

    return decorate


# --- what 0.6.0 lowers wrongly, or not at all ----------------------------------------------------


def _lower_extreme(signed: Any, unsigned: Any) -> Callable[..., None]:
    """The lowering of ``max`` or ``min`` of integers: otherwise integers without a sign are compared as if
    they had one, and three or more are not lowered.
    """

    def lower(lowering: Any, target: Any, variables: Any, options: Any) -> None:
        want = types.unliteral(lowering.get_numba_type(target.name))
        kinds = [lowering.get_numba_type(each.name) for each in variables]
        values = map(lowering.load_var, variables)
        fitting = [converted(value, kind, want) for value, kind in zip(values, kinds, strict=True)]
        lowering.store_var(target, reduce(signed if want.signed else unsigned, fitting))

    return lower


def _lower_unequal(lowering: Any, target: Any, variables: Any, options: Any) -> None:
    """Lower ``!=`` of floats: NaN differs from all, which is false otherwise."""
    a, b = coerce_numpy_scalars_for_binary_op(*map(lowering.load_var, variables))
    lowering.store_var(target, arith.cmpf(arith.CmpFPredicate.UNE, a, b))


for count in (2, 3, 4):
    integers = [types.Integer] * count
    _extending.lower_builtin(max, *integers)(_lower_extreme(arith.maxsi, arith.maxui))
    _extending.lower_builtin(min, *integers)(_lower_extreme(arith.minsi, arith.minui))
for pair in ((types.Float, types.Float), (types.Float, types.Number), (types.Number, types.Float)):
    _extending.lower_builtin(operator.ne, *pair)(_lower_unequal)

extending = SimpleNamespace(
    core_models=SimpleNamespace(OpaqueModel=OpaqueModel),
    intrinsic=_intrinsic,
    lower_builtin=_lower_builtin,
    register_model=_extending.register_model,
    type_callable=_extending.type_callable,
    typeof_impl=_extending.typeof_impl,
)
