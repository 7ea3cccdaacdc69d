"""KL of drawn mixtures of types beside the sum that ``quantize --measure`` predicts.

    python bench/additive.py MODEL TEXT [--layers 8] [--mixtures 16] [--tensors 40]

Prices are of tensors of so many layers, on every other stretch of the text. Mixtures are measured on the
other stretches; each changes so many drawn tensors.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import ggmlq as gq
from ggmlq.convert import Sensitivity, plan_quantize
from ggmlq.convert.measure import TensorTrial, measure, prices
from ggmlq.model.quality import measured, stretches
from ggmlq.model.sensitivity import Change, changed, chosen, sensitivities

TYPES = ("q2_K", "q3_K", "q4_0", "q4_K", "q5_0", "q5_K", "q6_K", "q8_0", "iq4_nl")


def main() -> None:
    """Print a line for each mixture, and how far predictions are off."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--mixtures", type=int, default=16)
    parser.add_argument("--tensors", type=int, default=40)
    parser.add_argument("--stretch", type=int, default=256)
    parser.add_argument("--stretches", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    with gq.open(args.model) as file:
        model = gq.model.load(file)
        pieces = stretches(model, args.text.read_text(), args.stretch)[: args.stretches]
        steps = {s.name: s for s in plan_quantize(file, "q3_K", allow_requantize=True).steps if s.changes}
        changes = {name: Change(steps[name].after, None) for name in chosen(steps, args.layers)}
        facts = dict(sensitivities(model, pieces[::2], changes, None))
        known = {name: Sensitivity(changes[name].format, fact["kl"]) for name, fact in facts.items()}
        trials = [
            TensorTrial(
                name, [f for f in map(gq.formats.__getitem__, TYPES) if not s.shape[-1] % f.block_size], None
            )
            for name, s in steps.items()
        ]
        errors = measure(file, trials, 1 << 14)
        costs = dict(zip(steps, prices(trials, errors, known), strict=True))
        pairs = []
        for number in range(args.mixtures):
            least = rng.integers(len(TYPES))  # mixtures of all qualities
            names = rng.choice(list(steps), min(args.tensors, len(steps)), replace=False).tolist()
            formats = {t.name: t.formats for t in trials}
            types = {
                name: formats[name][min(rng.integers(least, least + 3), len(formats[name]) - 1)]
                for name in names
            }
            predicted = sum(costs[name] * errors[name].errors[fmt].value for name, fmt in types.items())
            other = model.replaced(
                {name: changed(file[name], Change(fmt, None)) for name, fmt in types.items()}
            )
            fact = measured(other, model, pieces[1::2], False)
            pairs.append((predicted, fact["kl"]))
            print(
                f"{number}: predicted {predicted:.5f}, measured {fact['kl']:.5f} ± {fact['kl_error']:.5f}",
                flush=True,
            )
    logs = np.log(pairs)
    off = logs[:, 1] - logs[:, 0]
    print(
        f"correlation of logarithms {np.corrcoef(logs.T)[0, 1]:.3f}; measured by predicted: median "
        f"{np.exp(np.median(off)):.2f}, from {np.exp(off.min()):.2f} to {np.exp(off.max()):.2f}"
    )


if __name__ == "__main__":
    main()
