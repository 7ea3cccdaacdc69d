"""The rules by which programs multiply formats: data, one small rule for a format and an arithmetic.

Everything else in this folder is written once and reads these records. What they say was found by
comparing with ggml's own results, type by type; docs/arithmetic.md has the figures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ..errors import UnsupportedError
from ..formats import FORMATS, BlockFormat, Format

# The names of all arithmetics, with what each means.
ARITHMETICS = {
    "exact": "activations as given times the decoded weights, all in float64",
    "f32": "activations and decoded weights as float32",
    "f16": "activations and decoded weights rounded to half",
    "bf16": "activations and decoded weights rounded to bfloat16",
    "tf32": "activations and decoded weights rounded to 10 bits of fraction, as cuBLAS does with float32",
    "tf32-cut": "the same cut off, as tensor cores read float32: llama.cpp on CUDA, 4 to 16 rows",
    "bf16x": "activations rounded to bfloat16; weights exact",
    "int16x": "activations rounded to 16-bit integers times a power of two for each 32; weights exact",
    "f16r": "activations as halves, a power of two for each row; sums of a run as halves; weights exact",
    "bf16s": "activations, decoded weights and, before them, their scales rounded to bfloat16",
    "q8": "activations as 8-bit codes, 32 to a float32 scale; exact block sums",
    "ggml-ref": "ggml's portable C: activations as q8_0, q8_1 or q8_K by the reference encoders",
    "ggml-cpu": "llama.cpp on x86: the same blocks by its vector code",
    "ggml-cpu-fp16": "the same with AVX512-FP16: sums of f16 weights in 128 lanes of halves",
    "ggml-mmvq": "llama.cpp on CUDA, up to 8 rows of activations",
    "ggml-mmq": "llama.cpp on CUDA, more than 8 rows of activations",
}

# In these kernels multiply one type; others look the same in halves or in ggml-cpu, or no kernel takes them.
ONE_TYPE = {"tf32": "f32", "tf32-cut": "f32", "ggml-cpu-fp16": "f16"}

Float = Literal["f64", "f32", "f16", "bf16", "tf32", "tf32-cut", "int16", "f16r"]
Kept = Literal["half", "float"]
KeptScale = Literal["half", "float", "bf16"]


@dataclass(frozen=True)
class Quantizer:
    """A program's rule for turning activations into 8-bit codes."""

    run: int  # elements that share a scale
    inverse: Literal["127/amax", "1/(amax/127)", "x/(amax/127)", "-127/extreme"]
    rounding: Literal["even", "away"]
    scale: Kept  # what the scale is kept as
    d: Literal["amax/127", "1/inverse"] = "amax/127"  # how the scale is formed
    # The block sum that is kept beside the scale, a half: of the codes times the unrounded
    # scale, or of the floats, in the order of a warp of threads or of threads with four each.
    sums: Literal["codes", "warp", "fours"] | None = None
    sum_run: int = 32  # elements that share a sum
    sums_of: int = 8  # of eight runs, the first so many have a kept sum


@dataclass(frozen=True)
class Rule:
    """One program's rule for multiplying one format. The defaults are the common case."""

    quantizer: Quantizer | None = None  # None: the activations stay floats
    floats: Float = "f64"  # what float activations are rounded to ...
    weights: Float | None = None  # ... and decoded weights, where they are decoded
    sums: Literal["codes", "kept"] = "codes"  # which sum serves the offset (and a zero in the code)
    zero_in_code: bool = False  # codes as stored: the zero is taken off through the sum
    eighths: bool = False  # codes 8 g ± 1 are multiplied as g + 1; the rest is an offset
    scales: KeptScale = "float"  # what a scale (and an offset) of the weights is kept as
    half_products: bool = False  # scale times scale, and offset times sum, are formed as halves
    truncate: int = 0  # sums times (s + 1/2) / truncate are integers, cut off towards zero
    half_runs: bool = False  # sums of a run are halves, in an order of the program's own
    half_lanes: bool = False  # sums in lanes of halves, in the order of ``multiply.py``
    bounded: bool = True  # False: the program sums in halves, or chooses among kernels by shape


Q8 = Quantizer(32, "127/amax", "even", "float")
REF = Quantizer(32, "1/(amax/127)", "away", "half", sums="codes")
X86 = Quantizer(32, "127/amax", "even", "half", sums="codes")
Q8_K = Quantizer(256, "-127/extreme", "even", "float", "1/inverse")
MMVQ = Quantizer(32, "x/(amax/127)", "away", "half", sums="warp")
D4 = Quantizer(32, "127/amax", "away", "float", "1/inverse")
DS4 = replace(D4, scale="half", sums="fours")
D2S6 = replace(DS4, run=64, sum_run=16, sums_of=6)

FLOATS = {
    "exact": Rule(weights="f64"),
    "f32": Rule(floats="f32", weights="f32"),
    "f16": Rule(floats="f16", weights="f16"),
    "bf16": Rule(floats="bf16", weights="bf16"),
    "tf32": Rule(floats="tf32", weights="tf32"),
    "tf32-cut": Rule(floats="tf32-cut", weights="tf32-cut"),
    "bf16x": Rule(floats="bf16", weights="f64"),
    "int16x": Rule(floats="int16", weights="f64"),
    "f16r": Rule(floats="f16r", weights="f64"),
    "bf16s": Rule(floats="bf16", weights="bf16", scales="bf16"),
}

# llama.cpp on CUDA: what departs from integer products with the codes' own sums.
ON_MMVQ = {
    "q4_0": Rule(sums="kept", zero_in_code=True),
    "q5_0": Rule(sums="kept", zero_in_code=True),
    "q4_1": Rule(sums="kept", half_products=True),
    "q5_1": Rule(sums="kept", half_products=True),
    "iq1_s": Rule(sums="kept", eighths=True),
    "iq2_xxs": Rule(truncate=4),
    "iq2_xs": Rule(truncate=4),
    "iq2_s": Rule(truncate=4),
    "iq3_xxs": Rule(truncate=2),
}
ON_MMQ = {
    "q4_0": Rule(DS4),
    "q4_1": Rule(DS4, sums="kept"),
    "q5_1": Rule(DS4, sums="kept"),
    "q4_K": Rule(DS4, sums="kept", scales="half"),
    "q5_K": Rule(DS4, sums="kept", scales="half"),
    "q2_K": Rule(D2S6, sums="kept", scales="half"),
    "iq1_s": Rule(DS4, sums="kept", eighths=True, scales="half"),
    "iq1_m": Rule(floats="f16", weights="f16", bounded=False),  # decoded, then cuBLAS sums halves
}
SCALARS = ("f32", "f16", "bf16")  # the scalars that llama.cpp multiplies
NOT_ON_CUDA = ("tq1_0", "tq2_0")
ONLY_ACTIVATIONS = ("q8_1", "q8_K")


def rule(fmt: str | int | Format, arithmetic: str | Rule) -> Rule:
    """The rule of this arithmetic for weights of this format; a Rule stands for itself."""
    fmt = FORMATS[fmt]
    if isinstance(arithmetic, Rule):
        return arithmetic
    if arithmetic not in ARITHMETICS:
        raise UnsupportedError(
            f"arithmetic {arithmetic!r}: there is no such arithmetic; this version computes "
            f"{', '.join(map(repr, ARITHMETICS))}; use one of these"
        )
    if arithmetic == "f16r" and isinstance(fmt, BlockFormat):
        return Rule(floats="f16r", half_runs=True)
    if arithmetic in FLOATS:
        return FLOATS[arithmetic]
    if not isinstance(fmt, BlockFormat):
        return _scalar_rule(fmt, arithmetic)
    if arithmetic == "q8":
        return Rule(Q8)
    on_cuda = arithmetic in ("ggml-mmvq", "ggml-mmq")
    if fmt.name in ONLY_ACTIVATIONS or (on_cuda and fmt.name in NOT_ON_CUDA):
        raise UnsupportedError(
            f"arithmetic {arithmetic!r} of {fmt.name}: llama.cpp does not multiply weights of this "
            "type there; ask for 'exact', 'f32' or 'q8', or requantize the weights"
        )
    if arithmetic == "ggml-mmvq":
        return replace(ON_MMVQ.get(fmt.name, Rule()), quantizer=MMVQ)
    if arithmetic == "ggml-mmq":
        return ON_MMQ.get(fmt.name, Rule(D4))
    if fmt.block_size == 256:
        return Rule(Q8_K)
    return Rule(REF if arithmetic == "ggml-ref" else X86, sums="kept" if fmt.has_offset else "codes")


def _scalar_rule(fmt: Format, arithmetic: str) -> Rule:
    """F32, F16 and BF16 have no codes: llama.cpp rounds the activations to their type."""
    if fmt.name not in SCALARS or arithmetic == "q8":
        raise UnsupportedError(
            f"arithmetic {arithmetic!r} of {fmt.name}: this type has no codes to multiply; "
            "ask for 'exact', 'f32', 'f16' or 'bf16'"
        )
    floats: Float = "f32" if fmt.name == "f32" else "f16" if fmt.name == "f16" else "bf16"
    on_cpu = arithmetic in ("ggml-ref", "ggml-cpu", "ggml-cpu-fp16")
    lanes = ONE_TYPE.get(arithmetic) == fmt.name
    return Rule(floats=floats, weights="f32", half_lanes=lanes, bounded=on_cpu or floats == "f32")
