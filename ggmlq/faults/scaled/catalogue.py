"""The doctor's catalogue for products of scaled arrays: their own faults, and those of any product."""

from __future__ import annotations

from ..catalogue import CATALOGUE, entries

SHARED = (
    "k-tail-dropped", "m-tail", "n-tail", "transposed", "rows-permuted", "tokens-permuted", "tile-duplicated",
    "race", "scaled", "f16-accumulation", "nan", "unknown",
)  # fmt: skip

OWN = entries(
    ("correct", "The kernel is right: these codes under these scales.", "",
     "y = Σ over groups of K: sa·sb·Σ(qa - za)(qb - zb)", "nowhere"),
    ("scale-missing", "Codes are multiplied without their scales.", "Σ qa·qb", "sa·sb·Σ qa·qb",
     "the end of each group of K, or the epilogue where scales do not vary along K"),
    ("scale-inverse", "Codes are divided by their scales instead of multiplied.", "Σ qa·qb / (sa·sb)",
     "sa·sb·Σ qa·qb", "the meaning of the stored scale: DeepSeek's \"weight_scale_inv\" is multiplied with"),
    ("scale-twice", "A scale is multiplied with twice.", "sa²·sb·Σ qa·qb", "sa·sb·Σ qa·qb",
     "a scale in the main loop and again in the epilogue"),
    ("scale-once", "Scales that change along K are applied once instead of group by group.",
     "sa[0]·sb[0]·Σ over all of K", "Σ over g: sa[g]·sb[g]·Σ in group g",
     "where sums leave the matrix unit: at the end of K, or at the end of each group"),
    ("scale-neighbour", "A group of K is multiplied with the scale of another group.", "s[k // c ± 1]",
     "s[k // c]", "the index of the scale in the loop over K, and how it is advanced"),
    ("scale-rows", "A row is multiplied with the scale of another tile of rows.", "s[i], or s[(i // r) ± 1]",
     "s[i // r]", "the row's index into the scales: tiles of r rows share one"),
    ("scale-transposed", "Scales are read with their axes exchanged.", "s[k // c, i // r]",
     "s[i // r, k // c]", "the strides of the scales, and their order in memory"),
    ("zero-missing", "A zero point is not taken off, or a term of it is left out.", "Σ qa·qb - zb·Σqa",
     "Σ qa·qb - za·Σqb - zb·Σqa + n·za·zb", "the terms of the zero points in the epilogue"),
    ("zero-sign", "A zero point has the wrong sign.", "Σ qa·qb + za·Σqb …",
     "Σ qa·qb - za·Σqb - zb·Σqa + n·za·zb", "the signs of the terms of the zero points"),
    ("zero-twice", "A zero point is taken off twice.", "Σ (qa - 2·za)(qb - zb)",
     "in the codes or through the sums, not both",
     "a subtraction before the product beside a correction behind it"),
    ("zero-other-sum", "A zero point is multiplied with the sum of its own operand's codes.", "za·Σqa",
     "za·Σqb: the sum over the operand opposite the zero point", "which sums the correction reads"),
    ("signedness", "Signed codes are taken for unsigned ones, or the reverse.", "q & 255",
     "int8: -128 … 127, uint8: 0 … 255",
     "the type of the load, and the signs in the instruction's name (s8, u8)"),
    ("code-misread", "e4m3 is decoded as e5m2, or the reverse.",
     "one bit of the mantissa taken for one of the exponent",
     "e4m3: bias 7, 3 bits behind the point; e5m2: bias 15, 2 bits",
     "the element type of the instruction or of the descriptor"),
    ("no-saturation", "Codes beyond the range wrapped around, or became NaN, instead of the largest code.",
     "(int8)(x/s), or a cast without satfinite", "the largest code of the sign",
     "the conversion in the quantizer, where scales are given or rounded down"),
    ("activation-rounding", "The activations' codes are cut off instead of rounded.", "q = (int8)(x/s)",
     "q = round(x/s)", "the conversion in the quantizer"),
    ("sum-overflow", "Integer sums wrap (or end) at the range of their type.",
     "int16 or int32 beyond its largest number",
     "int32 while K·max|qa|·max|qb| < 2³¹, else parts of K into 64 bits",
     "the type of the accumulator, and how many products it takes"),
    ("no-promotion", "FP8 sums stay in the tensor core's accumulator, which cuts them off to 14 bits.",
     "one accumulator over all of K", "into float32 every 128 products",
     "the loop over K: after 4 steps of 32 add the accumulator to a float32 one"),
)  # fmt: skip
SCALED = OWN | {name: CATALOGUE[name] for name in SHARED}
