"""A port without torch: the layers of gq.model in float64 as a module whose parts call hooks."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np

import ggmlq as gq
from ggmlq.model.arithmetic.oracles import Exact
from ggmlq.model.families import FAMILIES
from ggmlq.model.step import Step
from ggmlq.model.weights import Weights
from ggmlq.port.between import Rows
from ggmlq.port.watched import MORE, OF_ARCH


class Tensor:
    """An array in the guise of a tensor."""

    def __init__(self, x):
        self.x, self.shape, self.dtype = np.asarray(x)[None], (1, *np.shape(x)), "torch.float64"

    def detach(self):
        return self

    float = cpu = detach

    def numpy(self):
        return self.x

    def __getitem__(self, at):
        return self.x[at]


class Part:
    """A part of the module, which calls hooks."""

    def __init__(self):
        self.hooks = []

    def register_forward_hook(self, hook, with_kwargs):
        assert with_kwargs
        self.hooks.append(hook)
        return SimpleNamespace(remove=lambda: self.hooks.remove(hook))


class Walk(Step):
    """The layers; products and norms tell the parts of the module."""

    port = None

    def product(self, x, name, layer, node=None):
        """A product, seen by the hooks of its part."""
        return self.port.through(layer, name, x, super().product(x, name, layer, node))

    def norm(self, x, name, layer=None, plain=False):
        """A norm, seen by the hooks of its part."""
        return self.port.through(layer, name, x, super().norm(x, name, layer, plain))


class Port:
    """The model of a file as a module of transformers would have it; ``config`` changes its settings."""

    def __init__(self, path, **config):
        self.file, self.changes = gq.open(path), config
        self.arch = self.file.metadata["general.architecture"]
        layer = OF_ARCH.get(self.arch, OF_ARCH["llama"]).layer | MORE.get(self.arch, {})
        self.names = {new: old for old, new in layer.items()}
        layers = self.file.metadata[f"{self.arch}.block_count"]
        inner = [f"model.layers.{i}.{old}" for i in range(layers) for old in layer]
        outer = ["model.embed_tokens", "model.norm", "lm_head"]
        self.parts = {path: Part() for path in (*outer, *inner)}

    def named_modules(self):
        """The parts by their paths."""
        return self.parts.items()

    def parameters(self):
        """None of torch's."""
        return iter(())

    named_parameters = named_buffers = parameters

    def through(self, layer, name, x, y):
        """Call the hooks of a part."""
        path = f"model.layers.{layer}.{self.names.get(name)}"
        path = path if layer is not None else {"output_norm": "model.norm"}.get(name, name)
        for hook in self.parts[path].hooks if path in self.parts else ():
            hook(None, (Tensor(x.copy()),), {}, Tensor(y.copy()))
        return y

    def __call__(self, ids):
        """The logits of some tokens."""
        ids, family, weights = np.asarray(ids)[0], FAMILIES[self.arch], Weights(self.file, Exact())
        config = family.read(self.file.metadata, self.arch, weights.tensors, None)
        config = dataclasses.replace(config, **self.changes)
        walk = Walk(config, weights, Exact(), [(Positions(), len(ids))], lambda *_: None, flash=True)
        walk.port = self
        x = self.through(None, "model.embed_tokens", ids, family.embed(walk, walk.embed(ids)))
        for layer in range(config.layers):
            x = family.layer(walk, x, layer)
        x = walk.norm(x, "output_norm")
        head = "output" if "output" in weights else "token_embd"
        y = self.through(None, "lm_head", x, walk.a.linear(x, weights.matrix(head)))
        return SimpleNamespace(logits=Tensor(walk.a.capped(y, config.logit_cap) if config.logit_cap else y))


class Positions(Rows):
    """Positions with keys and values, which are handed back as they came."""

    def appended(self, layer, q, k, v):
        """Queries with the keys and values of this call."""
        lead = lambda x: gq.quantize(np.ascontiguousarray(x.transpose(1, 0, 2), np.float32)[None], "f32")
        return q.transpose(1, 0, 2), SimpleNamespace(k=lead(k), v=lead(v))

    def back(self, layer, y):
        """Results as they are."""
        return y
