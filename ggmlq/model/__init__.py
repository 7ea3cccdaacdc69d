"""Whole models: logits, generated tokens, and every intermediate as an array.

From a call down:

    model.py       load, Model: logits, generate, nodes
    attended.py    attention_operands: what attention is called with, layer by layer
    families/      which parts make a layer, one file a family
    step.py        the parts: norms, products, attention; each tells its node
    experts.py     mixtures of experts
    replay.py      steps on a GPU, recorded as CUDA graphs
    fixed.py       the arithmetic of such a step, whose tokens and positions are numbers on the device
    arithmetic/    how parts multiply: the fastest kernels, float64, llama.cpp's rounding, a GPU
    rope.py        turning by positions
    batch.py       sequences of any lengths that go through the layers together
    caches.py      keys and values of all layers
    weights.py     tensors by name
    facts.py       the metadata, each key of its type and within its range
    config.py      sizes and settings from it
    frame.py       the tensors that a model of these sizes has, held against those of the file
    finite.py      numbers that are not finite, told in words
    sampling.py    the choice of the next token
    stopping.py    the tokens and texts after which a sequence ends
    tokenizer/     text to tokens and back, chat templates
"""

from .model import Model, attention_operands, load
from .tokenizer import Tokenizer

__all__ = ["Model", "Tokenizer", "attention_operands", "load"]
