"""Hosts: programs that hold GGUF weights in torch, whose products and rows come from here once switched on.

    import ggmlq.torch
    print(ggmlq.torch.hosts.transformers.enable())    # says what it replaced; disable() puts it back

switch.py        replaced attributes of other modules, put back in the end
transformers.py  from_pretrained(…, gguf_file=…): weights stay packed on a GPU and on a CPU
pretrained.py    from_gguf: a model of transformers and its tokenizer from a file alone, packed
diffusers.py     GGUFQuantizationConfig: layers of image and video models
comfyui.py       ComfyUI-GGUF, with LoRA patches beside the packed weights; its file is a node
vllm.py          the operators of vLLM's GGUF plugin

A host is imported when it is switched on, and nothing of it before.
"""

from __future__ import annotations

from . import comfyui, diffusers, transformers, vllm

__all__ = ["comfyui", "diffusers", "transformers", "vllm"]
