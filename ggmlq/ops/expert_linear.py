"""Activations times the experts that their tokens use: check, choose a kernel, run."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..arrays.array import QuantArray
from ..arrays.scaled import ScaledArray
from ..arrays.tensors import is_tensor
from ..arrays.weights import Divided, operation
from ..base.devices import namespace, on_device_of, place_of
from ..dispatch import ladder
from ..dispatch.checks import check_out, float_dtype, takes_sums, written
from ..dispatch.problems import ExpertLinear
from . import fast_experts, torch
from .expert_operands import ASKED, check_matrices, check_rows, checked


@operation
def expert_linear(
    x: Any,
    q: QuantArray | ScaledArray | Divided,
    ids: Any,
    *,
    kernel: str = "auto",
    arithmetic: str | None = None,
    out: Any = None,
    dtype: DTypeLike | None = np.float32,
    check: bool | None = None,
) -> Any:
    """Multiply each token with the experts that it uses: ``y[t, u] = x[t] @ q[ids[t, u]].T``.

    This is ggml's ``mul_mat_id``. All rows of an expert are multiplied together, so that its weights are
    read once; a token may use an expert twice, and experts may go unused.

    Parameters
    ----------
    x : array of floats, or ScaledArray
        Activations on the device of q: [T, K], one row for all experts of a token, or [T, U, K], one for
        each. A torch tensor gives a torch tensor. For weights with scales, floats are quantized first, each
        row once, as :func:`ggmlq.scaled_linear` does.
    q : QuantArray or ScaledArray
        The experts' weights [E, N, K], or on several devices (:func:`ggmlq.parallel.shard`).
    ids : array of integers
        [T, U], on the same device: which experts each token uses.
    kernel : str
        ``"auto"``, or a kernel's name; see ``gq.kernels("expert_linear")``.
    arithmetic : str, optional
        Choose only kernels that multiply in this arithmetic.
    out : array, optional
        Receives the result, in its own dtype, and is returned.
    dtype : dtype
        Of the result: float16, bfloat16, float32 or float64.
    check : bool, optional
        Whether an id that is no expert is an error; otherwise it makes a row of NaN. By default ids on the
        host are looked at, those on a GPU are not, since that would wait for it.

    Returns
    -------
    array
        [T, U, N] on the device of q.

    >>> import numpy as np, ggmlq as gq
    >>> w = np.arange(3, dtype=np.float32)[:, None, None] * np.eye(2, 32, dtype=np.float32)
    >>> q = gq.quantize(w, "q8_0")  # three experts [2, 32]
    >>> gq.expert_linear(np.ones((2, 32), np.float32), q, np.array([[0, 2], [1, 1]])).round(2)
    array([[[0., 0.],
            [2., 2.]],
    <BLANKLINE>
           [[1., 1.],
            [1., 1.]]], dtype=float32)
    """
    with suppress(MemoryError):  # what follows says it in words
        if (y := fast_experts.on_host(x, q, ids, kernel, arithmetic, out, dtype, check)) is not None:
            return y
    if isinstance(q, Divided):
        options: dict[str, Any] = {"kernel": kernel, "arithmetic": arithmetic, "out": out, "dtype": dtype}
        return q.run("expert_linear", x, ids, check=check, **options)
    if is_tensor(x):
        more = {"kernel": kernel, "arithmetic": arithmetic, "check": check}
        shape = _shape(x, q, ids)
        return torch.expert_linear(expert_linear, x, q, ids, out, dtype, asked=ASKED, shape=shape, **more)
    check_matrices(ASKED, q)
    weights = q.parts() if isinstance(q, ScaledArray) else (q.memory,)
    with on_device_of(ASKED, weights[0], q):  # as in a CUDA graph what x and ids become stays with q
        given = checked(x, q, ids, look=q.device == "cpu" if check is None else check)
    kind = float_dtype(ASKED, dtype)
    if out is not None:
        check_out(ASKED, out, given.shape, q.device)
    xp = namespace(given.ids)
    problem = ExpertLinear.of(*given)
    parts = given.x.parts() if isinstance(given.x, ScaledArray) else (given.x,)
    with on_device_of(problem, given.ids, q):
        rung = ladder.choose(problem, kernel, arithmetic)
        wanted = written(kind if out is None else out.dtype) if rung.narrow else np.dtype(np.float32)
        direct = takes_sums(place_of(given.ids).share, out, *parts, *weights, given.ids, dtype=wanted)
        y = out if direct else xp.empty(given.shape, wanted)
        with np.errstate(over="ignore", invalid="ignore"):  # infinities are results, as on a GPU
            if y.size and problem.k:
                rung.launch(given.x, q, given.ids, y)
                fast_experts.keep_on_host(rung, x, q, ids, kernel, arithmetic)
            else:
                y[...] = 0
            if out is None:
                return y.astype(kind, copy=False)
            if not direct:
                out[...] = y
    return out


def _shape(x: Any, q: Any, ids: Any) -> tuple[int, ...]:
    """Of the result for a tensor x, once the shapes are sure."""
    check_matrices(ASKED, q)
    shape = tuple(getattr(ids, "shape", None) or np.shape(ids))
    if len(shape) == 2:  # else the ids are wrong, which is said later
        check_rows(ASKED, tuple(x.shape), q, shape)
    return (*shape, q.shape[1])
