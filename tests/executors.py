"""What tests do to workers, as functions that workers can import: this folder is on their path too."""

from __future__ import annotations

import os
import signal
from importlib import import_module
from pathlib import Path

import numpy as np

import ggmlq as gq


def sabotage(folder: str, times: int, name: str = "") -> None:
    """From now on this process dies in the middle of writing a tensor, so many times in all processes."""
    from ggmlq.gguf.writer import Place

    run = import_module("ggmlq.convert.run")  # gq.convert.run is a function

    write, fill = Place.write, run.fill
    busy = []

    def half(self, at, chunks):
        if name in busy[-1]:
            for i in range(times):
                try:
                    os.close(os.open(f"{folder}/{i}", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                first = bytes(getattr(chunk := next(iter(chunks)), "data", chunk))
                write(self, at, iter([first[: len(first) // 2]]))
                os.kill(os.getpid(), signal.SIGKILL)
        write(self, at, chunks)

    def noted(task):
        busy[:] = [task.step.name]
        return fill(task)

    Place.write = half
    noted.__module__, noted.__qualname__ = fill.__module__, fill.__qualname__
    run.fill = noted


def model(path: Path, rng: np.random.Generator, byteorder: str = "little") -> dict[str, np.ndarray]:
    """A small model of everything: matrices, experts, a norm, integers, one without elements."""
    matrix = rng.standard_normal((96, 512), np.float32)
    tensors = {f"blk.{i}.ffn_up.weight": matrix * (i + 1) for i in range(4)}
    tensors["blk.0.ffn_up_exps.weight"] = rng.standard_normal((3, 20, 256), np.float32)
    tensors["blk.0.attn_norm.weight"] = rng.standard_normal(5000).astype(np.float32)
    tensors["blk.0.ffn_down.weight"] = rng.standard_normal((64, 96)).astype(np.float16)
    tensors["ids"] = rng.integers(0, 99, 77, np.int32)
    tensors["nothing"] = np.zeros((0, 32), np.float32)
    gq.save(path, tensors, {"general.architecture": "llama"}, byteorder=byteorder)
    return tensors


def importance(tensors: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Of some of them, experts each their own."""
    wide = {name: x for name, x in tensors.items() if x.ndim > 1 and x.size}
    return {
        name: rng.random((x.shape[0] if x.ndim > 2 else 1) * x.shape[-1]).astype(np.float32) + 0.01
        for name, x in wide.items()
    }
