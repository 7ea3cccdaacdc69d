"""``model``: a module of this package's own parts from a GGUF file, for every family with attention alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

import ggmlq as gq

from ..base.progress import Progress
from ..gguf.companions import is_companion
from ..model.families import family_of
from ..model.step import Step
from .modules import Embedding, Experts, Linear, Packed
from .steps import Arithmetic, Keys, Rows, Tables, Tensors, Vectors


class Output(NamedTuple):
    """Logits [B, T, vocabulary], and the cache behind the tokens: keys and values of each layer."""

    logits: torch.Tensor
    cache: tuple[Keys, ...]


class Model(torch.nn.Module):
    """A model whose modules have the file's names for its tensors; matrices in blocks stay packed.

    ``config``: sizes and settings, as ``gq.model`` has them.
    """

    def __init__(self, file: Any, dtype: torch.dtype, device: Any, context: int | None, bar: Any) -> None:
        super().__init__()
        architecture = file.metadata.get("general.architecture")
        tensors = {name: file[name] for name in file}
        self.config = family_of(architecture).read(file.metadata, str(architecture), tensors, context)
        if self.config.state:
            raise gq.errors.UnsupportedError(
                f"ggmlq.torch.model(file): layers of {architecture!r} remember by a state, and modules here "
                "have attention alone; run it with gq.model.load(path), or with "
                "ggmlq.torch.hosts.transformers.from_gguf(path) where transformers has the architecture"
            )
        beyond = tuple(f"blk.{i}." for i in range(self.config.layers, len(tensors)))
        self._tables: Tables = {}
        beside = {name for name in tensors if name.endswith(".input_scale") or is_companion(tensors, name)}
        names = {name for name in tensors.keys() - beside if not name.startswith(beyond)}
        self._names = frozenset(names)
        for name in sorted(names, key=lambda name: not name.endswith(".weight")):  # behind their matrices
            _put(self, name, tensors[name], dtype, device)
            bar.advance(tensors[name].nbytes)
        self.eval()

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of activations: that of the last norm."""
        weight: torch.Tensor = self.get_submodule(self.config.last_norm).weight  # type: ignore[assignment]
        return weight.dtype

    def forward(
        self, input_ids: torch.Tensor, cache: tuple[Keys, ...] | None = None, last: bool = False
    ) -> Output:
        """Logits of the next token behind each of the tokens [B, T]; ``last``: behind the last ones alone.

        The cache that is passed stays as it is, so several texts may go on from it. Rows of keys and values
        [B, HK, S, D] are ordinary tensors: cut them, or pick sequences, as you like.
        """
        past = tuple(cache or ())
        self._check(input_ids, past)
        rows: Any = Rows(self.config, input_ids, past)
        a = Arithmetic(self._tables, rows.start + rows.count, self.dtype, input_ids.device)
        tensors: Any = Tensors(self, self._names)
        family = family_of(self.config.architecture)
        step = Step(self.config, tensors, a, [(rows, input_ids.numel())])
        ids: Any = input_ids.reshape(-1)
        x = family.embed(step, step.embed(ids))
        for layer in range(self.config.layers):
            x = family.layer(step, x, layer)
        logits = step.logits(x, last)
        return Output(logits.reshape(rows.batch, -1, logits.shape[-1]), tuple(rows.keys))

    def _check(self, ids: Any, past: tuple[Keys, ...]) -> None:
        """Refuse tokens that are no batch of sequences, too many, or not those of the cache's sequences."""
        integers = isinstance(ids, torch.Tensor) and ids.dim() == 2 and ids.numel()
        if not integers or ids.is_floating_point() or ids.dtype == torch.bool:
            shown = f"{ids.dtype} {tuple(ids.shape)}" if isinstance(ids, torch.Tensor) else f"{ids!r:.80}"
            raise gq.errors.ShapeError(
                f"model(input_ids): input_ids are {shown}; they are integers [B, T], one or more; pass "
                "torch.tensor([tokens])"
            )
        layers, batches = len(self.config.keys), {keys.k.shape[0] for keys in past}
        if past and (len(past) != layers or batches != {ids.shape[0]}):
            raise gq.errors.ShapeError(
                f"model(input_ids, cache): the cache has {len(past)} layers of {[*batches]} sequences, the "
                f"model {layers} layers and input_ids {ids.shape[0]} sequences; pass the cache that the "
                "model gave for the same sequences"
            )
        before = past[0].k.shape[2] if past else 0
        if before + ids.shape[1] > self.config.context:
            raise gq.errors.ShapeError(
                f"model(input_ids, cache): {ids.shape[1]:,} tokens behind {before:,}; the context has "
                f"{self.config.context:,} positions; pass fewer, or open it with a larger context="
            )

    def extra_repr(self) -> str:
        """Architecture and sizes."""
        c = self.config
        return f"{c.architecture}, {c.layers} layers of {c.width}, {c.context:,} positions, {self.dtype}"


def _put(model: torch.nn.Module, name: str, q: gq.QuantArray, dtype: torch.dtype, device: Any) -> None:
    """Put a tensor at its name: blocks as a packed module, floats as torch's own."""
    path, _, kind = name.rpartition(".")
    *stem, last = path.split(".")
    place = model
    for each in stem:
        if each not in place._modules:
            place.add_module(each, torch.nn.Module())
        place = place._modules[each]  # type: ignore[assignment]
    packed, matrix = q.format.block_size > 1, kind == "weight" and q.ndim > 1
    part: Any
    if matrix and q.ndim == 3:
        part = Experts(q)
    elif matrix and path in ("token_embd", "per_layer_token_embd"):
        part = Embedding(q, dtype) if packed else torch.nn.Embedding(*q.shape, device="meta")
    elif matrix:
        part = Linear(q) if packed else torch.nn.Linear(q.shape[1], q.shape[0], bias=False, device="meta")
    else:
        part = place._modules.get(last) or Vectors()
    if not (matrix and (packed or q.ndim == 3)):
        floats = torch.from_numpy(np.array(q, np.float32)).to(device, dtype)
        setattr(part, kind, torch.nn.Parameter(floats))
    place.add_module(last, part.to(device) if isinstance(part, Packed) else part)


def model(
    file: Any, *, dtype: torch.dtype = torch.float32, device: Any = "cpu", context: int | None = None,
    progress: bool | None = None,
) -> Model:  # fmt: skip
    """Open a GGUF file as a module that stays packed, of an architecture that ``gq.model`` runs.

    ``model(input_ids, cache=None, last=False)`` gives ``.logits`` and ``.cache``; no other package is needed.

    Parameters
    ----------
    file : str, os.PathLike or GGUFFile
        A model with attention in all layers.
    dtype : torch.dtype
        Of activations, and of weights that are floats.
    device : str or torch.device
        Where the model is.
    context : int, optional
        The most positions of a sequence, instead of the file's.
    progress : bool, optional
        As in :func:`ggmlq.torch.quantize_`.

    >>> import pathlib, tempfile, torch, ggmlq.torch
    >>> from ggmlq.testing.models import tiny_model
    >>> m = ggmlq.torch.model(tiny_model(pathlib.Path(tempfile.mkdtemp()) / "tiny.gguf"))
    >>> with torch.no_grad():
    ...     logits, cache = m(torch.tensor([[1, 5, 6]]))
    ...     more = m(logits[:, -1:].argmax(-1), cache)
    >>> logits.shape, more.logits.shape, more.cache[0].k.shape
    (torch.Size([1, 3, 288]), torch.Size([1, 1, 288]), torch.Size([1, 2, 4, 64]))
    """
    opened = file if hasattr(file, "metadata") else gq.open(file)
    if not dtype.is_floating_point:
        raise gq.errors.DTypeError(
            f"ggmlq.torch.model(file, dtype={dtype}): activations are floats; pass torch.bfloat16"
        )
    with Progress(sum(opened[name].nbytes for name in opened), "loading", show=progress) as bar:
        return Model(opened, dtype, device, context, bar)
