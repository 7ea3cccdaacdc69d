#!/usr/bin/env python3
"""Train the weights of docs/voice.npz: a GRU of 24 units that hears for every 10 ms whether somebody speaks.

    python tools/voice_train.py [--steps 600]

Only this part of the example needs torch; all sounds are made by tools/tables/_sounds.py.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from tables._sounds import BANDS, batch

OUT = Path(__file__).parents[1] / "docs" / "voice.npz"
UNITS, SOUNDS, AT_ONCE = 24, 600, 32


def main() -> None:
    """Train the network and write its weights."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=600)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, truth = (torch.from_numpy(part) for part in batch(1, SOUNDS))
    gru, out = torch.nn.GRU(BANDS, UNITS), torch.nn.Linear(UNITS, 1)
    parameters = [*gru.parameters(), *out.parameters()]
    best = torch.optim.Adam(parameters, 1e-2)
    plan = torch.optim.lr_scheduler.CosineAnnealingLR(best, args.steps, 1e-4)
    loss_of, order = torch.nn.BCEWithLogitsLoss(), np.random.default_rng(0)
    for step in range(args.steps):
        chosen = torch.from_numpy(order.integers(0, SOUNDS, AT_ONCE))
        answer = out(gru(x[:, chosen])[0])[..., 0]
        loss = loss_of(answer, truth[:, chosen].float())
        best.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        best.step()
        plan.step()
        if step % 50 == 0 or step == args.steps - 1:
            right = ((answer > 0) == truth[:, chosen]).float().mean()
            print(f"step {step}: loss {loss.item():.4f}, right {right.item():.2%}", flush=True)
    state = {name: part.detach().numpy() for name, part in gru.state_dict().items()}
    np.savez_compressed(
        OUT, **state, out_weight=out.weight.detach().numpy(), out_bias=out.bias.detach().numpy()
    )
    print(f"wrote {OUT.name}, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
