"""Products as other CPUs compute them: Numba is told to compile for less than this machine has."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from llvmlite import binding as llvm
from llvmlite import ir

from ggmlq.cpu.machine.simd import I64
from ggmlq.cpu.machine.target import AVX2, AVX512, DOTPROD, NEEDS, PLAIN, VNNI, best
from ggmlq.cpu.panels.layout import layout_of
from ggmlq.cpu.panels.tile import ARGUMENTS, Tile
from ggmlq.formats import FORMATS

HERE = Path(__file__).parent
PATHS = os.pathsep.join([str(HERE.parent), str(HERE)])
X86 = "+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+cx16,+popcnt"
WITH_AVX2 = X86 + ",+avx,+avx2,+fma,+f16c,+bmi,+bmi2"

PRODUCTS = """
import sys
import numpy as np, ggmlq as gq
from ggmlq.cpu.machine.target import target
from block_cases import weights
from right import assert_right
from ggmlq.arrays.rows import rows
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


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the features are those of x86")
@pytest.mark.drawn(1)
@pytest.mark.parametrize(("features", "dot"), [(WITH_AVX2, "avx2"), (X86, "plain")])
def test_products_without_avx512(features, dot, fresh):
    """One plain type, and two of other kinds that each run draws."""
    names = ["q4_0", *fresh.choice(KINDS, 2, replace=False)]
    env = {**os.environ, "NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": features, "PYTHONPATH": PATHS}
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
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = ir.Module()
    module.triple = triple
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * len(ARGUMENTS)), "tile")
    builder = ir.IRBuilder(function.append_basic_block())
    addresses = dict(zip(ARGUMENTS, function.args, strict=True))
    Tile(builder, layout_of(FORMATS[layout]), 2, target, addresses).emit()
    builder.ret_void()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features, opt=3)
    assert instruction in machine.emit_assembly(llvm.parse_assembly(str(module)))
