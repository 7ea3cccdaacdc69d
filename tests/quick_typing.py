"""Calls in kernels are typed once: Numba tries all of an operator's forms at each place where it stands.

That is a third of the time of a compilation. What a function gives for arguments of some types is the same
in all kernels, and so is the PTX (test_cuda_ptx.py). Imported for its effect by what compiles kernels.
"""

from __future__ import annotations

from numba.core.types import Function
from numba.cuda.descriptor import cuda_target

TYPED = {}  # by a function's type and those of its arguments: the signature, and the key of its code
usual = Function.get_call_type


def typed_once(self, context, arguments, options):
    """The signature of a call, which another kernel may have asked for."""
    if options or context is not cuda_target.typing_context:
        return usual(self, context, arguments, options)
    call = self, tuple(arguments)
    if call not in TYPED:
        signature = usual(self, context, arguments, options)
        TYPED[call] = signature, self._impl_keys[signature.args]
    signature, self._impl_keys[signature.args] = TYPED[call]
    return signature


Function.get_call_type = typed_once
