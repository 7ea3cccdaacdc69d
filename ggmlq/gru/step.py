"""The atoms of a GRU in integers, for one hidden unit and one step, or for a vector of units.

Plain Python on integers: called as it is, compiled by Numba for the CPU (numbers or vectors), and for CUDA.
Compilers for vectors, or for words of 32 bits, replace the smallest of them, and TOP.

All numbers are deviations, codes less their zero point, and tables hold deviations under an index from 0;
so zero points and the lower ends of tables are already in the constants ``k`` (``plan.py``). Rows are those
of the table in ``docs/gru.md``; ``ggmlq/reference/gru.py`` has the same formulas with codes.

    dz dr dg   Rh of the three gates
    pz pr pg   input terms: Wx and biases, in the scales of z_pre, r_pre and g_pre
"""

from __future__ import annotations

from typing import Any

from ..fixed.shift import shifted

# Places in k: ends are two numbers, shifts four.
WX, RH, Z_PRE, R_PRE, G_PRE, ADDED, RESET, OLD, NEW, H = range(0, 20, 2)  # ends
WX_Z, WX_R, WX_G, RH_Z, RH_R, RH_ADDED, R_ADDED, RESET_G, Z_OLD, Z_NEW, OLD_H, NEW_H = range(20, 68, 4)
ONE = 68  # 1.0 in the scale of z
SIZE = 69
COUNTED = ("Wx", "Rh", "z_pre", "r_pre", "g_pre", "Rh_add_br", "rRh", "old", "new", "h")  # the order of ends


def plus(a: Any, b: Any) -> Any:
    """Atom: a sum of two numbers."""
    return a + b


def minus(a: Any, b: Any) -> Any:
    """Atom: a difference of two numbers."""
    return a - b


def times(a: Any, b: Any) -> Any:
    """Atom: a product of two numbers."""
    return a * b


def clamp(v: Any, low: Any, high: Any) -> Any:
    """Atom: v within its ends."""
    return low if v < low else high if v > high else v


def look(table: Any, index: Any) -> Any:
    """Atom: an entry of a table."""
    return table[index]


def moved(counts: Any, which: Any, before: Any, after: Any) -> None:
    """Atom: count a value that left the ends of a tensor."""
    if before != after:
        counts[which >> 1] += 1


def within(v: Any, k: Any, ends: Any, counts: Any) -> Any:
    """Atom: v within the ends of a tensor, counted."""
    inside = clamp(v, k[ends], k[ends + 1])
    moved(counts, ends, v, inside)
    return inside


def scaled(v: Any, k: Any, at: Any) -> Any:
    """Atom: v shifted by amounts in k."""
    return shifted(v, k[at], k[at + 1], k[at + 2], k[at + 3])


def product(total: Any, correction: Any, left: Any, half: Any, negative: Any, right: Any, k: Any, ends: Any,
            counts: Any) -> Any:  # fmt: skip
    """Atom: rows 1 and 2, a sum of products as the deviation of Wx or Rh."""
    return within(shifted(minus(total, correction), left, half, negative, right), k, ends, counts)


def gate(p: Any, d: Any, k: Any, shift: Any, ends: Any, table: Any, counts: Any) -> Any:
    """Atom: rows 3 to 5, 8 and 9: a sum before the gate, and the gate."""
    return look(table, within(plus(p, scaled(d, k, shift)), k, ends, counts))


def added(dg: Any, bias: Any, k: Any, counts: Any) -> Any:
    """Atom: row 6, R_g h + b_rg."""
    return within(plus(scaled(dg, k, RH_ADDED), bias), k, ADDED, counts)


def reset(r: Any, a: Any, k: Any, counts: Any) -> Any:
    """Atom: row 7, r · (R_g h + b_rg)."""
    return within(scaled(times(r, a), k, R_ADDED), k, RESET, counts)


def state(z: Any, g: Any, h: Any, k: Any, counts: Any) -> Any:
    """Atom: rows 10 to 14, the next state."""
    old = within(scaled(times(z, h), k, Z_OLD), k, OLD, counts)
    new = within(scaled(times(minus(k[ONE], z), g), k, Z_NEW), k, NEW, counts)
    return within(plus(scaled(old, k, OLD_H), scaled(new, k, NEW_H)), k, H, counts)
