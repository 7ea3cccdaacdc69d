"""The table of bench/notes/recipes.md: recipes against llama.cpp's mixes of the same size, errors and logits.

Models are made up, with a trait of real ones: heavy tails, loud channels, layers that matter more than
others, experts. For each mix the recipe may have as many bytes as the mix. Errors are those of all weights,
weighted by importance, measured on the tensors as they were written; KL is the mean over random tokens
of the divergence of the next token's distribution from that of the float model, by llama-cpp-python's
libllama. A tensor is encoded once in a type, whoever chooses it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ggmlq as gq
from ggmlq.convert import Plan, Step

from . import Options, Texts, table

OPTIONS = {
    "--logits": {"action": "store_true", "help": "run the models with llama-cpp-python's libllama"},
    "--objective": {"choices": ("both", "relative", "error"), "default": "both", "help": "of the recipes"},
}
K, FFN, LAYERS, VOCABULARY, HEADS = 256, 512, 8, 512, 4
MIXES = ("q2_K", "q3_K_M", "iq4_xs", "q4_K_S", "q4_K_M", "q5_K_M")
WITH_IMATRIX = ("iq2_xs",)
TOKENS = 128
SAMPLE = 1 << 14  # weights of a tensor by which a recipe judges a type; errors in the table are of all
HEADER = ("model", "mix", "bits", "recipe's bits", "mix: error", "recipe: error", "ratio")

Arrays = dict[str, np.ndarray[Any, np.dtype[np.float32]]]


def texts(options: Options) -> Texts:
    """A sentence that counts, and the table."""
    with tempfile.TemporaryDirectory() as folder:
        lines = list(rows(Path(folder), options.logits, options.objective))
    header = [*HEADER, *(["mix: KL", "recipe: KL", "ratio"] if options.logits else [])]
    better = sum(float(line[6]) < 1 for line in lines)
    summary = f"The recipe's error is the smaller one in {better} of {len(lines)} rows"
    if options.logits:
        summary += f", its KL in {sum(float(line[9]) < 1 for line in lines)}"
    yield "bench/notes/recipes.md", f"{summary}.\n\n{table(header, lines)}"


class Model(NamedTuple):
    """A made-up model with its importance matrix."""

    name: str
    tensors: Arrays
    importance: Arrays | None
    metadata: dict[str, Any]


def models() -> Iterator[Model]:
    """A model for each trait."""
    traits = {
        "normal weights": {},
        "normal weights, no imatrix": {"bare": True},
        "heavy tails": {"tails": 4.0},
        "loud channels": {"outliers": 30.0},
        "layers differ": {"spread": 1.0},
        "all of these": {"tails": 5.0, "outliers": 10.0, "spread": 0.7},
        "all of these, 4 experts": {"tails": 5.0, "outliers": 10.0, "spread": 0.7, "experts": 4},
    }
    for seed, (name, trait) in enumerate(traits.items()):
        yield model(name, np.random.default_rng([seed, 7]), **trait)


def model(
    name: str, rng: np.random.Generator, *, tails: float = 0, outliers: float = 1, spread: float = 0,
    experts: int = 0, bare: bool = False,
) -> Model:  # fmt: skip
    """A llama of a few layers."""
    tensors: Arrays = {}
    importance: Arrays = {}

    def add(tensor: str, *shape: int, inputs: Any = 1.0) -> None:
        """Add a tensor, and the importance of its columns."""
        x = rng.standard_t(tails, shape) if tails else rng.standard_normal(shape)
        tensors[tensor] = (x * rng.lognormal(0, spread) / shape[-1] ** 0.5).astype(np.float32)
        squares = np.broadcast_to(np.float64(inputs) ** 2, (*shape[:-2], shape[-1]))
        importance[tensor] = (squares * rng.gamma(20, 0.05, squares.shape)).astype(np.float32)

    def norm(tensor: str) -> Any:
        """Magnitudes for the matrices behind a norm: most channels near 1, a few loud."""
        loud = np.where(rng.random(K) < 0.02, outliers**0.5, 1) * rng.lognormal(0, spread / 2, K)
        tensors[tensor] = loud.astype(np.float32)
        return tensors[tensor]

    add("token_embd.weight", VOCABULARY, K)
    add("output.weight", VOCABULARY, K, inputs=norm("output_norm.weight"))
    stack, suffix = ((experts,), "_exps") if experts else ((), "")
    for layer in range(LAYERS):
        blk = f"blk.{layer}."
        inputs = norm(f"{blk}attn_norm.weight")
        for part, rows in (("attn_q", K), ("attn_k", K // 4), ("attn_v", K // 4)):
            add(f"{blk}{part}.weight", rows, K, inputs=inputs)
        add(f"{blk}attn_output.weight", K, K)
        inputs = norm(f"{blk}ffn_norm.weight")
        if experts:
            tensors[f"{blk}ffn_gate_inp.weight"] = rng.standard_normal((experts, K)).astype(np.float32)
        for part in ("ffn_up", "ffn_gate"):
            add(f"{blk}{part}{suffix}.weight", *stack, FFN, K, inputs=inputs)
        add(f"{blk}ffn_down{suffix}.weight", *stack, K, FFN)
    del importance["token_embd.weight"]
    return Model(name, tensors, None if bare else importance, metadata(experts))


def metadata(experts: int) -> dict[str, Any]:
    """The keys that libllama needs to run the model on plain numbers of tokens."""
    keys = {
        "general.architecture": "llama", "llama.context_length": 512, "llama.embedding_length": K,
        "llama.block_count": LAYERS, "llama.feed_forward_length": FFN, "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": HEADS // 4, "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": K // HEADS, "llama.vocab_size": VOCABULARY,
        "tokenizer.ggml.model": "none",
    }  # fmt: skip
    return keys | ({"llama.expert_count": experts, "llama.expert_used_count": 2} if experts else {})


class _Writer:
    """Files of one model in several types, with their errors."""

    def __init__(self, model: Model) -> None:
        self._model = model
        means = [float(x.mean()) for x in (model.importance or {}).values()]
        self._usual = float(np.median(means)) if means else 1.0
        self._encoded: dict[tuple[str, str, bool], tuple[Any, float]] = {}
        self._energy = sum(self._weighted(name, x) for name, x in model.tensors.items() if x.ndim > 1)

    def write(self, plan: Plan, path: Path) -> float:
        """Write the file; the weighted sum of its squared errors over that of the values."""
        encoded = {step.name: self._tensor(step) for step in plan.steps}
        gq.save(path, {name: x for name, (x, _) in encoded.items()}, self._model.metadata)
        return sum(error for _, error in encoded.values()) / self._energy

    def _tensor(self, step: Step) -> tuple[Any, float]:
        x = self._model.tensors[step.name]
        key = step.name, step.after.name, step.weights is None
        if key not in self._encoded:
            rows = [None] if step.weights is None else step.weights
            parts = x.reshape(-1, *x.shape[-2:]) if x.ndim > 2 else [x]
            arrays = [gq.quantize(part, step.after, rows[i % len(rows)]) for i, part in enumerate(parts)]
            array = gq.stack(arrays) if x.ndim > 2 else arrays[0]
            self._encoded[key] = array, self._weighted(step.name, x - np.asarray(array, np.float64))
        return self._encoded[key]

    def _weighted(self, name: str, x: Any) -> float:
        weights = (self._model.importance or {}).get(name)
        scale = np.float64(self._usual) if weights is None else weights.astype(np.float64)[..., None, :]
        return float((scale * np.square(x, dtype=np.float64)).sum())


def rows(folder: Path, logits: bool, objective: str) -> Iterator[list[str]]:
    """A line for each model and mix."""
    for model in models():
        path, by_mix, by_recipe = (folder / f"{name}.gguf" for name in ("f32", "mix", "recipe"))
        gq.save(path, model.tensors, model.metadata)
        runs, writer = _Logits(path) if logits else None, _Writer(model)
        with gq.open(path) as file:
            for mix in MIXES if model.importance is None else MIXES + WITH_IMATRIX:
                plan = gq.convert.plan_quantize(file, mix, mixed=True, imatrix=model.importance)
                elements = sum(x.size for x in model.tensors.values())
                bits = 8 * sum(step.bytes_after for step in plan.steps) / elements
                recipe = gq.convert.recipe(
                    file, bits, imatrix=model.importance, objective=objective, elements=SAMPLE
                )
                theirs, ours = writer.write(plan, by_mix), writer.write(recipe.plan, by_recipe)
                kl = [runs.divergence(file) for file in (by_mix, by_recipe)] if runs else []
                print(f"{model.name}, {mix}: {theirs:.3e} {ours:.3e} {kl}", file=sys.stderr, flush=True)
                yield [
                    model.name, mix, f"{bits:.3f}", f"{recipe.bits_per_weight:.3f}", f"{theirs:.2e}",
                    f"{ours:.2e}", f"{ours / theirs:.2f}", *(f"{value:.2e}" for value in kl),
                    *([f"{kl[1] / kl[0]:.2f}"] if kl else []),
                ]  # fmt: skip


class _Logits:
    """Logits of a model for random tokens, against those of the float model."""

    def __init__(self, path: Path) -> None:
        self._tokens = np.random.default_rng(3).integers(0, VOCABULARY, TOKENS).tolist()
        self._floats = self._run(path)

    def divergence(self, path: Path) -> float:
        """Mean KL of the next token's distribution."""
        logits = self._run(path)
        return float((np.exp(self._floats) * (self._floats - logits)).sum(axis=1).mean())

    def _run(self, path: Path) -> Any:
        from llama_cpp import Llama  # only where it is asked for

        llama = Llama(str(path), n_ctx=TOKENS, n_batch=TOKENS, logits_all=True, verbose=False, n_threads=1)
        llama.eval(self._tokens)
        logits = np.array(llama.scores[:TOKENS], np.float64)
        llama.close()
        logits -= logits.max(axis=1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
