"""``Joined``: a matrix of a host's module that is several in a file, or has another order of its columns."""

from __future__ import annotations

from typing import Any

import torch


class Joined(torch.nn.ModuleList):
    """Products of x with several matrices, one behind the other.

    ``rows``: the order of their results; ``columns``: the order in which the matrices read x.
    """

    def __init__(self, parts: Any, rows: Any = None, columns: Any = None) -> None:
        super().__init__(parts)
        self.register_buffer("rows", _order(rows), persistent=False)
        self.register_buffer("columns", _order(columns), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The results in their order."""
        x = x if self.columns is None else x[..., self.columns]
        y = torch.cat([part(x) for part in self], -1)
        return y if self.rows is None else y[..., self.rows]


class Heads(torch.nn.ModuleList):
    """Keys and values of all heads, from the short vector of a token, by two matrices of each head.

    Those of keys [H, K, N] lie the other way round, so they are decoded for each call, as a product of many
    rows would be: the module of DeepSeek makes keys of all positions at once.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Keys and values [..., H · (N + D)], those of a head side by side."""
        keys, values = (part.dequantize() if hasattr(part, "dequantize") else part.weight for part in self)
        k = torch.einsum("...k,hkn->...hn", x, keys.to(x.dtype))
        v = torch.einsum("...k,hdk->...hd", x, values.to(x.dtype))
        return torch.cat([k, v], -1).flatten(-2)


def _order(order: Any) -> torch.Tensor | None:
    return None if order is None else torch.as_tensor(order, device="cpu")
