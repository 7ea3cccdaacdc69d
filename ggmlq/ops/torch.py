"""Products of torch tensors. Who passes one has imported torch; we never do.

On a GPU the work goes to torch's current stream and takes torch's memory, so that tensors are ordered,
freed and recorded in CUDA graphs like those of torch's own operations. There are no gradients.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ..arrays.tensors import array_of, is_foreign
from ..base.devices import cuda_device
from ..dispatch.checks import check_linear, float_dtype
from ..errors import DTypeError


def linear(
    product: Callable[..., Any], x: Any, q: Any, out: Any, bias: Any, dtype: Any, *,
    asked: str = "linear(x, q)", check: Callable[[str, Any, Any], Any] = check_linear, **choice: Any,
) -> Any:  # fmt: skip
    """``product`` (:func:`ggmlq.linear` or the like) for a tensor x; ``out`` and ``bias`` are tensors too."""
    torch = sys.modules["torch"]
    kind = _kind(asked, torch, dtype)
    _refuse_others(asked, torch, x=x, bias=bias, out=out)
    with as_torch_works(torch, x.device):
        rows = check(asked, array_of(asked, x), q)
        if bias is not None:
            choice["bias"] = array_of(asked, bias, "bias")
        shape = (*x.shape[:-1], q.shape[0])
        return _into(asked, torch, partial(product, rows, q, **choice), x, shape, out, kind)


def expert_linear(
    product: Callable[..., Any], x: Any, q: Any, ids: Any, out: Any, dtype: Any, *,
    asked: str, shape: tuple[int, ...], **choice: Any,
) -> Any:  # fmt: skip
    """The same for :func:`ggmlq.expert_linear`, whose result has this shape; ids may be of any kind."""
    torch = sys.modules["torch"]
    kind = _kind(asked, torch, dtype)
    _refuse_others(asked, torch, x=x, out=out)
    with as_torch_works(torch, x.device):
        work = partial(product, array_of(asked, x), q, ids, **choice)
        return _into(asked, torch, work, x, shape, out, kind)


def _into(asked: str, torch: Any, work: Any, x: Any, shape: tuple[int, ...], out: Any, kind: Any) -> Any:
    """The result of ``work(out=…)`` as a tensor of torch's memory beside x."""
    y = out
    if out is None or (is_foreign(torch, out) and (out.shape, out.device) == (shape, x.device)):
        y = torch.empty(shape, dtype=torch.float32, device=x.device)
    work(out=array_of(asked, y, "out"))
    if out is None:
        return y.to(kind)
    return out if y is out else out.copy_(y)


def _kind(asked: str, torch: Any, dtype: Any) -> Any:
    """The type of torch for a result; bfloat16 is one too."""
    if not isinstance(dtype, torch.dtype):
        return getattr(torch, float_dtype(asked, dtype).name)
    if not dtype.is_floating_point:
        raise DTypeError(f"{asked}: values are floats, {dtype} was asked for; ask for torch.float32")
    return dtype


def _refuse_others(asked: str, torch: Any, **operands: Any) -> None:
    for name, operand in operands.items():
        if operand is None:
            continue
        if not isinstance(operand, torch.Tensor):
            raise DTypeError(
                f"{asked}: x is a tensor, {name} a {type(operand).__name__}; they must be of one kind; "
                f"pass torch.as_tensor({name})"
            )
        if operand.requires_grad and torch.is_grad_enabled():
            raise DTypeError(
                f"{asked}: {name} requires a gradient; products with quantized weights have none; "
                f"pass {name}.detach(), or work under torch.no_grad()"
            )


@contextmanager
def as_torch_works(torch: Any, device: Any) -> Iterator[None]:
    """On a GPU: on torch's current stream, with memory of torch."""
    if device.type != "cuda":
        yield
        return
    cuda = cuda_device().cupy().cuda

    stream = cuda.Stream.from_external(_Stream(torch.cuda.current_stream(device).cuda_stream))
    memory = _Memory(torch, cuda, device)
    with torch.cuda.device(device), cuda.Device(device.index), stream, cuda.using_allocator(memory):
        yield


class _Memory:
    """An allocator of CuPy that takes memory of torch."""

    kept_for_graphs = True  # torch keeps what it gave while a CUDA graph was recorded

    def __init__(self, torch: Any, cuda: Any, device: Any) -> None:
        self.torch, self.cuda, self.device = torch, cuda, device

    def __call__(self, size: int) -> Any:
        owner = self.torch.empty(size, dtype=self.torch.uint8, device=self.device)
        memory = self.cuda.UnownedMemory(owner.data_ptr(), size, owner, self.device.index)
        return self.cuda.MemoryPointer(memory, 0)


class _Stream:
    """A stream under the protocol that CuPy takes and that older versions of torch lack."""

    def __init__(self, address: int) -> None:
        self.address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address
