"""The operators and modules of torch on a GPU that is pretended; test_torch_state.py runs it, it prints JSON.

Torch is real, its tensors are of the host and say that they are on a GPU, and fake_driver.py's driver runs
the kernels. So the branches that only GPUs take are run where there is none. It changes torch for good, so a
process of its own has it.
"""

from __future__ import annotations

import ctypes
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import fake_driver
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

N, K, E = 32, 256, 2
CAPABILITY = 12, 0
EMPTY, FULL, ZEROS, TO = torch.empty, torch.full, torch.zeros, torch.Tensor.to


class Place:
    """The device that all tensors are on."""

    type, index = "cuda", 0

    def __eq__(self, other):
        return getattr(other, "type", None) == "cuda"

    def __hash__(self):
        return 0


PLACE = Place()


class AnyMemory:
    """All memory of this process, for kernels: its mappings, each looked up when it is met."""

    def __init__(self):
        self.last, self.maps = (0, 0, None), {}

    def add(self, array):
        """All memory is known."""

    def at(self, address, size):
        """Bytes, to be read and written."""
        first, end, view = self.last
        if not first <= address <= address + size <= end:
            first, end = next(span for span in mappings() if span[0] <= address < span[1])
            view = np.frombuffer((ctypes.c_uint8 * (end - first)).from_address(first), np.uint8)
            self.last = first, end, view
        return view[address - first : address - first + size]


def mappings():
    """Addresses where memory of this process begins and ends."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        yield tuple(int(part, 16) for part in line.split()[0].split("-"))


def on_the_host(function):
    """A function that makes tensors, wherever it is told to make them."""
    return lambda *args, **options: function(*args, **{k: v for k, v in options.items() if k != "device"})


def converted(tensor, *args, **options):
    """``Tensor.to``, which moves nothing."""
    args = [each for each in args if not isinstance(each, Place)]
    return TO(tensor, *args, **options) if args or options else tensor


def pretend():
    """Let torch say that it has a GPU, and all its tensors that they are there."""
    sys.meta_path.insert(0, fake_driver.Refuse())
    driver = fake_driver.DRIVER = fake_driver.Driver(CAPABILITY)
    driver.memory = AnyMemory()
    from ggmlq.cuda.machine import driver_calls, submit, tensor_maps, torch_library

    for module in (driver_calls, submit, tensor_maps):
        module.library = lambda: driver
    library = torch_library.TorchLibrary
    library.borrowed = lambda self, tensor: torch_library.TorchArray.over(tensor.reshape(-1).detach())
    library._allocate = lambda self, shape, kind, index: EMPTY(shape, dtype=kind)
    for name in ("empty", "full", "zeros"):
        setattr(torch, name, on_the_host(getattr(torch, name)))
    torch.Tensor.is_cuda, torch.Tensor.device = property(lambda self: True), property(lambda self: PLACE)
    torch.Tensor.get_device, torch.Tensor.to = (lambda self: 0), converted
    torch.Tensor.record_stream = lambda self, stream: None
    stream = SimpleNamespace(cuda_stream=0, wait_stream=lambda other: None)
    facts = SimpleNamespace(
        name="pretended", major=CAPABILITY[0], minor=CAPABILITY[1], multi_processor_count=4,
        total_memory=1 << 34,
    )  # fmt: skip
    functions = {
        "current_device": lambda: 0, "is_current_stream_capturing": lambda: False, "device_count": lambda: 1,
        "current_stream": lambda index=0: stream, "default_stream": lambda index=0: stream,
        "device": lambda index: nullcontext(), "get_device_properties": lambda index: facts,
        "synchronize": lambda: None, "get_device_capability": lambda device=None: CAPABILITY,
    }  # fmt: skip
    for name, function in functions.items():
        setattr(torch.cuda, name, function)
    torch._C._cuda_getCurrentRawStream, torch._C._cuda_getDevice = lambda index: 0, lambda: 0


pretend()

import ggmlq as gq  # noqa: E402
import ggmlq.torch as gt  # noqa: E402
from ggmlq.torch import blocks, products  # noqa: E402


def far(y, want):
    """Error over magnitude, of all numbers together."""
    y, want = y.double(), want.double()
    return float((y - want).norm() / want.norm())


def floats(fresh, *shape, dtype=torch.float32):
    return torch.from_numpy(fresh.standard_normal(shape, np.float32)).to(dtype)


def weights(fresh, name, *shape):
    """An array, its bytes, ggml's number and its values."""
    q = gq.quantize(fresh.standard_normal(shape, np.float32), name)
    return q, torch.from_numpy(q.raw.copy()), q.format.id, torch.from_numpy(np.asarray(q))


def operators(fresh, name, dtype):
    """Errors of products, and what must be equal."""
    _, w, type, values = weights(fresh, name, N, K)
    strips = products.prepare(w, type)
    prepared = type | gt.PREPARED
    x, dy, bias = floats(fresh, 2, K, dtype=dtype), floats(fresh, 3, N, dtype=dtype), floats(fresh, N)
    y = products.linear(x, w, type, N, bias)
    ids = torch.tensor([[0, N - 1, -1], [3, 3, N]])
    rows = products.get_rows(w, type, ids, dtype)
    equal = [
        torch.equal(products.linear(x, strips, prepared, N, bias), y),
        torch.equal(products.dequantize(w, type, [N, K], dtype), values.to(dtype)),
        torch.equal(products.dequantize(strips, prepared, [N, K], dtype), values.to(dtype)),
        torch.equal(blocks.file_bytes(strips, type, (N, K)), w),
        torch.equal(rows[1, 1], values[3].to(dtype)),
        bool(rows[0, 2].isnan().all() and rows[1, 2].isnan().all()),
        y.dtype is dtype,
    ]
    errors = [far(y, x.float() @ values.T + bias)]
    for operand, number in ((w, type), (strips, prepared)):
        errors.append(far(products.linear_grad(dy, operand, number, K), dy.float() @ values))
    products.MOST_DECODED, most = 16 * K * dy.element_size(), products.MOST_DECODED
    errors.append(far(products.linear_grad(dy, w, type, K), dy.float() @ values))
    products.MOST_DECODED = most
    return max(errors), all(equal)


def experts(fresh, name):
    """Errors of a product with experts and of its gradient, of both orders."""
    _, w, type, values = weights(fresh, name, E, N, K)
    x, ids, dy = floats(fresh, 2, K), torch.tensor([[1, 0], [0, 0]]), floats(fresh, 2, 2, N)
    errors = []
    for operand, number in ((w, type), (products.prepare(w, type), type | gt.PREPARED)):
        y = products.expert_linear(x, operand, ids, number, N)
        errors.append(far(y, torch.einsum("tk,tunk->tun", x, values[ids])))
        dx = products.expert_linear_grad(dy, operand, ids, number, K, False)
        errors.append(far(dx, torch.einsum("tun,tunk->tk", dy, values[ids])))
    return max(errors)


def modules(fresh):
    """True for each fact about a layer on a GPU, whose weights are strips."""
    q, w, _, values = weights(fresh, "q4_K", N, K)
    layer, other = gt.Linear(q), gt.Linear(weights(fresh, "q4_K", N, K)[0])
    x = floats(fresh, 1, K)
    with torch.no_grad():
        results = [layer(x) for _ in range(4)]
    right = [layer.weight.dim() == 1, torch.equal(layer.state_dict()["weight"], w)]
    right += [torch.equal(result, results[0]) for result in results]
    for state in (layer.state_dict(), {"weight": layer.weight.data.clone()}):
        other.load_state_dict(state)
        right.append(torch.equal(other.weight, layer.weight))
    flat = EMPTY(layer.weight.numel() + 3, dtype=torch.uint8)
    flat[3:] = layer.weight.data
    other.weight.data = flat[3:]
    with torch.no_grad():
        right.append(torch.equal(other(x), results[0]))
    embedding = gt.Embedding(q, torch.float32)
    right += [embedding.weight.dim() == 2, torch.equal(embedding(torch.tensor([5])), values[[5]])]
    return right


def many_rows(fresh):
    """True for each fact about products whose weights are decoded, here from 3 rows on, and by NumPy."""
    q, w, type, values = weights(fresh, "q4_0", N, K)
    decoded = []

    def rows(array, first, last):
        decoded.append((first, last))
        return values[first:last].bfloat16()

    before = products.FEWEST_DECODED, products._has_decoder, products._decoded_rows, products.MOST_DECODED
    products.FEWEST_DECODED, products._has_decoder, products._decoded_rows = 3, lambda *facts: True, rows
    products.FEWEST_DECODED = 3
    products.fewest_decoded.cache_clear()
    layer, bias = gt.Linear(q), floats(fresh, N, dtype=torch.bfloat16)
    x = floats(fresh, 2, 3, K, dtype=torch.bfloat16)
    right = []
    with torch.no_grad():
        array = blocks.array_over(w, type, (N, K))
        right += [products.is_decoded(x, array, None), products.is_decoded(x, array, bias)]
        others = (x[0, :2], None), (x.float(), None), (x, bias.float())
        right += [not products.is_decoded(some, array, added) for some, added in others]
        layer(x)
        for most in (MOST := products.MOST_DECODED, 2 * 16 * K):
            products.MOST_DECODED = most
            for added in (None, bias):
                decoded.clear()
                y = products.linear(x, w, type, N, added)
                right.append(decoded == ([(0, 32)] if most == MOST else [(0, 16), (16, 32)]))
                want = x.float() @ values.T + (0 if added is None else added)
                right += [far(y, want) < 2**-7, y.shape == want.shape, y.dtype == x.dtype]
            right.append(torch.equal(layer(x), products.linear(x, w, type, N)))
    products.FEWEST_DECODED, products._has_decoder, products._decoded_rows, products.MOST_DECODED = before
    products.FEWEST_DECODED = products.FEWEST_DECODED
    products.fewest_decoded.cache_clear()
    return right


def main(seed):
    """All of it."""
    fresh = np.random.default_rng(seed)
    cases = [operators(fresh, name, dtype) for name, dtype in (
        ("q4_K", torch.bfloat16), ("q8_0", torch.float32), ("f16", torch.bfloat16), ("bf16", torch.bfloat16),
    )]  # fmt: skip
    facts = {
        "operators": [error for error, _ in cases], "equal": [equal for _, equal in cases],
        "experts": [experts(fresh, name) for name in ("q4_K", "f16")], "modules": modules(fresh),
        "many rows": many_rows(fresh),
        "modules loaded": [name for name in sys.modules if name.partition(".")[0] in fake_driver.REFUSED],
    }  # fmt: skip
    print(json.dumps(facts))


if __name__ == "__main__":
    main(int(sys.argv[1]))
