"""Denoising steps of diffusers' own transformers, of the sizes of Flux, SD 3.5 and Wan, with made-up weights.

    python bench/bench_diffusers.py [--models flux,sd35,wan] [--formats q4_0,q4_K,q5_K,q8_0] [--blocks 2]
                                    [--ways plain,lora,compiled,offload] [--tokens 4096] [--steps 10]
                                    [--device cuda] [--seconds 100] [--json FILE]

Each transformer has its real widths and so many of its blocks. A step is the transformer and the scheduler's
Euler step, in bfloat16 on a GPU, ten of them: the first one, and the median of the second half. Dense layers
stand beside diffusers' layers for GGUF, by its own path and switched over to ours. Rows that blocks of a K
type do not fit take q5_0, as converters give them.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_peers

import ggmlq as gq
import ggmlq.torch as gt
from ggmlq.base.writing import write_whole
from ggmlq.testing.machine import commit, machine

RANK = 16
TARGETS = ["to_q", "to_k", "to_v"]  # of adapters


def main() -> None:
    """Measure, and print a line for each figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", default="flux,sd35,wan", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--formats", default="q4_0,q4_K,q5_K,q8_0", help="of the weights")
    parser.add_argument("--ways", default="plain,lora,compiled,offload", help=f"of {', '.join(WAYS)}")
    parser.add_argument("--blocks", type=int, default=2, help="of each kind in a transformer")
    parser.add_argument("--tokens", type=int, default=4096, help="of the image or video")
    parser.add_argument("--steps", type=int, default=10, help="from noise on")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=100, help="after which no further figure is begun")
    parser.add_argument("--json", type=Path, help="write the figures and what they were measured on")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    end, results = time.monotonic() + args.seconds, []
    for model in args.models.split(","):
        for result in figures(model, args):
            results.append(result)
            print(*(f"{name} {value}" for name, value in result.items()), sep=", ", flush=True)
            if time.monotonic() > end:
                break
    if args.json:
        where = {"machine": machine(), "commit": commit(), "torch": torch.__version__}
        write_whole(args.json, json.dumps({**where, "results": results}, indent=1) + "\n")


def figures(name: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The times of a transformer's layers in each way."""
    for way in args.ways.split(","):
        base = 0.0
        for layers in ("dense", *args.formats.split(",")):
            for path in ("dense",) if layers == "dense" else ("ours", "diffusers"):
                make, inputs = MODELS[name](args.blocks, args.tokens)
                model = made(make, args.device, layers)
                if path == "ours":
                    gt.hosts.diffusers.enable()
                try:
                    run: Any = WAYS[way](model, args.device)
                    there = {key: to(x, args.device) for key, x in inputs.items()}
                    times = denoised(run, there, args.steps)
                finally:
                    if path == "ours":
                        gt.hosts.diffusers.disable()
                usual = float(np.median(times[args.steps // 2 :]))
                base = base or usual
                yield {
                    "model": name, "way": way, "layers": layers, "path": path, "first ms": round(times[0], 1),
                    "ms": round(usual, 2), "of dense": round(base / usual, 3),
                    "MiB at most": peak(args.device),
                }  # fmt: skip
                del model, run
                torch._dynamo.reset()


def denoised(run: Any, inputs: dict[str, torch.Tensor], steps: int) -> list[float]:
    """Milliseconds of each step, from noise on."""
    scheduler = import_module("diffusers").FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(steps)
    latents, times = inputs["hidden_states"], []
    with torch.no_grad():
        for at in scheduler.timesteps:
            _wait(latents)
            start = time.perf_counter()
            timestep = at.to(latents.device).expand(1)
            noise = run(**inputs | {"hidden_states": latents, "timestep": timestep}, return_dict=False)[0]
            latents = scheduler.step(noise, at, latents, return_dict=False)[0].to(noise.dtype)
            _wait(latents)
            times.append((time.perf_counter() - start) * 1e3)
    assert latents.isfinite().all(), "a step is no longer finite"
    return times


def _wait(x: torch.Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def peak(device: str) -> int:
    """MiB that torch has held at most since the last time; 0 on a CPU."""
    if device == "cpu":
        return 0
    most: int = torch.cuda.max_memory_allocated() >> 20
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return most


def dtype_on(device: Any) -> torch.dtype:
    """bfloat16, or float32 on a CPU, where torch's own products of bfloat16 take minutes."""
    return torch.float32 if torch.device(device).type == "cpu" else torch.bfloat16


def to(x: torch.Tensor, device: str) -> torch.Tensor:
    """A tensor on a device, floats in the dtype there."""
    return x.to(device, dtype_on(device) if x.is_floating_point() else x.dtype)


# --- ways ------------------------------------------------------------------------------------------


def with_adapter(model: Any, device: str) -> Any:
    """A transformer with a LoRA beside its queries, keys and values."""
    model.add_adapter(
        import_module("peft").LoraConfig(r=RANK, target_modules=TARGETS, init_lora_weights=False)
    )
    return model.to(device)


def offloaded(model: Any, device: str) -> Any:
    """A transformer whose blocks come to the GPU one by one."""
    onload, host = torch.device(device), torch.device("cpu")
    model.enable_group_offload(onload, host, offload_type="block_level", num_blocks_per_group=1)
    return model


def compiled(model: Any, device: str) -> Any:
    """A transformer whose blocks are compiled."""
    if model._repeated_blocks:
        model.compile_repeated_blocks(fullgraph=True)
    else:
        model.compile(fullgraph=True)
    return model


WAYS: dict[str, Callable[[Any, str], Any]] = {
    "plain": lambda model, device: model, "lora": with_adapter, "compiled": compiled, "offload": offloaded,
}  # fmt: skip


# --- transformers -------------------------------------------------------------------------------------


def made(make: Callable[[], Any], device: str, layers: str) -> Any:
    """A transformer with weights of random numbers; its linear layers dense or in blocks."""
    with torch.device("meta"):
        model = make().eval()
    model = model.to_empty(device=device).to(dtype_on(device)).requires_grad_(False)
    for part in model.modules():  # buffers that come from a config are made again
        for key, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[key] = torch.zeros_like(buffer)
    for value in model.parameters():
        torch.nn.init.normal_(value, std=1 / max(value.shape[-1], 1) ** 0.5)
    if layers != "dense":
        pack(model, layers, device)
    return model


def pack(model: Any, name: str, device: str) -> None:
    """Replace linear layers inside of blocks by those that diffusers makes of a GGUF file."""
    utils, kinds = (
        import_module("diffusers.quantizers.gguf.utils"),
        import_module("gguf").GGMLQuantizationType,
    )
    inside = [(path, part) for path, part in model.named_modules() if "blocks." in path]
    for path, part in inside:
        if type(part) is not torch.nn.Linear:
            continue
        n, k = part.weight.shape
        fmt = gq.formats[name if k % gq.formats[name].block_size == 0 else "q5_0"]
        layer = utils.GGUFLinear(k, n, part.bias is not None, compute_dtype=dtype_on(device), device="meta")
        raw = torch.from_numpy(torch_peers.blocks(fmt.name, n, k).raw.copy()).to(device)
        layer.weight = utils.GGUFParameter(raw, quant_type=kinds(fmt.id))
        layer.bias = part.bias
        model.set_submodule(path, layer.requires_grad_(False))


Made = tuple[Callable[[], Any], dict[str, torch.Tensor]]


def flux(blocks: int, tokens: int) -> Made:
    """FLUX.1 dev, with as many blocks of one stream as of two; 512 tokens of text."""
    kind = import_module("diffusers").FluxTransformer2DModel
    return partial(kind, num_layers=blocks, num_single_layers=blocks, guidance_embeds=True), {
        "hidden_states": torch.randn(1, tokens, 64), "encoder_hidden_states": torch.randn(1, 512, 4096),
        "pooled_projections": torch.randn(1, 768), "guidance": torch.ones(1),
        "img_ids": torch.zeros(tokens, 3), "txt_ids": torch.zeros(512, 3),
    }  # fmt: skip


def sd35(blocks: int, tokens: int) -> Made:
    """Stable Diffusion 3.5 large; 333 tokens of text."""
    kind, side = import_module("diffusers").SD3Transformer2DModel, 2 * round(tokens**0.5)
    make = partial(
        kind, num_layers=blocks, num_attention_heads=38, caption_projection_dim=2432, pos_embed_max_size=192,
        qk_norm="rms_norm", in_channels=16, joint_attention_dim=4096, pooled_projection_dim=2048,
    )  # fmt: skip
    return make, {
        "hidden_states": torch.randn(1, 16, side, side), "encoder_hidden_states": torch.randn(1, 333, 4096),
        "pooled_projections": torch.randn(1, 2048),
    }  # fmt: skip


def wan(blocks: int, tokens: int) -> Made:
    """Wan 2.1 of 14B; 512 tokens of text."""
    side = 2 * round((tokens / 4) ** 0.5)
    return partial(import_module("diffusers").WanTransformer3DModel, num_layers=blocks), {
        "hidden_states": torch.randn(1, 16, 4, side, side), "encoder_hidden_states": torch.randn(1, 512, 4096)
    }  # fmt: skip


MODELS: dict[str, Callable[[int, int], Made]] = {"flux": flux, "sd35": sd35, "wan": wan}

if __name__ == "__main__":
    main()
