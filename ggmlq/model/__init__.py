"""Whole models: logits, generated tokens, and every intermediate as an array.

From a call down:

    model.py       load, Model: logits, generate, nodes; attention_operands, layer by layer
    families/      which parts make a layer, one file a family
    step.py        the parts: norms, products, attention, experts; each tells its node
    recurrence.py  parts that remember by a state in place of keys
    mamba.py       Mamba 2 of such parts
    replay.py      steps on a GPU, recorded as CUDA graphs
    arithmetic/    how parts multiply: the fastest kernels, float64, llama.cpp's rounding, a GPU
    batch.py       sequences of any lengths that go through the layers together
    serving.py     sequences that join and leave, and the tokens that each gets; on it generate
    seats.py       where their keys and values lie
    drafts.py      tokens that are guessed ahead
    caches.py      keys and values of all layers
    state.py       that state, before a step and behind it
    config.py      sizes and settings from the metadata, each key of its type and within its range
    weights.py     tensors by name, held against those that a model of these sizes has
    layouts.py     matrices in the order of the CPU's kernels, from the disk and to it
    importance.py  sums of squares of what products read, by tensor
    quality.py     perplexity on a text, and the distance from another model
    sensitivity.py the same distance with one tensor quantized, tensor by tensor
    moments.py     second moments of what products read, for error feedback
    sampling.py    the choice of the next token, and the tokens and texts after which a sequence ends
    tokenizer/     text to tokens and back, chat templates
"""

from .model import Model, attention_operands, load
from .tokenizer import Tokenizer

__all__ = ["Model", "Tokenizer", "attention_operands", "load"]
