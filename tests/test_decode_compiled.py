"""Compiled decoding gives NumPy's bits, for every kind of array that a QuantArray can be."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest
from at_once import at_once

import ggmlq as gq
from ggmlq.base import threads
from ggmlq.cpu import unpack
from ggmlq.cpu.unpack import walker, walks
from ggmlq.formats import FORMATS, BlockFormat

decoding = import_module("ggmlq.ops.dequantize")  # ggmlq.ops has the function of that name

DTYPES = [np.float32, np.float64, np.float16]
HAVE_WALKS = [fmt for fmt in FORMATS.values() if walker(fmt) is not None]


def any_array(fmt, rows, blocks):
    """Random bytes, NaN and infinite scales among them."""
    raw = np.random.default_rng().integers(0, 256, (rows, blocks * fmt.dtype.itemsize), np.uint8)
    return gq.QuantArray.from_bytes(raw, fmt, (rows, blocks * fmt.block_size))


def numpy_values(q, dtype=np.float32):
    with np.errstate(all="ignore"):
        return q.format.decode(q.blocks, np.float32).astype(dtype).reshape(q.shape)


def assert_bits(got, want):
    """Equal to the bit, signs of zeros too; NaN equals NaN."""
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    same = (got == want) & (np.signbit(got) == np.signbit(want)) | (np.isnan(got) & np.isnan(want))
    assert same.all(), f"{int((~same).sum())} of {same.size} differ, first at {np.argwhere(~same)[0]}"


@pytest.fixture
def compiled(monkeypatch):
    """Every array goes through compiled code, on several threads if it is not tiny."""
    monkeypatch.setattr(decoding, "PATIENCE", 0)
    monkeypatch.setattr(decoding, "SHARED", 256)


@pytest.fixture
def three_threads():
    threads.set_num_threads(3)
    yield
    threads._requested.clear()


def test_every_block_format_has_a_walk_and_every_walk_a_format():
    assert {f"walk_{name}" for name in unpack.WALKED} == {
        name for name in vars(walks) if name.startswith("walk_")
    }
    assert {fmt.name for fmt in HAVE_WALKS} == {
        *(fmt.name for fmt in FORMATS.values() if isinstance(fmt, BlockFormat)), "f16", "bf16",
    }  # fmt: skip


@pytest.mark.parametrize("fmt", HAVE_WALKS, ids=lambda fmt: fmt.name)
def test_values(fmt, compiled):
    q = any_array(fmt, 3, 5)
    assert_bits(q.dequantize(), numpy_values(q))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["q4_0", "q4_K", "q6_K", "iq2_xs", "f16", "bf16"])
def test_other_floats(name, dtype, compiled):
    q = any_array(FORMATS[name], 4, 7)
    assert_bits(q.dequantize(dtype), numpy_values(q, dtype))


@pytest.mark.parametrize("name", ["q5_1", "q3_K", "bf16"])
def test_any_number_of_blocks(name, compiled, three_threads):
    for rows, blocks in [(1, 1), (1, 40), (7, 3), (33, 1), (2, 100)]:
        q = any_array(FORMATS[name], rows, blocks)
        assert_bits(q.dequantize(), numpy_values(q))


@pytest.mark.parametrize("name", ["q4_1", "q5_K", "f16"])
def test_any_array(name, compiled):
    """Strided rows, more axes, read-only and mapped bytes, and the other byte order."""
    fmt = FORMATS[name]
    q = any_array(fmt, 12, 4)
    want = numpy_values(q)
    assert_bits(q[::3].dequantize(), want[::3])
    assert_bits(q[[5, 1, 1]].dequantize(), want[[5, 1, 1]])
    assert_bits(q[7].dequantize(), want[7])
    assert_bits(np.asarray(q), want)
    stacked = gq.QuantArray.from_bytes(q.raw, fmt, (3, 2, 2, q.shape[1]))
    assert_bits(stacked[::-1].dequantize(), want.reshape(stacked.shape)[::-1])
    frozen = gq.QuantArray.from_bytes(q.raw.tobytes(), fmt, q.shape)
    assert_bits(frozen.dequantize(), want)
    swapped = gq.QuantArray(fmt, q.shape, fmt.byteswapped(q.raw), swapped=True)
    assert_bits(swapped.dequantize(), want)
    assert_bits(swapped[::-2].dequantize(), want[::-2])


def test_a_mapped_file(compiled, tmp_path):
    q = any_array(FORMATS["iq4_xs"], 6, 2)
    (tmp_path / "bytes").write_bytes(b"x" + q.raw.tobytes())
    raw = np.memmap(tmp_path / "bytes", np.uint8, "r", offset=1)
    mapped = gq.QuantArray.from_bytes(raw, q.format, q.shape)
    assert_bits(mapped.dequantize(), numpy_values(q))


def test_from_several_threads(compiled, three_threads):
    arrays = [any_array(FORMATS["q4_0"], 64, 8) for _ in range(8)]
    results = {}

    def run(i):
        results[i] = arrays[i].dequantize()

    at_once(run, len(arrays))
    for i, q in enumerate(arrays):
        assert_bits(results[i], numpy_values(q))


def test_small_arrays_load_no_numba():
    code = (
        "import sys, numpy as np, ggmlq as gq\n"
        "q = gq.quantize(np.ones((64, 256), np.float32), 'q8_0')\n"
        "q.dequantize(); print('numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_format_is_compiled_when_enough_was_asked_of_it(monkeypatch):
    used = []
    monkeypatch.setattr(decoding, "PATIENCE", 1000)
    monkeypatch.setattr(decoding, "_calls", decoding.Counter())
    monkeypatch.setattr(decoding, "decoder", lambda fmt: used.append(fmt.name))
    for _ in range(4):
        any_array(FORMATS["q8_0"], 4, 3).dequantize()
        any_array(FORMATS["i16"], 4, 3).dequantize()
    assert used == ["q8_0", "q8_0"], "384 weights a call: the third goes beyond 1000"


PLAIN_CPU = """
import numpy as np
from ggmlq.cpu.unpack.decode import decoder
from ggmlq.cpu.machine.jit import jit
from ggmlq.cpu.lanes import load, store_floats
from ggmlq.formats import FORMATS
for name in ["q4_0", "iq4_nl", "q4_K", "iq3_s", "tq1_0"]:
    fmt = FORMATS[name]
    raw = np.random.default_rng().integers(0, 256, 64 * fmt.dtype.itemsize, np.uint8)
    with np.errstate(all="ignore"):
        want = fmt.decode(raw.view(fmt.dtype))
    values = np.empty(want.size, np.float32)
    decoder(fmt)(raw, values)
    assert np.array_equal(values, want, equal_nan=True), name
bits = np.arange(65536).astype(np.uint16)
floats, back = np.empty(65536, np.float32), np.empty(65536, np.uint16)
decoder(FORMATS["f16"])(bits.view(np.uint8), floats)
assert np.array_equal(floats, bits.view(np.float16).astype(np.float32), equal_nan=True)
x = np.random.default_rng().integers(0, 1 << 32, 65536, np.uint32).view(np.float32)
with np.errstate(all="ignore"):
    x[::2] = floats[::2] * np.float32(1 + 2**-11)  # ties, and beside the largest half
x[::4] = np.random.default_rng().standard_normal(x[::4].size) * 1e-6
@jit
def narrow(x, back):
    for i in range(0, len(x), 16):
        store_floats(back, i, load(x, i, 16))
narrow(x, back)
with np.errstate(all="ignore"):
    assert np.array_equal(back.view(np.float16), x.astype(np.float16), equal_nan=True)
"""


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", ["generic", ""])
def test_a_cpu_with_and_without_extensions(name):
    """Without them byte look-ups and halves are done by hand."""
    environment = {**os.environ, **({"NUMBA_CPU_NAME": name} if name else {})}
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_CPU], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
