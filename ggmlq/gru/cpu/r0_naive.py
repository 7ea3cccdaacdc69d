"""Every number of every step one after the other, in int64, sequences shared out to threads.

Changed: nothing yet, this is the ground. It runs the atoms of ``ggmlq/gru/step.py`` as they stand: a product
for each of 3H rows, then the gates of a unit, then the next unit; each step waits for the one before, and
each sequence goes its own way, so threads never meet.

Limited by everything: the weights are read anew for every sequence, one code at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ...base.threads import share
from ...cpu.atoms import verb
from ...cpu.machine.jit import jit
from ...dispatch.ladder import register
from ...fixed.shift import TOP
from .. import step
from ..run import Call
from .encode import encoded

assert TOP == 63  # atoms are compiled for int64 as they are

COUNTS = len(step.COUNTED)


@register(__name__, __doc__, arithmetic="gru", accumulate="int64")
def launch(calls: Sequence[Call]) -> None:
    for call in calls:
        _launch(call)


def _launch(call: Call) -> None:
    plan = call.plan
    x = encoded(call).astype(np.int64)
    wide = [tuple(np.asarray(part, np.int64) for part in rows) for rows in (plan.wx, plan.rh)]
    biases = tuple(np.asarray(part, np.int64) for part in plan[4:8])
    tables = tuple(np.asarray(table, np.int64) for table in plan.tables)
    weights = call.cell.codes["W"], call.cell.codes["R"]
    zeros = np.array([call.cell.formats[name].zero for name in ("z_out", "r_out", "g_out", "Rh_add_br")])
    v = np.zeros((0, 0, 0), np.int32) if call.v is None else call.v
    state = call.h.astype(np.int64)
    codes = np.empty(call.y.shape, np.int64)
    counts = np.zeros((call.x.shape[1], COUNTS), np.int64)
    k = plan.k.astype(np.int64)

    def work(first: int, stop: int) -> None:
        kernel()(
            x, *weights, *wide, biases, tables, k, plan.h.zero, zeros, state, codes, v, counts, first, stop
        )

    share(work, call.x.shape[1])
    call.counts[:COUNTS] += counts.sum(0)
    call.h[...] = state
    call.y[...] = plan.h.decode(codes)
    if call.codes is not None:
        call.codes[...] = codes


@cache
def kernel() -> Any:
    """Compiled: sequences ``first`` … ``stop``."""
    product, gate, added, reset, state_of, scaled = (
        verb(atom) for atom in (step.product, step.gate, step.added, step.reset, step.state, step.scaled)
    )
    wx_z, wx_r, wx_g = step.WX_Z, step.WX_R, step.WX_G
    rh_z, rh_r, reset_g = step.RH_Z, step.RH_R, step.RESET_G
    z_pre, r_pre, g_pre, ends_wx, ends_rh = step.Z_PRE, step.R_PRE, step.G_PRE, step.WX, step.RH

    def multiply(
        x: Any, W: Any, R: Any, wx: Any, rh: Any, biases: Any, tables: Any, k: Any, zero: int, zeros: Any,
        h: Any, codes: Any, v: Any, all_counts: Any, first: int, stop: int,
    ) -> None:  # fmt: skip
        units, dx, dh = h.shape[1], np.empty(3, np.int64), np.empty(3, np.int64)
        bias_z, bias_r, bias_g, bias_added = biases
        for n in range(first, stop):
            counts = all_counts[n]
            for t in range(len(x)):
                for j in range(units):
                    for gate_ in range(3):
                        row, x_sum, h_sum = j + gate_ * units, np.int64(0), np.int64(0)
                        for i in range(W.shape[1]):
                            x_sum += x[t, n, i] * W[row, i]
                        for i in range(units):
                            h_sum += h[n, i] * R[row, i]
                        dx[gate_] = product(x_sum, wx[0][row], wx[1][row], wx[2][row], wx[3][row], wx[4][row],
                                            k, ends_wx, counts)  # fmt: skip
                        dh[gate_] = product(h_sum, rh[0][row], rh[1][row], rh[2][row], rh[3][row], rh[4][row],
                                            k, ends_rh, counts)  # fmt: skip
                    z = gate(scaled(dx[0], k, wx_z) + bias_z[j], dh[0], k, rh_z, z_pre, tables[0], counts)
                    r = gate(scaled(dx[1], k, wx_r) + bias_r[j], dh[1], k, rh_r, r_pre, tables[1], counts)
                    a = added(dh[2], bias_added[j], k, counts)
                    m = reset(r, a, k, counts)
                    g = gate(scaled(dx[2], k, wx_g) + bias_g[j], m, k, reset_g, g_pre, tables[2], counts)
                    codes[t, n, j] = state_of(z, g, h[n, j] - zero, k, counts) + zero
                    if v.size:
                        v[t, n, j] = z + zeros[0]
                        v[t, n, units + j] = r + zeros[1]
                        v[t, n, 2 * units + j] = g + zeros[2]
                        v[t, n, 3 * units + j] = a + zeros[3]
                h[n] = codes[t, n]

    return jit(multiply)
