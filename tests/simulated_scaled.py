"""Run by test_cuda_scaled_simulated: quantizers of scaled arrays without a GPU, whole calls at a time.

    python tests/simulated_scaled.py SEED CAPABILITY ROUNDS

Every thread of a block is a thread of Python; shuffles and barriers wait for all that take part. Memory
is the process's own: each access must be aligned and lie in an array that was made for it.
"""

import ctypes
import sys
import threading
from types import SimpleNamespace

import numpy as np
from fake_cupy import DeviceArray
from numba.cuda.simulator import kernel as simulator
from scaled_cases import case, same

from ggmlq.arrays.scaled import ScaledArray
from ggmlq.codes import scaling

HERE = threading.local()
ARRAYS = []  # address and end of all memory that kernels may touch
WARPS, BLOCK = {}, {}


class Fake:
    """The attributes of ``cuda`` that kernels use."""

    threadIdx = property(lambda self: SimpleNamespace(x=HERE.thread))  # noqa: N815
    blockIdx = property(lambda self: SimpleNamespace(x=HERE.block[0], y=HERE.block[1]))  # noqa: N815
    local = SimpleNamespace(array=lambda count, kind: np.zeros(count, kind.name))

    @property
    def shared(self):
        return SimpleNamespace(array=self._shared)

    def _shared(self, count, kind):
        place, HERE.shared = HERE.shared, HERE.shared + 1
        with BLOCK["lock"]:
            return BLOCK.setdefault(place, np.zeros(count, kind.name))

    def syncthreads(self):
        BLOCK["barrier"].wait()

    def shfl_xor_sync(self, mask, value, step):
        given, barrier = WARPS[HERE.thread // 32]
        lane = HERE.thread % 32
        given[lane] = value
        barrier.wait()
        found = given[lane ^ step]
        barrier.wait()
        return found


def touched(address, size):
    address = int(address)
    assert address % size == 0, "an access that is not aligned"
    assert any(start <= address and address + size <= end for start, end in ARRAYS), "outside of all arrays"
    return (ctypes.c_ubyte * size).from_address(address)


def loading(count, dtype):
    def load(address):
        found = np.frombuffer(touched(address, count * np.dtype(dtype).itemsize), dtype)
        found = found if np.dtype(dtype).kind == "f" else found.astype(np.uint32)
        return found[0] if count == 1 else tuple(found)

    return load


def storing(dtype):
    def store(address, *values):
        if np.dtype(dtype).kind != "f":
            values = [int(value) & 256 ** np.dtype(dtype).itemsize - 1 for value in values]
        memory = touched(address, len(values) * np.dtype(dtype).itemsize)
        np.frombuffer(memory, dtype)[:] = values

    return store


LOCK = threading.Lock()


def atomic_max(address, word):
    with LOCK:
        memory = np.frombuffer(touched(address, 4), np.uint32)
        memory[0] = max(memory[0], word)


def run(self, grid, block, *arguments):
    """A launch, in place of the driver's."""
    values = [
        value if is_array else np.uint64(value if isinstance(value, int) else value.data.ptr)
        for value, is_array in zip(arguments, self._is_array, strict=True)
    ]
    values = [np.uint32(v) if str(k) == "uint32" else v for v, k in zip(values, self.parameters, strict=True)]
    together = any(word in self.name for word in ("groups", "tiles of", "extremes"))
    for y in range(grid[1] if len(grid) > 1 else 1):
        for x in range(grid[0]):
            run_block(self.function, (x, y), block[0], values, together)


def run_block(function, block, threads, values, together):
    BLOCK.clear()
    BLOCK.update(barrier=threading.Barrier(threads), lock=threading.Lock())
    WARPS.update({w: ([None] * 32, threading.Barrier(32)) for w in range(threads // 32)})
    failed = []

    def one(thread):
        HERE.thread, HERE.block, HERE.shared = thread, block, 0
        try:
            with np.errstate(all="ignore"):
                function(*values)
        except BaseException as error:
            failed.append(error)
            for _, barrier in WARPS.values():
                barrier.abort()
            BLOCK["barrier"].abort()

    if together:
        running = [threading.Thread(target=one, args=(i,)) for i in range(threads)]
        for each in running:
            each.start()
        for each in running:
            each.join()
    else:
        for i in range(threads):
            one(i)
    for error in failed:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error


# --- the machine --------------------------------------------------------------------------------


def on_device(array):
    found = array.view(DeviceArray)
    base = found
    while isinstance(base.base, np.ndarray):
        base = base.base
    ARRAYS.append((base.ctypes.data, base.ctypes.data + base.nbytes))
    return found


def aligned(shape, dtype, fill=0xA5):
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.full(size + 256, fill, np.uint8)
    start = -memory.ctypes.data % 256
    found = memory[start : start + size].view(dtype).reshape(shape).view(DeviceArray)
    ARRAYS.append((found.ctypes.data, found.ctypes.data + size))
    return found


def copy(array):
    found = aligned(array.shape, array.dtype)
    found[...] = array
    return found


def put_gpu(capability):
    from ggmlq.cuda.driver import device, launch
    from ggmlq.cuda.intrinsics import floats as storing_floats
    from ggmlq.cuda.intrinsics import lane, ptx
    from ggmlq.cuda.kernels import quantize_scaled
    from ggmlq.cuda.kernels.quantize_scaled import decode
    from ggmlq.cuda.layouts import floats

    simulator.FakeCUDAKernel.__call__ = lambda self, *operands: self.fn(*operands)
    fake = Fake()
    for module in (quantize_scaled._kernels, quantize_scaled._codes, decode, storing_floats, lane):
        module.cuda = fake
    ptx.load_words, ptx.load4, ptx.atomic_max = loading(4, np.uint32), loading(1, np.uint32), atomic_max
    ptx.load2, ptx.load1, ptx.load_float = (loading(1, t) for t in (np.uint16, np.uint8, np.float32))
    ptx.store1, ptx.store2, ptx.store4 = (storing(t) for t in (np.uint8, np.uint16, np.uint32))
    ptx.store16, ptx.store_float, ptx.store8 = ptx.store4, storing(np.float32), ptx.store4
    cupy = SimpleNamespace(
        empty=aligned, zeros=lambda shape, dtype: aligned(shape, dtype, 0), ascontiguousarray=copy
    )
    DeviceArray.copy, DeviceArray.astype = copy, lambda x, dtype: copy(np.asarray(x).astype(dtype))
    device.capability, device.multiprocessors = lambda: capability, lambda: 2
    launch.Kernel.__call__ = run
    quantize_scaled.cupy = decode.cupy = lambda: cupy
    floats.converted = quantize_scaled.converted = lambda x, dtype: copy(np.asarray(x).astype(dtype))
    decode.converted = lambda x, dtype: x.astype(dtype)
    return quantize_scaled


def check_values(rng, found, over, rule, told):
    """Decode codes and scales of any strides, and compare."""
    from ggmlq.cuda.kernels.quantize_scaled.decode import dequantize

    codes, tile = np.array(found.codes), (over.r, over.c)
    if rng.integers(2):
        codes = np.repeat(codes, 2, axis=1)[:, ::2]
    dtype = (np.float16, np.float32, np.float64)[rng.integers(3)]
    parts = [None if part is None else on_device(np.asarray(part)) for part in (found.scales, found.zeros)]
    s = ScaledArray(on_device(codes), parts[0], rule.code, tile, parts[1])
    with np.errstate(all="ignore"):
        want = ScaledArray(codes, found.scales, rule.code, tile, found.zeros).dequantize(dtype)
    got = dequantize(s, np.dtype(dtype))
    assert got.dtype == want.dtype
    assert np.array_equal(got, want, equal_nan=True), f"{dtype} of {told}"


def main():
    seed, capability, rounds = int(sys.argv[1]), tuple(map(int, sys.argv[2].split("."))), int(sys.argv[3])
    quantizer = put_gpu(capability)
    for at in range(rounds):
        ARRAYS.clear()
        rng = np.random.default_rng([seed, at])
        x, over, rule = case(rng, at)
        told = f"seed {seed}, {at}: {x.dtype} {over} {rule}"
        given = on_device(x)
        with np.errstate(all="ignore"):
            want = scaling.quantize(x, over, rule)
        got = quantizer.quantize(given, over, rule)
        assert same(got.scales, want.scales), told
        assert (got.zeros is None) == (want.zeros is None)
        assert want.zeros is None or np.array_equal(got.zeros, want.zeros), told
        assert same(got.codes, want.codes, rule.code), told
        check_values(rng, want, over, rule, told)
        scales = on_device(np.asarray(want.scales).copy())
        if rule.scale == "float32":
            scales[...] = scales * np.float32(rng.choice([1, 0.75, 0, -1, np.nan, 2.0**-126]))
        with np.errstate(all="ignore"):
            zeros = scaling.zeros_of(x, over, rule, np.asarray(scales)) if rule.zeros else None
            codes = scaling.encode(x, over, rule, np.asarray(scales), zeros)
        made = quantizer.zeros_of(given, over, rule, scales) if rule.zeros else None
        assert zeros is None or np.array_equal(made, zeros), told
        assert same(quantizer.encode(given, over, rule, scales, made), codes, rule.code), f"given: {told}"


if __name__ == "__main__":
    main()
