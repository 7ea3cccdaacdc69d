"""libllama's own quantizer, as llama-cpp-python carries it, and a small model that it takes."""

from __future__ import annotations

import ctypes
import importlib

import numpy as np
import pytest

import ggmlq as gq

K, FFN = 256, 96  # a row of one super-block, and one that only small blocks divide

HPARAMS = {
    "general.architecture": "llama", "llama.context_length": 128, "llama.embedding_length": K,
    "llama.block_count": 2, "llama.feed_forward_length": FFN, "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2, "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": 64,
}  # fmt: skip


def tensors(seed, *, layers=2, experts=0, dtype=np.float32):
    """Names and weights of a llama of a few rows; with experts its feed-forward part is 3-D."""
    rng = np.random.default_rng(seed)

    def weights(*shape):
        return rng.standard_normal(shape).astype(dtype)

    found = {"token_embd.weight": weights(40, K), "output_norm.weight": weights(K).astype(np.float32)}
    found["output.weight"] = weights(40, K)
    for layer in range(layers):
        blk = f"blk.{layer}."
        found[blk + "attn_norm.weight"] = weights(K).astype(np.float32)
        for name, rows in (("attn_q", 64), ("attn_k", 32), ("attn_v", 32), ("attn_output", 64)):
            found[f"{blk}{name}.weight"] = weights(rows, K)
        many, suffix = ((experts,), "_exps") if experts else ((), "")
        found[f"{blk}ffn_up{suffix}.weight"] = weights(*many, FFN, K)
        found[f"{blk}ffn_gate{suffix}.weight"] = weights(*many, FFN, K)
        found[f"{blk}ffn_down{suffix}.weight"] = weights(*many, 16, FFN)
        if experts:
            found[blk + "ffn_gate_inp.weight"] = weights(experts, K).astype(np.float32)
    return found


def metadata(layers=2, experts=0):
    found = HPARAMS | {"llama.block_count": layers}
    return found | ({"llama.expert_count": experts, "llama.expert_used_count": 1} if experts else {})


def _close_what_it_leaves_open():
    """Two files on the null device, of which Python would complain at its exit."""
    utils = importlib.import_module("llama_cpp._utils")
    for name in ("outnull_file", "errnull_file"):
        getattr(utils, name).close()


class Quantizer:
    """``llama_model_quantize`` with what it says; a context, for libggml keeps its listener's address."""

    def __init__(self):
        llama = pytest.importorskip("llama_cpp.llama_cpp", reason="llama-cpp-python is not installed")
        _close_what_it_leaves_open()
        self._llama = llama
        self.said = ""
        self._log = llama.llama_log_callback(self._hear)  # kept: C holds no reference

    def __enter__(self):
        self._llama.llama_log_set(self._log, None)
        return self

    def __exit__(self, *_):
        """Without this the next word of ggml, in any other test, would go to freed memory."""
        self._llama.llama_log_set(self._llama.llama_log_callback(), None)

    def _hear(self, level, text, data):
        self.said += text.decode(errors="replace")

    def __call__(
        self,
        source,
        target,
        ftype,
        *,
        imatrix=None,
        keep=(),
        requantize=False,
        pure=True,
        dry=False,
        threads=1,
    ):
        """Whether it worked; ``keep`` are pairs of pattern and type; a dry run only tells."""
        llama = self._llama
        params = llama.llama_model_quantize_default_params()
        params.ftype, params.pure, params.allow_requantize, params.nthread = ftype, pure, requantize, threads
        params.dry_run = dry
        held = []
        if imatrix is not None:
            rows = [(name.encode(), np.ascontiguousarray(x, np.float32)) for name, x in imatrix.items()]
            array = (llama.llama_model_imatrix_data * (len(rows) + 1))()
            for entry, (name, x) in zip(array, rows, strict=False):
                entry.name, entry.size = name, x.size
                entry.data = x.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            params.imatrix = ctypes.cast(array, ctypes.POINTER(llama.llama_model_imatrix_data))
            held += [rows, array]
        if keep:
            overrides = (llama.llama_model_tensor_override * (len(keep) + 1))()
            for entry, (pattern, kind) in zip(overrides, keep, strict=False):
                entry.pattern, entry.type = pattern.encode(), gq.formats[kind].id
            pointer = ctypes.POINTER(llama.llama_model_tensor_override)
            params.tt_overrides = ctypes.cast(overrides, pointer)
            held.append(overrides)
        self.said = ""
        failed = llama.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params))
        del held
        return not failed
