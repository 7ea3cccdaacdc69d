"""Compiled encoders write the bytes that NumPy writes; how rows are dealt out to encoders."""

from __future__ import annotations

import dataclasses
import os
import platform
import subprocess
import sys
import threading
from importlib import import_module

import made_up
import numpy as np
import pytest
from block_cases import assert_same_blocks
from test_encode import BLOCKS, by_name

import ggmlq as gq
from ggmlq.arrays.rows import KINDS, rows
from ggmlq.base import progress, threads
from ggmlq.formats import FORMATS, _levels, _program, _round

encoding = import_module("ggmlq.ops.quantize")  # ggmlq.ops has the function of that name

TWICE = [fmt for fmt in BLOCKS if fmt.pack is not None]
SIMPLE = [FORMATS["f16"], FORMATS["bf16"], *(fmt for fmt in TWICE if fmt.search != "always")]


def compiled(fmt, x, weights):
    raw = np.empty((len(x), fmt.row_bytes(x.shape[1])), np.uint8)
    encoding.compiled_encoder(fmt)(x, weights, raw)
    return raw.view(fmt.dtype)


def check(fmt, x, weights=None):
    assert_same_blocks(compiled(fmt, x, weights), fmt.encode(x, weights), fmt, x)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("fmt", TWICE, ids=by_name)
def test_compiled_encoders_write_the_same(fmt, weighted):
    """Rows of three super-blocks of every kind: blocks of a row lie in different vectors."""
    seed = int(np.random.default_rng().integers(1 << 31))
    x = np.concatenate([rows(kind, 3, 768, seed) for kind in KINDS])
    weights = (rows("spikes", 1, 768, seed) + rows("normal", 1, 768, seed))[0] ** 2 if weighted else None
    check(fmt, x, weights)


@pytest.mark.parametrize("fmt", SIMPLE, ids=by_name)
def test_any_finite_bits(fmt):
    """Each block around a magnitude of its own, subnormals and overflowing reciprocals included."""
    rng = np.random.default_rng()
    exponents = rng.integers(0, 255, (64, 1024 // fmt.block_size, 1))
    near = np.clip(exponents - rng.integers(0, 5, (64, 1024 // fmt.block_size, fmt.block_size)), 0, 254)
    bits = near.astype(np.uint32) << 23 | rng.integers(0, 1 << 23, near.shape, np.uint32)
    bits |= rng.integers(0, 2, near.shape, np.uint32) << 31
    check(fmt, bits.view(np.float32).reshape(64, 1024))


def test_mxfp4_beside_every_power_of_two():
    """Its exponent is a rounded logarithm, which is not the float's own exponent near a power."""
    powers = np.arange(1, 255, dtype=np.int64)[:, None] << 23
    largest = (powers + np.arange(-64, 64)).astype(np.uint32).view(np.float32)
    x = np.zeros((*largest.shape, 32), np.float32)
    x[..., 7] = -largest
    x[..., 9] = largest / 3
    check(FORMATS["mxfp4"], x.reshape(len(x), -1))


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_scalars_of_any_number(name):
    rng = np.random.default_rng()
    for n in (1, 31, 32, 33, 100):
        check(FORMATS[name], rng.standard_normal((1, n), np.float32))
    ties = np.arange(65536, dtype=np.uint32)[None] << 16 | 0x8000
    ties = np.ascontiguousarray(ties[np.isfinite(ties.view(np.float32))])[None].view(np.float32)
    check(FORMATS[name], ties)
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    check(FORMATS[name], ((halves[1:] + halves[:-1]) / 2)[None])


def test_every_encoder_is_found_and_no_other():
    """What the descriptors say of encoders is what ``cpu/encode`` has; a type without one has none."""
    for fmt in BLOCKS:
        assert fmt.can_quantize
        assert fmt.compiled_only == (fmt.pack is None)
        assert encoding.compiled_encoder(fmt) is not None, fmt.name
    for fmt in made_up.FORMATS.values():
        assert not fmt.can_quantize
        assert encoding.compiled_encoder(fmt) is None
        with pytest.raises(gq.GGMLQError, match="only decodes"):
            fmt.encode(np.ones((1, 256), np.float32))
    with pytest.raises(gq.GGMLQError, match="has a compiled one"):
        FORMATS["iq2_s"].encode(np.ones((1, 256), np.float32))


def test_a_program_is_all_that_a_new_format_needs():
    """A type of one's own, with a program and no file in ``cpu/encode``, is compiled like the others."""
    fmt = dataclasses.replace(FORMATS["q6_K"], name="x6_K", id=1002)
    check(fmt, rows("normal", 2, 512, 3))


@pytest.mark.parametrize("blocks", [1, 2, 15, 16, 17, 33])
def test_any_number_of_blocks(blocks):
    for name in ("q6_K", "iq4_nl", "q8_0"):
        check(FORMATS[name], rows("normal", 1, blocks * FORMATS[name].block_size, blocks))
    x = rows("normal", blocks, 32, blocks)
    check(FORMATS["q4_0"], x, np.arange(1, 33, dtype=np.float32))


def words_on(values):
    """Each word of arithmetic on 16 lanes, compiled."""
    from ggmlq.cpu.encode.tiles import WORDS, tile
    from ggmlq.cpu.encode.tiles import compiled as compiled_function
    from ggmlq.cpu.machine.jit import jit

    nearest, to_half, from_half, clamp, rank, pick, get, put, real, root, log2 = (
        WORDS[name] for name in (
            "nearest", "to_half", "from_half", "clamp", "rank", "pick", "get", "put", "real", "root", "log2",
        )
    )  # fmt: skip
    half_away = compiled_function(_round.half_away)

    @jit
    def run(x, out, edges, levels):
        v = get(x, 0)
        put(out, 0, real(nearest(v)))
        put(out, 1, real(to_half(v)))
        put(out, 2, from_half(to_half(v)))
        put(out, 3, real(clamp(nearest(v), -4, 3)))
        put(out, 4, real(rank(v, edges)))
        put(out, 5, pick(v, edges, levels))
        put(out, 6, root(v))
        put(out, 7, log2(v))
        put(out, 8, real(half_away(v)))

    x, out = tile(1), tile(9)
    results = np.empty((9, len(values)), np.float32)
    for at in range(0, len(values), 16):
        x[0] = values[at : at + 16]
        run(x, out, _levels.MIDDLES, _levels.LEVELS)
        results[:, at : at + 16] = out
    return results


def half_away_by_parts(v):
    """C's ``roundf`` with its definition in place of a sum, and x86-64's integers."""
    whole = np.trunc(v)
    nearest = whole + np.copysign(np.abs(v - whole) >= 0.5, v)
    return np.where(np.abs(nearest) < 2.0**31, nearest, -(2.0**31)).astype(np.int32)


def test_words_mean_the_same_compiled():
    """On all exponents and both signs, at halves' ties and limits, and for NaN."""
    rng = np.random.default_rng()
    bits = rng.integers(0, 1 << 32, 1 << 14, np.uint32)
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    with np.errstate(all="ignore"):
        ties = (halves[:-1] + halves[1:]) / 2
    below_half = np.nextafter(np.float32([0.5, -0.5]), np.float32(0))
    near = np.concatenate([_levels.MIDDLES, below_half, rng.uniform(-130, 130, 1007).astype(np.float32)])
    v = np.concatenate([bits.view(np.float32), halves, ties, ties[:1], near])
    v[np.isnan(v)] = np.nan  # of all NaN the one that arithmetic makes
    assert len(v) % 16 == 0
    with np.errstate(all="ignore"):
        nearest, half = _program.nearest(v), _program.to_half(v)
        want = [
            nearest, half, _program.from_half(half), _program.clamp(nearest, -4, 3),
            _program.rank(v, _levels.MIDDLES), _program.pick(v, _levels.MIDDLES, _levels.LEVELS), np.sqrt(v),
            _program.log2(v), half_away_by_parts(v),
        ]  # fmt: skip
        for got, wanted in zip(words_on(v), want, strict=True):
            assert np.array_equal(got, wanted.astype(np.float32), equal_nan=True)


@pytest.fixture
def compiled_at_once(monkeypatch):
    monkeypatch.setattr(encoding, "PATIENCE", -1)


@pytest.fixture
def one_to_three_threads():
    before = threads.num_threads()
    yield (1, 2, 3)
    threads.set_num_threads(before)


def test_the_number_of_threads_changes_nothing(monkeypatch, compiled_at_once, one_to_three_threads):
    x = rows("heavy_tails", 37, 512)
    weights = np.abs(rows("normal", 1, 512)[0])
    monkeypatch.setattr(encoding, "SLAB", 3000)
    for name, w in (("q6_K", None), ("q6_K", weights), ("q4_0", weights)):
        want = FORMATS[name].encode(x, w).tobytes()
        for n in one_to_three_threads:
            threads.set_num_threads(n)
            assert gq.quantize(x, name, imatrix=w).raw.tobytes() == want


def test_the_first_bad_value_is_named_whatever_thread_meets_it(monkeypatch, one_to_three_threads):
    monkeypatch.setattr(encoding, "SLAB", 64)
    x = np.ones((12, 64), np.float32)
    x[3, 7] = x[5, 1] = x[11, 0] = np.nan
    for n in one_to_three_threads:
        threads.set_num_threads(n)
        with pytest.raises(gq.GGMLQError, match=r"x\[3, 7\] is nan"):
            gq.quantize(x.reshape(12, 64), "q4_0")


def test_numpy_serves_until_it_has_cost_as_much_as_loading(monkeypatch):
    monkeypatch.setattr(encoding, "_spent", type(encoding._spent)(float))
    monkeypatch.setattr(encoding, "PATIENCE", 2)
    chosen = []
    monkeypatch.setattr(encoding, "compiled_encoder", lambda fmt: chosen.append(fmt.name) or fmt.encode)
    encoding._encoder(FORMATS["q6_K"], 1 << 20, weighted=False)
    encoding._encoder(FORMATS["q4_0"], 1 << 26, weighted=False)
    assert chosen == []
    encoding._encoder(FORMATS["q6_K"], 1 << 24, weighted=False)
    encoding._encoder(FORMATS["q6_K"], 256, weighted=False)
    encoding._encoder(FORMATS["q6_K"], 256, weighted=True)
    for _ in range(20):
        encoding._encoder(FORMATS["q4_0"], 1 << 20, weighted=True)
    assert chosen[:3] == ["q6_K", "q6_K", "q4_0"]
    assert 5 < chosen.count("q4_0") < 15


OTHER_CPU = """
import sys
sys.path.insert(0, sys.argv[1])
from test_encode_compiled import FORMATS, check
from ggmlq.arrays.rows import rows
for fmt in [FORMATS[name] for name in sys.argv[2:]]:
    for kind in ("normal", "ties", "tiny", "huge"):
        check(fmt, rows(kind, 2, 512))
"""


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("cpu", "features", "names"),
    [
        ("generic", "", [fmt.name for fmt in SIMPLE]),
        ("haswell", "+avx2,+fma,+f16c", ["f16", "q5_0", "q8_K", "mxfp4", "tq1_0"]),
    ],
    ids=["generic", "haswell"],
)
def test_other_cpus(cpu, features, names, drawn_formats):
    """Without AVX-512, and without any extension: as here, of blocks those formats that the run draws."""
    if cpu != "generic" and platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("this is an x86 CPU")
    env = os.environ | {"NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": features}
    names = [name for name in names if name in drawn_formats or FORMATS[name].block_size == 1]
    command = [sys.executable, "-c", OTHER_CPU, os.path.dirname(__file__), "q6_K", *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr


def test_small_arrays_load_no_numba():
    code = (
        "import sys, numpy as np, ggmlq as gq\n"
        "for name in gq.formats:\n"
        "    if gq.formats[name].can_quantize and not gq.formats[name].needs_imatrix:\n"
        "        if getattr(gq.formats[name], 'pack', 1):\n"
        "            gq.quantize(np.ones((4, 512), np.float32), name, imatrix=np.ones(512, np.float32))\n"
        "print('numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_several_python_threads_at_once(compiled_at_once):
    x = rows("normal", 64, 512)
    want = FORMATS["q6_K"].encode(x).tobytes()
    found = []
    callers = [
        threading.Thread(target=lambda: found.append(gq.quantize(x, "q6_K").raw.tobytes())) for _ in range(4)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert found == [want] * 4


def test_an_interrupt_ends_it_between_two_slabs(monkeypatch):
    done = []

    def interrupted(n):
        done.append(n)
        if len(done) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(encoding, "SLAB", 64)
    monkeypatch.setattr(progress.Progress, "advance", lambda self, n: interrupted(n))
    with pytest.raises(KeyboardInterrupt):
        gq.quantize(rows("normal", 50, 64), "q4_0")
    assert len(done) == 2


@pytest.mark.parametrize("terminal", [True, False])
def test_long_work_shows_a_bar_on_a_terminal(monkeypatch, capsys, terminal):
    monkeypatch.setattr(progress, "AFTER", -1)
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    gq.quantize(rows("normal", 8, 256), "q4_0")
    assert ("encoding q4_0" in capsys.readouterr().err) == terminal
