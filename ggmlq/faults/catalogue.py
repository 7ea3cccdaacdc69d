"""The faults that ggmlq knows: what each is, the wrong and the right formula, the real bugs behind it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One entry of the catalogue."""

    id: str
    says: str  # one sentence
    wrong: str  # formula
    right: str  # formula
    look: str  # the place in a kernel
    bugs: str = ""  # where it happened


def entries(*table: tuple[str, ...]) -> dict[str, Fault]:
    """Faults by name: name, sentence, wrong formula, right formula, where to look, and real bugs."""
    return {fault[0]: Fault(*fault) for fault in table}


CATALOGUE = entries(
    ("correct", "The kernel is right in the arithmetic that the text names.", "",
     "y = Σ scale·code·x - Σ offset·s", "nowhere",
     "correct kernels that a threshold refused: llama.cpp #11972, #16544, #8495, #27062"),
    ("nibble-order", "Packed codes are taken in the wrong order, as interleaved where they are split.",
     "q4_0: q[2j] = qs[j] & 15, q[2j+1] = qs[j] >> 4", "q4_0: q[j] = qs[j] & 15, q[j+16] = qs[j] >> 4",
     "the index of the activation beside each part of a byte",
     "imp #722 and #567 (MXFP4), 1bit-MONSTER #572"),
    ("nibbles-exchanged", "The low and the high half of each byte of codes are exchanged.",
     "q4_0: q[j] = qs[j] >> 4, q[j+16] = qs[j] & 15", "q4_0: q[j] = qs[j] & 15, q[j+16] = qs[j] >> 4",
     "which half of a byte is shifted down, here and where the layout is made"),
    ("offset-missing", "The constant inside the stored code is never taken off.", "d·q",
     "d·(q - zero), zero = 8, 16, 4, 32 …",
     "the subtraction after unpacking, or the term -zero·d·s of a kernel that sums first",
     "imp #722, 1bit-MONSTER #572"),
    ("offset-twice", "The constant (or the offset) is taken off twice.", "d·(q - 2·zero)",
     "d·(q - zero), in the code or through the sum, not both",
     "a subtraction after unpacking beside a term -zero·d·s", "imp #722"),
    ("offset-sign", "The constant (or the offset) has the wrong sign.",
     "d·(q + zero), or d·q - m where d·q + m is meant", "d·(q - zero); q4_1: d·q + m; q4_K: d·sc·q - dmin·m",
     "the sign of the last term", "imp #722; ggml #1393 and llama.cpp #986 (negated codes)"),
    ("sum-missing", "The term m·s of q4_1 or q5_1 is absent.", "d·d8·Σq·q8", "d·d8·Σq·q8 + m·s",
     "the second half of dm and of ds", "llama.cpp #876 (q4_1 on NEON)"),
    ("min-ignored", "The minima of a K-quant are never taken off.", "d·sc·q", "d·sc·q - dmin·m",
     "dmin and the second six bits of the scales", "llama.cpp #2362, aprender #2141"),
    ("sum-not-scaled", "The sum of the codes is used without the scale of the activations.",
     "… - zero·d·Σq8", "… - zero·d·d8·Σq8, or zero·d·Σx",
     "what the second half of a q8_1 block (or bsums) is multiplied with",
     "the two meanings of block_q8_1.s; 1bit-MONSTER #572 (a constant wrongly scaled)"),
    ("sum-of-codes-vs-floats", "The block sum follows the other convention than the claimed arithmetic.",
     "s = half(d·Σq) where half(Σx) is claimed, or the reverse",
     "CPU: s = half(d·Σq); CUDA's mmvq: s = half(Σx)", "the quantizer of the activations",
     "block_q8_1.s in quantize_row_q8_1_ref and in quantize.cu of llama.cpp"),
    ("high-bits", "The high bits of 3-, 5- or 6-bit codes are dropped or come from another element.",
     "q = low(i) | bit(π(i)) << 4", "q = low(i) | bit(i) << 4", "the shift and the index into qh or hmask",
     "aprender #1621 (q5), #2115 (q3_K)"),
    ("sub-scale-order", "The sub-scales of a super-block stand beside the wrong groups.", "d·sc[π(g)]",
     "d·sc[g]", "the running index `is` of the scales", "aprender #2115, llama.cpp #25837 (repacking)"),
    ("sum-order",
     "The minima of a super-block, or its constant, are multiplied with the sums of the wrong groups.",
     "… - dmin·m[g]·s[π(g)]", "… - dmin·m[g]·s[g]",
     "which block sums (bsums) stand beside which minima or scales"),
    ("sub-scale-unpack", "The sub-scales are put together from the wrong bits.",
     "q4_K: sc[4+k] = scales[8+k] & 15", "q4_K: sc[4+k] = scales[8+k] & 15 | (scales[k] >> 6) << 4",
     "the shifts and masks of the sub-scales: get_scale_min_k4, kmask1, kmask2 …",
     "aprender #2141, trueno #182, llama.cpp #2362, ik_llama #1005"),
    ("scale-neighbour", "A block is multiplied with the scale of the block before or after it.",
     "d[b ± 1]·Σq·q8", "d[b]·Σq·q8", "the index of d where blocks are split from scales",
     "llama.cpp #29036, ds4 #1095 (strides), #10757 (repacking)"),
    ("scale-rounding", "The product of two scales is rounded to half precision.", "half(d·d8)·Σq·q8",
     "d·d8·Σq·q8", "a conversion to half where scales are multiplied"),
    ("scale-f16-overflow", "A half overflows: a scale, a block sum or a value above 65504.",
     "half(Σx) = ∞ for |Σx| > 65504", "keep it as float32, or scale it down first",
     "s of q8_1, d of q8_1, conversions of activations to half",
     "llama.cpp #21652, #26044, #27016, #19697; ik_llama #1656, #1659, #194, #540"),
    ("activation-rounding",
     "The activations' codes are rounded wrongly: cut off, rounded down, or to a range of 128.",
     "q8 = (int8)(x/d), or d = amax/128", "q8 = round(x/d), d = amax/127", "the conversion in the quantizer",
     "llama.cpp #876, #16295; aiter #3992"),
    ("int8-saturation", "Sums of products saturate (or wrap) at 16 bits.", "clip16(a0·b0 + a1·b1)",
     "a0·b0 + a1·b1 in 32 bits", "pmaddubsw, packed adds of 16 bits",
     "ik_llama #14, #137, #427; BitNet #629"),
    ("f16-accumulation", "Sums are kept in half precision.", "acc = half(acc + term)",
     "acc = float(acc + term)", "the type of the accumulator",
     "llama.cpp #7805, #8025, #10232, #17746, #15619, #2765"),
    ("sum-carried", "A sum is not cleared between blocks: what one block gave counts again in the next.",
     "y += d[b]·(sumi[b] + sumi[b-1] + …)", "y += d[b]·sumi[b]",
     "where integer accumulators are cleared: inside the loop over blocks"),
    ("k-tail-dropped", "The end of K is not multiplied.", "Σ over k < K - tail", "Σ over k < K",
     "the loop's bound: K / tile rounds down", "llama.cpp #2144, #27044"),
    ("k-pad-nan", "What lies behind the end of K is NaN and is multiplied with zero.", "NaN · 0 = NaN",
     "clear the padding, or select zero", "memory behind the last row, K padded to a tile",
     "llama.cpp #2313, #8572, #10021, #13320; ik_llama #2292, #2493"),
    ("unwritten", "Elements of y were never written.", "y[m, n] is what was there before",
     "each element of y is written once",
     "the bounds of the loops, and how rows are divided among threads or blocks",
     "llama.cpp #28113, #2144 (last rows and columns)"),
    ("out-of-bounds", "The kernel writes beside its result, or reads beside its operands.",
     "y[m·N + n] for n ≥ N", "n < N", "the width of stores at the end of a row"),
    ("m-tail", "The last rows of y are wrong or were never written.", "rows M - M % tile …",
     "y[m] for all m < M", "the last tile of rows: bounds, grid size",
     "llama.cpp #28113, #29025, rdna-boosts #15"),
    ("n-tail", "The last columns of y are wrong or were never written.", "columns N - N % tile …",
     "y[:, n] for all n < N", "the last tile of weight rows: bounds, grid size",
     "llama.cpp #2144, #27044, #27792, #28151"),
    ("row-stride", "Rows of weights are read at the wrong distance: row 0 is right, then it drifts.",
     "w + n·(K / block)·wrong", "w + n·row_bytes", "the row stride in blocks or bytes, padding of K",
     "llama.cpp #10021, #29036; ds4 #1095, aprender #2154"),
    ("transposed", "y is written with its axes exchanged.", "y[n·M + m]", "y[m·N + n]",
     "the address of the store", "mlx #3480, candle #3744"),
    ("rows-permuted", "Rows of weights, that is columns of y, are exchanged.", "y[:, π(n)]", "y[:, n]",
     "the order of rows in a repacked layout or in a fragment", "llama.cpp #25837, #10757"),
    ("tokens-permuted", "Rows of y, that is tokens, are exchanged.", "y[π(m)]", "y[m]",
     "the order of rows in a tile of activations, and where each result is stored"),
    ("tile-duplicated", "A tile of y repeats another one.", "y[tile i] = y[tile j]", "each tile its own",
     "the block index, expert ids, a reused buffer", "llama.cpp #24591, #26294, #26295, #27015, #26310"),
    ("race", "The result changes from run to run by more than the order of sums explains.",
     "read before write", "a barrier between the two",
     "barriers between a write and its reads; memory that is read before it is set",
     "llama.cpp #13294, #13299, #13438, #24360, #23690"),
    ("scaled", "All of y is off by one constant factor.", "c·y", "y",
     "a scale of the whole tensor; a shift by one", "llama.cpp #23629, #22897 (NVFP4); ROCmFPX #85"),
    ("nan", "y holds NaN or infinity where the exact result is finite.", "0 · (1/0)", "1/d only where d ≠ 0",
     "the quantizer on blocks of zeros; uninitialized memory",
     "llama.cpp #3010, #7313, #11773, #15379, #20460, #8661; auto-round #1908"),
    ("unknown", "The result is wrong in a way that no entry of this list explains.", "", "",
     "the places that the report names"),
)  # fmt: skip
