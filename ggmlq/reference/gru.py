"""The oracle of a GRU in integers: int64 on the host, with the codes of every stage by name.

A stage is a function of a :class:`Scene` and the codes of earlier stages; it returns the codes of one tensor.
``STAGES`` has all in the order of a step. A code less its zero point is called a deviation; RS is the
rounding shift.

    Wx   = RS(W·x - Zx·ΣW, eW + ex - eWx) + ZWx           the correction of the one identity (multiply.py)
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
from .multiply import Planar, product

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


def _sum(name: str, gate: int, terms: str, biases: str = "") -> Stage:
    """Terms and a gate's biases in the scale of a tensor, added up; Wx and Rh have rows of all gates."""

    def stage(scene: Scene, q: Tensors) -> Codes:
        rows = scene.gate(gate)
        every, wide = slice(None), ("Wx", "Rh")
        parts = [scene.term(q, of, name, rows if of in wide else every) for of in terms.split()]
        total: Any = sum([*parts, *(scene.bias(of, rows, name) for of in biases.split())])
        return scene.clamped(total, name)

    return stage


def _product(name: str, gate: str, other: str, rest: bool = False) -> Stage:
    """A gate, or with ``rest`` one less it, times another tensor; "h" is the state before."""

    def stage(scene: Scene, q: Tensors) -> Codes:
        f = scene.formats
        share = scene.deviation(q, gate)
        if rest:  # the deviation of 1 - z is the code of 1 less that of z
            share = (1 << f[gate].exponent) - share
        both = share * (q["before" if other == "h" else other] - f[other].zero)
        return scene.clamped(scene.rescaled(both, f[gate].exponent + f[other].exponent, name), name)

    return stage


def _looked_up(table: str, source: str) -> Stage:
    def stage(scene: Scene, q: Tensors) -> Codes:
        codes: Codes = scene.codes[table].astype(np.int64)[q[source] - scene.formats[source].low]
        return codes

    return stage


# In the order of a step, with rows of docs/gru.md; each reads those before it, "before" (the states), "Wx".
STAGES: Mapping[str, Stage] = {
    "Rh": lambda scene, q: multiplied(scene, q["before"], "R", "h", "Rh"),  # row 2
    "z_pre": _sum("z_pre", 0, "Wx Rh", "bx br"),
    "z_out": _looked_up("table_z", "z_pre"),
    "r_pre": _sum("r_pre", 1, "Wx Rh", "bx br"),
    "r_out": _looked_up("table_r", "r_pre"),
    "Rh_add_br": _sum("Rh_add_br", 2, "Rh", "br"),  # row 6
    "rRh": _product("rRh", "r_out", "Rh_add_br"),  # row 7
    "g_pre": _sum("g_pre", 2, "Wx rRh", "bx"),  # row 8
    "g_out": _looked_up("table_g", "g_pre"),
    "old": _product("old", "z_out", "h"),  # row 10
    "new": _product("new", "z_out", "g_out", rest=True),  # rows 11 to 13
    "h": _sum("h", 0, "old new"),  # row 14
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
