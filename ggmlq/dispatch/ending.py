"""What becomes of a product's sums before they are written, where a kernel does that itself."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..codes import Code


class Ending(NamedTuple):
    """A bias is added, then results become codes under scales that are given; in each float32 is what counts.

    The bits are those of one step after the other.
    """

    bias: Any = None  # float32 [N], C-contiguous
    code: Code | None = None  # of 8 bits, for floats; None: results stay floats
    scales: Any = None  # float32, (1 or M, 1 or N)


PLAIN = Ending()


def can_be(code: Code | None) -> bool:
    """Whether kernels know the code as an ending."""
    return code is None or (code.dtype.itemsize == 1 and code.kind != "scale")
