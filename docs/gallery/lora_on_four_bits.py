"""LoRA on a 4-bit base.

A small network is quantized to q4_K in place. Its weights stay in 4 bits and frozen while two small matrices
beside each layer learn a new task: the loss falls, the blocks do not change, and the base takes a seventh of
its memory in float32.
"""

import copy

import torch

import ggmlq.torch

torch.manual_seed(0)
WIDTH, RANK, STEPS = 512, 8, 60


def network():
    """Three layers with a residual around the middle."""
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(),
        torch.nn.Linear(WIDTH, WIDTH),
    )  # fmt: skip


base = network()
task = copy.deepcopy(base)  # what is to be learned: the base, changed along few directions
with torch.no_grad():
    for layer in task:
        if isinstance(layer, torch.nn.Linear):
            layer.weight += torch.randn(WIDTH, 2) @ torch.randn(2, WIDTH) * 0.02
floats = sum(layer.weight.numel() * 4 for layer in base if isinstance(layer, torch.nn.Linear))

ggmlq.torch.quantize_(base, "q4_K")
names = ggmlq.torch.lora_(base, RANK, alpha=2 * RANK)
print(base[0])
packed = ggmlq.torch.packed_bytes(base)
trained = [p for p in base.parameters() if p.requires_grad]
adapters = sum(p.numel() * p.element_size() for p in trained)
print(f"weights: {packed >> 10} KiB packed + {adapters >> 10} KiB of adapters, {floats >> 10} KiB in float32")

before = base[0].base.weight.clone()
optimizer = torch.optim.AdamW(trained, lr=4e-3)
for step in range(STEPS + 1):
    x = torch.randn(128, WIDTH)
    with torch.no_grad():
        y = task(x)
    loss = torch.nn.functional.mse_loss(base(x), y)
    if step % 20 == 0:
        print(f"step {step:3}: loss {loss.item():.4f}")
    if not step:
        first = loss.item()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"the loss fell to {loss.item() / first:.0%}; layers with a branch: {', '.join(names)}")
print("blocks as before:", torch.equal(base[0].base.weight, before))
