"""``gq.expert_linear``, a layer of a mixture of experts: each token times the experts that it uses."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..arrays.array import QuantArray
from ..arrays.scaled import ScaledArray
from ..arrays.tensors import is_tensor
from ..arrays.weights import Divided, operation
from ..base.devices import on_device_of
from ..dispatch.problems import ExpertLinear
from . import tensors, warm
from .call import result_of, run
from .operands import check_matrices, check_rows, experts

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
    try:
        y = warm.experts_on_host(x, q, ids, kernel, arithmetic, out, dtype, check)
        if y is not None:
            return y
    except MemoryError:
        pass  # the next lines say it in words
    options: dict[str, Any] = {"kernel": kernel, "arithmetic": arithmetic, "check": check}
    if isinstance(q, Divided):
        return q.run("expert_linear", x, ids, out=out, dtype=dtype, **options)
    check_matrices(REQUEST, q)
    if is_tensor(x):
        return tensors.called(expert_linear, REQUEST, x, (q, ids), _shape(x, q, ids), out, dtype, **options)
    with on_device_of(REQUEST, q.memory, q):  # in a CUDA graph what x and ids become stays with q
        operands = experts(REQUEST, x, q, ids, look=q.device == "cpu" if check is None else check)
    result = result_of(REQUEST, q, operands.shape, dtype, out)
    key = warm.experts_key(x, ids, kernel, arithmetic)
    return run(ExpertLinear.of(*operands), operands, result, kernel, arithmetic, key)


def _shape(x: Any, q: Any, ids: Any) -> tuple[int, ...]:
    """The shape of the result for a tensor x."""
    shape = tuple(getattr(ids, "shape", None) or np.shape(ids))
    if len(shape) == 2:  # else the ids are wrong, which is said later
        check_rows(REQUEST, tuple(x.shape), q, shape)
    return (*shape, q.shape[1])
