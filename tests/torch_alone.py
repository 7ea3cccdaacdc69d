"""Products on a GPU by torch alone, in a process that test_torch_alone.py starts; it prints one JSON."""

from __future__ import annotations

import json
import sys
import threading

import fake_driver
import numpy as np

if __name__ == "__main__":  # pytest imports it, too, to look for examples
    torch, driver = fake_driver.put_all((12, 0))

import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks
from ggmlq.base.devices import cuda_device, cuda_module
from ggmlq.cuda.driver import serving
from ggmlq.cuda.layouts import to_blocks
from ggmlq.formats import BLOCK_FORMATS
from ggmlq.ops.door import as_torch_works
from ggmlq.ops.plan import of_tensors

FORMATS = 1  # whose packed weights a run restores
N, K, E = 32, 256, 2
KINDS = fake_driver.KINDS


def tensor(values, kind="float32"):
    """A tensor on the GPU."""
    return fake_driver.allocated(values, KINDS[values.dtype.name]).to(KINDS[kind])


def on_gpu(q):
    """The array over a tensor with the same bytes, and the tensor."""
    w = tensor(q.raw, "uint8")
    raw = library.borrowed(w).reshape(q.raw.shape)
    return gq.QuantArray(q.format, q.shape, raw).lasting(), w


def far(y, want):
    """Error over magnitude, of all numbers together."""
    return float(np.linalg.norm(y.floats().astype(np.float64) - want) / np.linalg.norm(want))


def products(fresh):
    """Errors of products, launches of each call, and whether repeated calls have the same bits."""
    worst, counts, equal = 0.0, set(), True
    for name, m, kind in (("q4_0", 1, "float32"), ("q4_K", 2, "bfloat16")):
        q = gq.quantize(fresh.standard_normal((N, K), np.float32), name)
        there, _w = on_gpu(q)
        x, bias = fresh.standard_normal((m, K), np.float32), fresh.standard_normal(N, np.float32)
        results = []
        for _ in range(3):
            before = len(driver.launched)
            result = gq.linear(tensor(x, kind), there, bias=tensor(bias), dtype=KINDS[kind])
            results.append(result)
            counts.add(len(driver.launched) - before)
        worst = max(worst, far(results[0], x.astype(np.float64) @ np.asarray(q, np.float64).T + bias))
        equal &= all(np.array_equal(results[0].data, result.data) for result in results)
    return {"far": worst, "launches": sorted(counts), "equal": equal}


def of_layer(x, q, bias=None):
    """The product as a layer asks for it, in the dtype of x; None where it is not warm."""
    return of_tensors(x, q, "auto", None, None, bias, x.dtype)


def layers(fresh):
    """Equality of a layer's warm calls with the call before, and calls that are not warm."""
    q = gq.quantize(fresh.standard_normal((N, K), np.float32), "q4_K")
    there, _w = on_gpu(q)
    equal = []
    for kind, bias in (
        ("float32", None),
        ("bfloat16", None),
        ("bfloat16", "bfloat16"),
        ("float16", "float32"),
    ):
        x, b = tensor(fresh.standard_normal((1, 1, K), np.float32), kind), None
        if bias is not None:
            b = tensor(fresh.standard_normal(N, np.float32), bias)
        want = [gq.linear(x, there, bias=b, dtype=KINDS[kind]) for _ in range(2)]
        y = of_layer(x, there, b)
        equal.append(y is None or (np.array_equal(y.data, want[0].data) and y.dtype is want[0].dtype))
        equal.append(y is not None or bias not in (None, kind))
    strided = x[:, :, ::2]
    return {
        "equal": equal,
        "none": [of_layer(each, there) is None for each in (strided, x[:1])],
    }


def experts(fresh):
    """The error of a product with experts."""
    q = gq.quantize(fresh.standard_normal((E, N, K), np.float32), "q4_K")
    there, _w = on_gpu(q)
    ids, x = np.array([[1, 0], [1, 1]], np.int32), fresh.standard_normal((2, K), np.float32)
    y = gq.expert_linear(tensor(x), there, tensor(ids, "int32"), dtype=KINDS["float32"])
    return far(y, np.einsum("tk,tunk->tun", x, q.dequantize()[ids]))


def values(fresh):
    """True for each kind of floats that blocks are decoded to, if all bits are right."""
    q = gq.quantize(fresh.standard_normal((N, K), np.float32), "q6_K")
    there, w = on_gpu(q)
    with as_torch_works(torch, w.device, there.memory):
        right = [
            np.array_equal(gq.dequantize(there, kind).get(), q.dequantize(kind)) for kind in ("f4", "f2")
        ]
        bits = cuda_module("kernels.quantize.decode").decoded(there, "bfloat16").get()
    return [*right, np.array_equal(bits, fake_driver.narrowed(q.dequantize()))]


def strips(fresh):
    """Names of formats whose bytes come back wrongly from packed weights: on the GPU, and on the host."""
    wrong, count = [], 0
    able = [fmt for fmt in BLOCK_FORMATS if to_blocks.packed_shape(fmt, (1, 256)) is not None]
    for fmt in fresh.permutation(able)[:FORMATS]:
        for shape in ((19, 2 * max(fmt.block_size, 96) // fmt.block_size * fmt.block_size), (2, 18, 256)):
            size = to_blocks.packed_shape(fmt, shape)
            *lead, n, k = shape
            raw = random_blocks(
                fmt, int(np.prod(lead)) * n, k // fmt.block_size, int(fresh.integers(1 << 31))
            )
            raw = raw.view(np.uint8).reshape(*lead, n, -1)
            there, w = on_gpu(gq.QuantArray(fmt, shape, raw))
            with as_torch_works(torch, w.device, there.memory):
                fragments = cuda_module("layouts.pack").packed_weights(there).fragments
                back = cuda_module("layouts.to_blocks").restored(there).get()
            count += 1
            on_cpu = to_blocks.restored_on_host(fmt, shape, fragments.get())
            if not (np.array_equal(on_cpu, raw) and np.array_equal(back, raw) and fragments.shape == size):
                wrong.append(f"{fmt.name} {shape}")
    return {"wrong": wrong, "count": count}


def memory(fresh):
    """The threads that allocate: of what lasts, and of results."""
    there, w = on_gpu(gq.quantize(fresh.standard_normal((N, K), np.float32), "q5_0"))
    driver.threads.clear()
    with as_torch_works(torch, w.device, there.memory):
        cuda_module("layouts.pack").packed_weights(there)
        lasting = [each == threading.get_ident() for each in driver.threads]
        driver.threads.clear()
        cuda_device().cupy().empty(3)
    return {"lasting": lasting, "result": [each == threading.get_ident() for each in driver.threads]}


def refusals():
    """Sentences of errors: of arrays that only CuPy serves, of functions that torch does not stand in for."""
    said = []
    for work in (lambda: gq.quantize(np.ones((1, 32), np.float32), "q8_0").to("cuda"), in_the_library):
        try:
            work()
        except gq.GGMLQError as error:
            said.append(str(error))
    return said


def in_the_library():
    """A function of CuPy's that torch's library does not have."""
    with serving.served_by() as serves:
        serves.take(1)


def main(seed):
    """All of it."""
    fresh = np.random.default_rng(seed)
    facts = {
        "products": products(fresh), "experts": experts(fresh), "values": values(fresh),
        "memory": memory(fresh), "strips": strips(fresh), "refusals": refusals(),
        "calls": sorted(set(driver.calls)), "layers": layers(fresh),
        "modules": [name for name in sys.modules if name.partition(".")[0] in fake_driver.REFUSED],
    }  # fmt: skip
    print(json.dumps(facts))


if __name__ == "__main__":
    library = serving.torch_library()
    main(int(sys.argv[1]))
