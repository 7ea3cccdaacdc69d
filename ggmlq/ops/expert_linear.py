"""``gq.expert_linear``, a layer of a mixture of experts: each token times the experts that it uses."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..arrays.array import QuantArray
from ..arrays.scaled import ScaledArray
from ..arrays.weights import Divided, operation
from ..base.devices import device_of, on_device_of
from ..dispatch.problems import ExpertLinear
from ..errors import DeviceError, ShapeError
from . import plan
from .door import Operation, enter, operand
from .epilogue import Wishes, ended, finished, memory_of, place_for_sums, result_of
from .operands import check_ids, check_matrices, check_rows, experts, shape_of_ids
from .product import by_uses, run

REQUEST = "expert_linear(x, q, ids)"


@operation
def expert_linear(
    x: Any,
    q: QuantArray | ScaledArray | Divided,
    ids: Any,
    *,
    kernel: str = "auto",
    arithmetic: str | None = None,
    out: Any = None,
    bias: Any = None,
    weights: Any = None,
    residual: Any = None,
    dtype: DTypeLike | None = np.float32,
    check: bool | None = None,
    invariant: bool = False,
) -> Any:
    """Multiply each token with the experts that it uses: ``y[t, u] = x[t] @ q[ids[t, u]].T``.

    This is ggml's ``mul_mat_id``; with weights the results of a token's experts are summed. All rows of an
    expert are multiplied together, so that its weights are read once; a token may use an expert twice, and
    experts may go unused.

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
    bias : array, optional
        [E, N]: a row for each expert, added to its results.
    weights : array, optional
        [T, U]: how much each expert counts. The result is then ``sum(weights[t, u] * y[t, u])``, [T, N].
    residual : array, optional
        Added to the result, whose shape it has or is broadcast to. It may be ``out``. All sums are float32,
        and rounded once.
    dtype : dtype
        Of the result: float16, bfloat16, float32 or float64.
    check : bool, optional
        Whether an id that is no expert is an error; otherwise it makes a row of NaN. By default ids on the
        host are looked at, those on a GPU are not, since that would wait for it.
    invariant : bool
        A row of the result has the same bits whatever tokens are beside it, and how many. This may take
        longer; on a GPU each use is a product of its own.

    Returns
    -------
    array
        [T, U, N], or with weights [T, N], on the device of q.

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
    wishes = Wishes(out, bias, residual, dtype, kernel, arithmetic, invariant)
    if not (bias is None and weights is None and residual is None):
        if not isinstance(q, Divided):
            check_matrices(REQUEST, q)
        return enter(ENDED, q, x, wishes, ids=ids, weights=weights, check=check)
    try:
        y = plan.experts_on_host(x, q, ids, kernel, wishes.how, out, dtype, check)
        if y is not None:
            return y
    except MemoryError:
        pass  # the next lines say it in words
    if isinstance(q, Divided):
        options = {"kernel": kernel, "arithmetic": arithmetic, "check": check}
        options |= {"invariant": True} if invariant else {}
        return q.run("expert_linear", x, ids, out=out, dtype=dtype, **options)
    check_matrices(REQUEST, q)
    return enter(EXPERTS, q, x, wishes, ids=ids, check=check)


def multiply(q: Any, x: Any, wishes: Wishes, ids: Any, check: bool | None) -> Any:
    """The product of arrays, without bias, weights and residual."""
    on_host = q.device == "cpu"
    with on_device_of(REQUEST, q.memory, q):  # in a CUDA graph what x and ids become stays with q
        operands = experts(REQUEST, x, q, ids, look=on_host if check is None else check)
    result = result_of(REQUEST, wishes, operands.shape, q.device)
    problem = ExpertLinear.of(*operands)
    if wishes.invariant and not on_host:
        piece = Wishes(None, None, None, result.dtype, wishes.kernel, wishes.arithmetic)
        with on_device_of(problem, q.memory, q):
            rows, n = operands.x, operands.shape[-1]
            y = by_uses(rows, operands.ids, n, result.dtype, lambda x, e: multiply(q, x, piece, e, False))
            return ended(y, result)
    return run(problem, operands, result, wishes, plan.experts_key(x, ids, wishes.kernel, wishes.how))


def _ended(q: Any, x: Any, wishes: Wishes, ids: Any, weights: Any, check: bool | None) -> Any:
    """The product plus each expert's bias, summed by weights, plus a residual."""
    used, shape = shape_of_ids(REQUEST, ids), _ended_shape(q, x, ids, weights, check)
    memory = memory_of(q, x)
    place = device_of(memory)
    ids = check_ids(REQUEST, ids, SimpleNamespace(device=place), look=False)
    bias = _checked("bias", wishes.bias, (q.shape[0], q.shape[1]), place)
    weights = _checked("weights", weights, used, place)
    result = result_of(REQUEST, wishes, shape, place)
    with on_device_of(REQUEST, memory, q if hasattr(q, "recorded") else None):
        to = place_for_sums(result, bias, ids) if weights is None else None
        plain = {"kernel": wishes.kernel, "arithmetic": wishes.arithmetic, "invariant": wishes.invariant}
        sums = expert_linear(x, q, ids, out=to, check=check, **plain)
        if result.out is None and result.dtype == np.float32 and weights is None:
            result = result._replace(out=sums)
        numbers = result.place.xp.where((ids >= 0) & (ids < q.shape[0]), ids, 0)
        return finished(result, sums, partial(_of_uses, sums, numbers, bias, weights))


def _checked(name: str, part: Any, shape: tuple[int, ...], place: str) -> Any:
    """The bias or weights of experts, as floats of this shape on the device of the result."""
    if part is None:
        return None
    part = operand(REQUEST, part, name)
    if part.device != place:
        raise DeviceError(f"{REQUEST}: {name} is on {part.device}, x and q are on {place}; move it there")
    if part.shape != shape:
        means = "[E, N], a row for each expert" if name == "bias" else "[T, U], a number for each use"
        raise ShapeError(f"{REQUEST}: {name} has shape {part.shape}; it is {means}; pass shape {shape}")
    return part.array


def _of_uses(sums: Any, numbers: Any, bias: Any, weights: Any, rows: slice) -> Any:
    """Rows of the result: of uses, or where there are weights of tokens.

    A token's experts are added in the order of its ids, so that no other token changes a bit of it.
    """
    if weights is None:
        part = sums.reshape(numbers.size, sums.shape[-1])[rows]
        if bias is not None:
            part += bias[numbers.reshape(-1)[rows]]
        return part
    part, by = sums[rows], weights[rows].astype(np.float32)
    if bias is not None:
        part += bias[numbers[rows]]
    if not part.shape[1]:
        return part.sum(axis=1)
    total = part[:, 0] * by[:, 0, None]
    for u in range(1, part.shape[1]):
        total += part[:, u] * by[:, u, None]
    return total


def _shape(q: Any, x: Any, ids: Any, check: Any) -> tuple[int, ...]:
    """The shape of the result for a tensor x."""
    shape = shape_of_ids(REQUEST, ids)
    if len(shape) == 2:  # else the ids are wrong, which is said later
        check_rows(REQUEST, tuple(x.shape), q, shape)
    return (*shape, q.shape[1])


def _ended_shape(q: Any, x: Any, ids: Any, weights: Any, check: Any) -> tuple[int, ...]:
    used = shape_of_ids(REQUEST, ids)
    return (*used, q.shape[1]) if weights is None else (*used[:1], q.shape[1])


EXPERTS = Operation(REQUEST, multiply, shape=_shape)
ENDED = Operation(REQUEST, _ended, shape=_ended_shape)
