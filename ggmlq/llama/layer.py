"""Computes the feed-forward layer of a mixture of experts as a graph of ggml, on one of its devices.

The graph has the router, the products with experts, SwiGLU and the weighted sum.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from ..errors import DeviceError
from ..formats import Format
from ..formats.format import Bytes, Floats
from .guards import F32
from .library import address
from .product import COMPUTE, Multiplier, Request
from .symbols import InitParams

TENSORS = 128  # of a graph, views among them


class Sizes(NamedTuple):
    """The sizes of the layer."""

    experts: int
    used: int
    hidden: int  # rows of gate and up
    columns: int  # of the activations


class LayerGraph:
    """The graph of the layer; :func:`run` fills its leaves ``x``, ``router`` and ``weights``."""

    def __init__(self, symbols: Any, context: int, formats: list[Format], sizes: Sizes, tokens: int) -> None:
        s, (e, u, f, c) = symbols, sizes
        self.x: int = s.ggml_new_tensor_2d(context, F32, c, tokens)
        self.router: int = s.ggml_new_tensor_2d(context, F32, c, e)
        shapes = (c, f), (c, f), (f, c)
        self.weights = [
            s.ggml_new_tensor_3d(context, fmt.id, k, n, e)
            for fmt, (k, n) in zip(formats, shapes, strict=True)
        ]
        likely = s.ggml_soft_max(context, s.ggml_mul_mat(context, self.router, self.x))
        name = "ggml_argsort_top_k" if s.has("ggml_argsort_top_k") else "ggml_top_k"
        ids = getattr(s, name)(context, likely, u)
        counts = s.ggml_get_rows(context, s.ggml_reshape_3d(context, likely, 1, e, tokens), ids)
        x = s.ggml_reshape_3d(context, self.x, c, 1, tokens)
        gate, up = (s.ggml_mul_mat_id(context, w, x, ids) for w in self.weights[:2])
        hidden = s.ggml_mul(context, s.ggml_silu(context, gate), up)
        outputs = s.ggml_mul(context, s.ggml_mul_mat_id(context, self.weights[2], hidden, ids), counts)
        self.result: int = s.ggml_view_2d(context, outputs, c, tokens, 4 * c * u, 0)
        for i in range(1, u):
            other = s.ggml_view_2d(context, outputs, c, tokens, 4 * c * u, 4 * c * i)
            self.result = s.ggml_add(context, self.result, other)
        if u == 1:
            self.result = s.ggml_scale(context, self.result, 1.0)  # a view is not computed


def run(
    m: Multiplier, x: Floats, router: Floats, raw: list[Bytes], formats: list[Format], sizes: Sizes
) -> Floats:
    """The output [T, C] of the layer for activations x [T, C], computed on the multiplier's device."""
    s = m.symbols
    for fmt in formats:
        m.library.check_type(fmt)
    with ExitStack() as stack:
        room = TENSORS * s.ggml_tensor_overhead() + s.ggml_graph_overhead()
        context: int = s.ggml_init(InitParams(room, None, True))
        stack.callback(s.ggml_free, context)
        graph = LayerGraph(s, context, formats, sizes, len(x))
        buffer = s.ggml_backend_alloc_ctx_tensors_from_buft(
            context, s.ggml_backend_dev_buffer_type(m.handle.dev)
        )
        if not buffer:
            raise DeviceError("a layer of experts: the device has no memory for it; take smaller sizes")
        stack.callback(s.ggml_backend_buffer_free, buffer)
        s.ggml_backend_buffer_set_usage(buffer, COMPUTE)
        leaves: list[tuple[int, Any]] = [
            (graph.x, x),
            (graph.router, router),
            *zip(graph.weights, raw, strict=True),
        ]
        for tensor, array in leaves:
            s.ggml_backend_tensor_set(tensor, address(array), 0, array.nbytes)
        plan = s.ggml_new_graph(context)
        s.ggml_build_forward_expand(plan, graph.result)
        m.compute(plan, Request(formats[0], sizes.hidden, sizes.columns, lead=(sizes.experts,)))
        y = np.empty((len(x), sizes.columns), np.float32)
        s.ggml_backend_tensor_get(graph.result, address(y), 0, y.nbytes)
        return y
