"""The oracle of a GRU in integers: int64 on the host, with the codes of every stage by name.

A stage is a function of a :class:`Scene` and the codes of earlier stages; it returns the codes of one tensor.
``STAGES`` has all in the order of a step. A code less its zero point is called a deviation; RS is the
rounding shift.

    Wx   = RS(W·x - Zx·ΣW, eW + ex - eWx) + ZWx           the correction of the one identity (identity.py)
    Rh   = RS(R·h - Zh·ΣR, eR + eh - eRh) + ZRh
    z_pre, r_pre = RS(dWx, eWx - e) + RS(dRh, eRh - e) + RS(bx, ebx - e) + RS(br, ebr - e) + Z
    Rh_add_br    = RS(dRh, eRh - e) + RS(br, ebr - e) + Z
    rRh          = RS(dr · dRh_add_br, er + eA - e) + Z
    g_pre        = RS(dWx, eWx - e) + RS(drRh, erR - e) + RS(bx, ebx - e) + Z
    old, new     = RS(dz · dh, ez + eh - e) + Z,  RS((2^ez + Zz - qz) · dg, ez + eg - e) + Z
    h            = RS(dold, eo - e) + RS(dnew, en - e) + Z

Every term is rounded on its own, every sum clamped to the codes of its tensor, and gates are tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.devices import to_host
from ..fixed.qformat import QFormat
from ..fixed.shift import shifted_array
from ..gru.cell import Cell
from ..gru.run import format_in_call
from ..gru.weights import inputs, states
from .identity import Planar, product

if TYPE_CHECKING:
    from ..gru.fixed_gru import FixedGRU

Codes = NDArray[np.int64]
Tensors = dict[str, Codes]
Stage = Callable[["Scene", Tensors], Codes]
EXACT = 1 << 53  # what float64 holds of an integer


class Scene(NamedTuple):
    """The formats and codes that the stages of a step read."""

    formats: Mapping[str, QFormat]  # that of x as it is in this call
    codes: Mapping[str, Any]

    def deviation(self, q: Tensors, name: str) -> Codes:
        """Codes of a tensor less its zero point."""
        return q[name] - self.formats[name].zero

    def clamped(self, v: Codes, name: str) -> Codes:
        """A sum plus the zero point of a tensor, within its codes."""
        f = self.formats[name]
        codes: Codes = np.clip(v + f.zero, f.low, f.high)
        return codes

    def rescaled(self, v: Codes, source: Any, target: str) -> Codes:
        """Deviations with the exponent ``source``, shifted to the exponent of the tensor ``target``."""
        return shifted_array(v, source - self.formats[target].exponent)

    def term(self, q: Tensors, name: str, target: str, rows: slice = slice(None)) -> Codes:
        """A tensor, or its rows of a gate, in the scale of another one: a term of a sum."""
        return self.rescaled(self.deviation(q, name)[:, rows], self.formats[name].exponent, target)

    def bias(self, name: str, rows: slice, target: str) -> Codes:
        """A bias in the scale of a tensor."""
        return self.rescaled(
            self.codes[name].astype(np.int64)[rows], self.formats[name].exponent[rows], target
        )

    def gate(self, i: int) -> slice:
        """Rows of a gate: 0 is z, 1 is r, 2 is g."""
        units = self.codes["R"].shape[1]
        return slice(i * units, (i + 1) * units)


def multiplied(scene: Scene, q: Codes, weights: str, activations: str, result: str) -> Codes:
    """Rows 1 and 2: a product of matrices, the zero point's correction taken off, in the result's scale."""
    w, f = scene.codes[weights].astype(np.int64), scene.formats
    total = exact(q, w) - compensation(scene, w, activations)
    return scene.clamped(scene.rescaled(total, f[weights].exponent + f[activations].exponent, result), result)


def exact(q: Codes, w: Codes) -> Codes:
    """Sums of products of codes, exact: by a BLAS in float64 if they fit it, else in int64."""
    most = int(np.abs(w).sum(1).max(initial=0)) * int(np.abs(q).max(initial=0))
    if most < EXACT:
        sums = product(Planar(q.astype(np.float64), None, None), Planar(w.astype(np.float64), None, None))
        return sums.astype(np.int64)
    return q @ w.T


def compensation(scene: Scene, w: Codes, activations: str) -> Codes:
    """The zero point of the activations times the sums of the rows of weights."""
    term: Codes = scene.formats[activations].zero * w.sum(1)
    return term


def hidden_product(scene: Scene, q: Tensors) -> Codes:
    """Row 2 of docs/gru.md: the product of the state with R."""
    return multiplied(scene, q["before"], "R", "h", "Rh")


def _gate_input(name: str, i: int) -> Stage:
    def stage(scene: Scene, q: Tensors) -> Codes:
        rows = scene.gate(i)
        total = scene.term(q, "Wx", name, rows) + scene.term(q, "Rh", name, rows)
        return scene.clamped(total + scene.bias("bx", rows, name) + scene.bias("br", rows, name), name)

    return stage


def _looked_up(table: str, source: str) -> Stage:
    def stage(scene: Scene, q: Tensors) -> Codes:
        codes: Codes = scene.codes[table].astype(np.int64)[q[source] - scene.formats[source].low]
        return codes

    return stage


def hidden_and_bias(scene: Scene, q: Tensors) -> Codes:
    """Row 6: R_g h + b_rg."""
    rows = scene.gate(2)
    total = scene.term(q, "Rh", "Rh_add_br", rows)
    return scene.clamped(total + scene.bias("br", rows, "Rh_add_br"), "Rh_add_br")


def reset_product(scene: Scene, q: Tensors) -> Codes:
    """Row 7: the reset gate times row 6."""
    f = scene.formats
    both = scene.deviation(q, "r_out") * scene.deviation(q, "Rh_add_br")
    return scene.clamped(scene.rescaled(both, f["r_out"].exponent + f["Rh_add_br"].exponent, "rRh"), "rRh")


def new_input(scene: Scene, q: Tensors) -> Codes:
    """Row 8: g_pre, the input of the table of g."""
    rows = scene.gate(2)
    total = scene.term(q, "Wx", "g_pre", rows) + scene.term(q, "rRh", "g_pre")
    return scene.clamped(total + scene.bias("bx", rows, "g_pre"), "g_pre")


def old_part(scene: Scene, q: Tensors) -> Codes:
    """Row 10: the update gate times the old state."""
    f = scene.formats
    both = scene.deviation(q, "z_out") * (q["before"] - f["h"].zero)
    return scene.clamped(scene.rescaled(both, f["z_out"].exponent + f["h"].exponent, "old"), "old")


def new_part(scene: Scene, q: Tensors) -> Codes:
    """Rows 11 to 13: (1 - z) · g; the deviation of 1 - z is ``one`` less the code of z."""
    f = scene.formats
    one = (1 << f["z_out"].exponent) + f["z_out"].zero
    both = (one - q["z_out"]) * scene.deviation(q, "g_out")
    return scene.clamped(scene.rescaled(both, f["z_out"].exponent + f["g_out"].exponent, "new"), "new")


def next_state(scene: Scene, q: Tensors) -> Codes:
    """Row 14: the next state, the sum of rows 10 and 13."""
    return scene.clamped(scene.term(q, "old", "h") + scene.term(q, "new", "h"), "h")


# In the order of a step; each reads those before it, "before" (the states) and "Wx".
STAGES: Mapping[str, Stage] = {
    "Rh": hidden_product,
    "z_pre": _gate_input("z_pre", 0),
    "z_out": _looked_up("table_z", "z_pre"),
    "r_pre": _gate_input("r_pre", 1),
    "r_out": _looked_up("table_r", "r_pre"),
    "Rh_add_br": hidden_and_bias,
    "rRh": reset_product,
    "g_pre": new_input,
    "g_out": _looked_up("table_g", "g_pre"),
    "old": old_part,
    "new": new_part,
    "h": next_state,
}


def gru(f: FixedGRU, x: Any, h0: Any = None, stages: Mapping[str, Stage] = STAGES) -> Any:
    """Run a :class:`ggmlq.FixedGRU` in int64 on the host, x [T, N, C].

    Returns the codes of all tensors by name, each [T, N, …]: x, Wx, Rh, z_pre … new, and h, the states after
    each step; "h0" [N, H] are those before the first. Of both directions a pair; both are in the order of
    x, so that the second one's steps run backwards. ``stages`` may replace any of ``STAGES``.

    >>> import numpy as np, ggmlq as gq
    >>> rng = np.random.default_rng(0)
    >>> g = gq.GRU(rng.uniform(-0.5, 0.5, (12, 3)), rng.uniform(-0.5, 0.5, (12, 4)))
    >>> x = rng.uniform(-1, 1, (20, 2, 3))
    >>> f = g.observe(x) and g.fixed()
    >>> steps = gq.reference.gru(f, x)
    >>> bool((steps["h"] == f(x, return_codes=True)[0]).all())
    True
    """
    request = "reference.gru(f, x)"
    x = inputs(request, to_host(x), f.inputs, False)
    starts = states(request, None if h0 is None else to_host(h0), len(f.cells), x.shape[1], f.units)
    directions = []
    for d, cell in enumerate(f.cells):
        order = slice(None, None, -1) if d else slice(None)
        q = steps(f, cell, x[order], None if starts is None else starts[d], stages)
        directions.append({name: codes if name == "h0" else codes[order] for name, codes in q.items()})
    return directions[0] if len(directions) == 1 else tuple(directions)


def steps(f: FixedGRU, cell: Cell, x: Any, h0: Any, stages: Mapping[str, Stage] = STAGES) -> Tensors:
    """The codes of all tensors of one direction, in the order of its steps."""
    fmt = format_in_call(f, cell, x)
    scene = Scene({**cell.formats, "x": fmt}, cell.codes)
    qx = fmt.encode(x, f.rounding).astype(np.int64)
    t, n, c = qx.shape
    start = np.zeros((n, cell.units)) if h0 is None else h0
    first = cell.formats["h"].encode(start, f.rounding).astype(np.int64)
    flat = multiplied(scene, qx.reshape(t * n, c), "W", "x", "Wx")
    wx = flat.reshape(t, n, 3 * cell.units)
    results: dict[str, list[Codes]] = {name: [] for name in stages}
    before = first
    for step in range(t):
        q: Tensors = {"Wx": wx[step], "before": before}
        for name, stage in stages.items():
            q[name] = stage(scene, q)
            results[name].append(q[name])
        before = q["h"]
    empty = {
        name: np.zeros((0, n, 3 * cell.units if name == "Rh" else cell.units), np.int64) for name in results
    }
    stacked = {name: np.stack(parts) if parts else empty[name] for name, parts in results.items()}
    return {"x": qx, "Wx": wx, **stacked, "h0": first}
