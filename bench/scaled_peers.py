"""``scaled_linear`` on a Hopper card beside DeepGEMM and cuBLASLt, in turns in one process.

    python bench/scaled_peers.py --json peers.json
    python bench/scaled_peers.py --shapes 4096x7168x16384,64x7168x2048 --sustained

Peers are those that can be imported: ``deep_gemm`` (the wheel sgl-deep-gemm; it wants nvcc, CUDA_HOME) and
torch, whose ``_scaled_mm`` and ``_int_mm`` are cuBLASLt's. All multiply the same codes under the same scales
into bfloat16 (``_int_mm``: int32, without scales). Every product is judged before its time counts.

Times are those of a product in a CUDA graph of several: the best and the median of replays after a rest of
0.3 s, three such turns each; with --sustained also the median of the last half second of two seconds of
replays. Up to 64 rows weights are rotated over more than 150 MB.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # of a script as of a module of the folder

import ggmlq as gq
from bench import hopper
from bench.hopper import OUTSIDE, Replays, empty, operands, wrong
from bench.on_card import in_turns
from ggmlq.cuda.machine import device
from ggmlq.testing.machine import commit, machine

SHAPES = {
    "fp8": [*hopper.SHAPES, *((m, n, k) for n, k in hopper.FEW for m in (1, 8, 64))],
    "int8": [*hopper.INTEGERS, (64, 7168, 2048)],
}
TURNS, ROTATED = 3, 150_000_000
Work = Callable[[int], Any]  # product with the weights of that number


class TorchReplays(Replays):
    """The same of what torch launches."""

    def __init__(self, work: Work, count: int, copies: int) -> None:
        import torch

        self.copies = copies
        own = torch.cuda.Stream()
        with torch.cuda.stream(own):
            for i in range(count):
                work(i)
            own.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=own):
                for i in range(copies):
                    work(i % count)
        self.torch, self.own = torch, own
        self.stream = device.cupy().cuda.ExternalStream(own.cuda_stream)
        self.times(0)

    def replay(self) -> None:
        with self.torch.cuda.stream(self.own):
            self.graph.replay()


def tensor(array: Any, kind: str = "") -> Any:
    """An array of CuPy as torch sees it."""
    import torch

    made = torch.from_dlpack(array)
    return made.view(getattr(torch, kind)) if kind else made


def deep_gemm(given: list[Any], y: Any) -> Work:
    """DeepGEMM: scales a row and 128 columns, and of 128 × 128 blocks."""
    import deep_gemm as library

    out = tensor(y.view(device.cupy().uint16), "bfloat16")
    x = given[0][0]
    a = tensor(x.codes, "float8_e4m3fn"), library.get_mn_major_tma_aligned_tensor(tensor(x.scales.copy()))
    of_w = [(tensor(w.codes, "float8_e4m3fn"), tensor(w.scales.copy())) for _, w in given]
    return lambda i: library.fp8_gemm_nt(a, of_w[i], out)


def cublas(given: list[Any], y: Any) -> Work:
    """What torch calls, with the same scales: cuBLASLt."""
    import torch

    out, x = tensor(y.view(device.cupy().uint16), "bfloat16"), given[0][0]
    a, of_a = tensor(x.codes, "float8_e4m3fn"), tensor(x.scales.copy()).t().contiguous().t()
    of_w = [(tensor(w.codes, "float8_e4m3fn").t(), tensor(w.scales.copy()).t()) for _, w in given]
    multiply = partial(torch._scaled_mm, out_dtype=torch.bfloat16, out=out)
    return lambda i: multiply(a, of_w[i][0], scale_a=of_a, scale_b=of_w[i][1])


def cublas_int8(given: list[Any], y: Any) -> Work:
    """Integers, likewise; no scales, int32 out."""
    import torch

    a, of_w = tensor(given[0][0].codes), [tensor(w.codes).t() for _, w in given]
    return lambda i: torch._int_mm(a, of_w[i])


def contenders(case: str, given: list[Any], y: Any) -> dict[str, Any]:
    """Graphs of all that run, each judged."""
    count, copies = len(given), max(len(given), 20 if len(y) <= 128 else 4)
    made: dict[str, Any] = {}
    ours = [partial(gq.scaled_linear, x, w, out=y) for x, w in given]
    peers = {"deep_gemm": deep_gemm, "cuBLASLt": cublas} if case == "fp8" else {"cuBLASLt": cublas_int8}
    for name in ("ggmlq", *peers):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                y.view(device.cupy().uint16).fill(0x7FC0)
                work = None if name == "ggmlq" else peers[name](given, y)
                found = ours[0]() if work is None else work(0)
                device.cupy().cuda.runtime.deviceSynchronize()
                if case == "fp8" or work is None:
                    error = wrong(y, *given[0])
                    assert error <= 5e-4, f"wrong by {error:.2e}"
                else:
                    check_integers(found, *given[0])
                made[name] = Replays(ours, copies) if work is None else TorchReplays(work, count, copies)
        except Exception as failed:  # one that fails does not lose the others
            print(f"  {name}: {type(failed).__name__}: {str(failed)[:200]}", flush=True)
    return made


def check_integers(found: Any, x: Any, w: Any) -> None:
    """Some rows, exactly."""
    cp = device.cupy()
    rows = [0, len(x) - 1]
    want = x.codes[rows].astype(cp.float64) @ w.codes.astype(cp.float64).T
    assert bool((cp.from_dlpack(found)[rows].astype(cp.float64) == want).all()), "wrong integers"


def measured(case: str, m: int, n: int, k: int, sustained: bool) -> list[dict[str, Any]]:
    """A line a contender."""
    shape = f"{m}x{n}x{k}"
    count = max(1, -(-ROTATED // (n * k))) if m <= 64 else 1
    given = [operands(case, m, n, k, seed) for seed in range(count)]
    y = empty(m, n, OUTSIDE)
    graphs = contenders(case, given, y)
    rested = in_turns(graphs, TURNS, 0.03, 0.3, 12)
    found = []
    for name, graph in graphs.items():
        us, best = statistics.median(rested[name]) * 1e6, min(rested[name]) * 1e6
        figure = {
            "case": case,
            "shape": shape,
            "of": name,
            "us": us,
            "best us": best,
            "T/s": 2e-6 * m * n * k / us,
        }
        told = f"{case} {shape:16} {name:10} {us:9.2f} us (best {best:.2f})  {figure['T/s']:6.0f} T/s"
        if name != "ggmlq" and "ggmlq" in rested:
            figure["ours is faster by"] = us / (statistics.median(rested["ggmlq"]) * 1e6)
            told += f"   {figure['ours is faster by']:.3f}"
        if sustained:
            late = graph.times(2.0)
            figure["sustained us"] = statistics.median(late[-len(late) // 4 :]) * 1e6
            told += f"   sustained {2e-6 * m * n * k / figure['sustained us']:6.0f} T/s"
        print(told, flush=True)
        found.append(figure)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shapes", help="as 4096x4096x4096,64x7168x2048; of FP8")
    parser.add_argument("--integers", help="likewise, of int8")
    parser.add_argument("--sustained", action="store_true", help="also two seconds of replays each")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further shape after so many")
    parser.add_argument("--json")
    options = parser.parse_args()
    begun, figures = time.perf_counter(), []
    asked = {"fp8": options.shapes, "int8": options.integers}
    chosen = {
        case: [tuple(map(int, shape.split("x"))) for shape in given.split(",")] if given else []
        for case, given in asked.items()
    }
    if not any(chosen.values()):
        chosen = SHAPES
    for case, shapes in chosen.items():
        for shape in shapes:
            if time.perf_counter() - begun < options.seconds:
                figures += measured(case, *shape, options.sustained)
    if options.json:
        Path(options.json).write_text(
            json.dumps({**machine(), "commit": commit(), "figures": figures}, indent=1)
        )
    return 0


if __name__ == "__main__":
    hopper.np.seterr(all="ignore")
    sys.exit(main())
