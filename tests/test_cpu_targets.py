"""Products as other CPUs compute them: Numba is told to compile for less than this machine has."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import numpy as np
import pytest
from llvmlite import binding as llvm
from llvmlite import ir

import ggmlq as gq
from ggmlq.cpu.linear import r7_squares
from ggmlq.cpu.machine.features import compiled_for
from ggmlq.cpu.machine.simd import I8, I32, I64, vec
from ggmlq.cpu.machine.target import AVX2, AVX512, DOTPROD, NEEDS, PLAIN, VNNI, best
from ggmlq.cpu.panels import multiply as panel_products
from ggmlq.cpu.panels.layout import layout_of
from ggmlq.cpu.panels.prepare import panels
from ggmlq.cpu.panels.squares import MOST, SquareTile, direct
from ggmlq.cpu.panels.tile import ARGUMENTS, Tile
from ggmlq.dispatch import ladder
from ggmlq.dispatch.ladder import choose
from ggmlq.dispatch.problems import Linear
from ggmlq.formats import FORMATS
from ggmlq.testing.cases import weights
from ggmlq.testing.rows import rows

X86 = "+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+cx16,+popcnt"
WITH_AVX2 = X86 + ",+avx,+avx2,+fma,+f16c,+bmi,+bmi2"

PRODUCTS = """
import sys
import numpy as np, ggmlq as gq
from ggmlq.cpu.machine.target import target
from ggmlq.testing.cases import weights
from ggmlq.testing.oracle import assert_right
from ggmlq.testing.rows import rows
print(target().dot)
for name in sys.argv[1:]:
    q = weights(name, 19, 512, seed=1)
    for m in (1, 11):
        x = rows("normal", m, 512, seed=m)
        assert_right(x @ q.T, x, q)
q = gq.QuantArray.from_bytes(np.full((1, 34), 0x80, np.uint8), "q8_0", (1, 32)).copy()
q.blocks["d"] = 1  # codes of -128 against 127: sums of pairs overflow 16 bits if made carelessly
assert (np.full((1, 32), -3.0, np.float32) @ q.T == 128 * 32 * 3).all()
"""

# One of each way that panels hold weights; all of them would be compiled for each CPU.
KINDS = ("q6_K", "iq4_nl", "q4_K", "iq2_xs", "iq2_s", "iq1_m")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the features are those of x86")
@pytest.mark.drawn(1)
@pytest.mark.parametrize(("features", "dot"), [(WITH_AVX2, "avx2"), (X86, "plain")])
def test_products_without_avx512(features, dot, fresh):
    """One plain type, and two of other kinds that each run draws."""
    names = ["q4_0", *fresh.choice(KINDS, 2, replace=False)]
    env = {**os.environ, "NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": features}
    child = subprocess.run(
        [sys.executable, "-c", PRODUCTS, *names], env=env, capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, (names, child.stderr)
    assert child.stdout.strip() == dot


def test_the_best_that_the_features_allow():
    for kind, needs in NEEDS.items():
        assert best(frozenset(needs)) is kind
    assert best(frozenset(NEEDS[AVX512] | NEEDS[AVX2])) is AVX512
    assert best(frozenset({"avx2"})) is PLAIN


@pytest.mark.parametrize(
    ("target", "triple", "cpu", "features", "instruction"),
    [
        (AVX512, "x86_64-linux", "znver4", "", "vpdpbusd"),
        (VNNI, "x86_64-linux", "alderlake", "", "vpdpbusd"),
        (AVX2, "x86_64-linux", "haswell", "", "vpmaddubsw"),
        (DOTPROD, "aarch64-linux-gnu", "neoverse-n1", "", "sdot"),
        (PLAIN, "aarch64-linux-gnu", "generic", "", "mla"),
    ],
    ids=lambda value: getattr(value, "dot", None),
)
@pytest.mark.parametrize("layout", ["q4_0", "iq4_nl", "q5_K"])
def test_tiles_assemble_for_other_cpus(target, triple, cpu, features, instruction, layout):
    """Also for CPUs that are not here: the assembly holds the instruction that the target is named for."""
    if layout == "iq4_nl" and not target.shuffles:
        pytest.skip("panels with a table are for CPUs that look up bytes")
    assert instruction in assembled(Tile, layout, 2, target, triple, cpu, features)


def assembled(tile, layout, count, target, triple, cpu, features):
    """The assembly of a tile of some rows of activations."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = ir.Module()
    module.triple = triple
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * len(ARGUMENTS)), "tile")
    builder = ir.IRBuilder(function.append_basic_block())
    addresses = dict(zip(ARGUMENTS, function.args, strict=True))
    tile(builder, layout_of(FORMATS[layout]), count, target, addresses).emit()
    builder.ret_void()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features, opt=3)
    return machine.emit_assembly(llvm.parse_assembly(str(module)))


# --- squares of arm64 -------------------------------------------------------------------------


class Squares(SquareTile):
    """The tile with its one instruction in plain code."""

    def square(self, sums, ours, theirs):
        ours, theirs = (
            self.b.sext(self.b.bitcast(part, vec(I8, 16)), vec(I32, 16)) for part in (ours, theirs)
        )
        for i in range(4):
            w, x = self.simd.part(ours, 8 * (i // 2), 8), self.simd.part(theirs, 8 * (i % 2), 8)
            more = self.simd.call("llvm.vector.reduce.add.v8i32", I32, self.b.mul(w, x))
            more = self.b.add(more, self.b.extract_element(sums, I32(i)))
            sums = self.b.insert_element(sums, more, I32(i))
        return sums


@pytest.mark.skipif(not {"avx2", "fma", "f16c"} <= compiled_for(), reason="the other tiles are those of AVX2")
def test_squares_have_the_bits_of_dot_products(monkeypatch):
    """Four rows of activations, two and one; scales for 16 weights; rows of weights that fill no panel."""
    monkeypatch.setattr(panel_products, "target", lambda: AVX2)
    q, x = weights("q6_K", 19, 512, seed=1), rows("normal", 7, 512, seed=2)
    layout, y = layout_of(q.format), np.full((8, 19), np.nan, np.float32)
    kernels = direct(layout, AVX2, Squares)
    panel_products.multiply(x, q.prepared(panels), y[:-1], layout, lambda rows: kernels, most=MOST)
    monkeypatch.undo()
    assert np.array_equal(y[:-1], gq.linear(x, q, kernel="cpu:panels"))
    assert np.isnan(y[-1]).all()


def test_squares_assemble_for_arm():
    arm = ("aarch64-linux-gnu", "neoverse-v1", "+i8mm")
    lines = assembled(SquareTile, "q4_0", MOST, DOTPROD, *arm).splitlines()
    names = [line.split()[0] for line in lines if line.strip()]
    assert names.count("smmla") == 64
    assert "sdot" not in names


def test_nobody_gets_squares_unasked(monkeypatch):
    problem = Linear(FORMATS["q4_0"], 64, 64, 256, device="cpu")
    if platform.machine() == "x86_64":
        assert "i8mm" in r7_squares.refuses(problem)
    monkeypatch.setattr(r7_squares, "target", lambda: DOTPROD)
    monkeypatch.setattr(r7_squares, "compiled_for", lambda: compiled_for() | {"i8mm"})
    assert r7_squares.refuses(problem) is None
    assert "a square is" in r7_squares.refuses(Linear(FORMATS["q4_0"], 1, 64, 256, device="cpu"))
    ladder.explain.cache_clear()
    assert choose(problem).name != "cpu:squares"
    assert choose(problem, "cpu:squares").name == "cpu:squares"
    ladder.explain.cache_clear()
