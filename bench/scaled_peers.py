"""``scaled_linear`` on a Hopper card beside DeepGEMM and cuBLASLt, in turns in one process.

    python bench/scaled_peers.py --json peers.json        # cells of a seed: drawn.py
    python bench/scaled_peers.py --cells 4096x7168x16384,64x7168x2048 --codes fp8 --sustained
    python bench/scaled_peers.py --part 2/4 --json 2.json    # on several cards, and --join: parts.py

Peers are those that can be imported: ``deep_gemm`` (DeepGEMM from source, for the torch that is there, or the
wheel sgl-deep-gemm; it wants nvcc, CUDA_HOME) and torch, whose ``_scaled_mm`` and ``_int_mm`` are cuBLASLt's.
Ours and DeepGEMM's, from 2.4 on, start early, before the product in front has ended (PDL). All multiply the
same codes under the same scales into bfloat16 (``_int_mm``: int32, without scales). Every product is judged
before its time counts.

Times are those of a product in a CUDA graph of several: the best and the median of replays after a rest of
0.3 s, three such turns each; with --sustained also the median of the last half second of two seconds of
replays. Up to 64 rows weights are rotated over more than 150 MB.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # of a script as of a module of the folder

import ggmlq as gq
from bench import drawn, hopper, parts
from bench.hopper import OUTSIDE, Replays, empty, operands, wrong
from bench.on_card import in_turns
from ggmlq.base.writing import write_whole
from ggmlq.cuda.driver import device
from ggmlq.testing.machine import commit, machine

CODES, STEP = ("fp8", "int8"), 128  # K is a multiple of the columns of a scale
TURNS, ROTATED = 3, 150_000_000
Work = Callable[[int], Any]  # product with the weights of that number


class TorchReplays(Replays):
    """A CUDA graph of calls that torch launches."""

    def __init__(self, work: Work, count: int, copies: int) -> None:
        import torch

        self.copies = copies
        torch_stream = torch.cuda.Stream()
        with torch.cuda.stream(torch_stream):
            for i in range(count):
                work(i)
            torch_stream.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=torch_stream):
                for i in range(copies):
                    work(i % count)
        self.torch, self.torch_stream = torch, torch_stream
        self.stream = device.cupy().cuda.Stream.from_external(torch_stream)
        self.times(0)

    def replay(self) -> None:
        with self.torch.cuda.stream(self.torch_stream):
            self.graph.replay()


def tensor(array: Any, kind: str = "") -> Any:
    """An array of CuPy as torch sees it."""
    import torch

    result = torch.from_dlpack(array)
    return result.view(getattr(torch, kind)) if kind else result


def deep_gemm(sets: list[Any], y: Any) -> Work:
    """A product by DeepGEMM: scales for a row and 128 columns of x, and for blocks of 128 × 128 of w."""
    import deep_gemm as library

    if early := getattr(library, "set_pdl", None):
        early(True)
    if old := getattr(library, "gemm_fp8_fp8_bf16_nt", None):  # of version 1, which is Python alone
        multiply, aligned = old, library.get_col_major_tma_aligned_tensor
    else:
        multiply, aligned = library.fp8_gemm_nt, library.get_mn_major_tma_aligned_tensor
    out = tensor(y.view(device.cupy().uint16), "bfloat16")
    x = sets[0][0]
    a = tensor(x.codes, "float8_e4m3fn"), aligned(tensor(x.scales.copy()))
    w_tensors = [(tensor(w.codes, "float8_e4m3fn"), tensor(w.scales.copy())) for _, w in sets]
    return lambda i: multiply(a, w_tensors[i], out)


def versions() -> dict[str, str]:
    """The peers that can be imported, and which they are."""
    libraries = {}
    for name in ("deep_gemm", "torch"):
        try:
            library = importlib.import_module(name)
        except Exception as failed:
            print(f"  {name}: {type(failed).__name__}: {str(failed)[:200]}", flush=True)
            continue
        early = ", starts early" * hasattr(library, "set_pdl")
        libraries[name] = str(getattr(library, "__version__", "1, Python alone")) + early
    return libraries


def cublas(sets: list[Any], y: Any) -> Work:
    """A product by cuBLASLt, which torch calls, with the same scales."""
    import torch

    out, x = tensor(y.view(device.cupy().uint16), "bfloat16"), sets[0][0]
    a, a_scales = tensor(x.codes, "float8_e4m3fn"), tensor(x.scales.copy()).t().contiguous().t()
    w_tensors = [(tensor(w.codes, "float8_e4m3fn").t(), tensor(w.scales.copy()).t()) for _, w in sets]
    multiply = partial(torch._scaled_mm, out_dtype=torch.bfloat16, out=out)
    return lambda i: multiply(a, w_tensors[i][0], scale_a=a_scales, scale_b=w_tensors[i][1])


def cublas_int8(sets: list[Any], y: Any) -> Work:
    """A product of integers by cuBLASLt, without scales, into int32."""
    import torch

    a, w_tensors = tensor(sets[0][0].codes), [tensor(w.codes).t() for _, w in sets]
    return lambda i: torch._int_mm(a, w_tensors[i])


def contenders(case: str, sets: list[Any], y: Any) -> dict[str, Any]:
    """A graph for each contender that runs, after its result was judged."""
    count, copies = len(sets), max(len(sets), 20 if len(y) <= 128 else 4)
    graphs: dict[str, Any] = {}
    ours = [partial(gq.scaled_linear, x, w, out=y) for x, w in sets]
    peers = {"deep_gemm": deep_gemm, "cuBLASLt": cublas} if case == "fp8" else {"cuBLASLt": cublas_int8}
    for name in ("ggmlq", *peers):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                y.view(device.cupy().uint16).fill(0x7FC0)
                work = None if name == "ggmlq" else peers[name](sets, y)
                result = ours[0]() if work is None else work(0)
                device.cupy().cuda.runtime.deviceSynchronize()
                if case == "fp8" or work is None:
                    error = wrong(y, *sets[0])
                    assert error <= 5e-4, f"wrong by {error:.2e}"
                else:
                    check_integers(result, *sets[0])
                graphs[name] = Replays(ours, copies) if work is None else TorchReplays(work, count, copies)
        except Exception as failed:  # one that fails does not lose the others
            print(f"  {name}: {type(failed).__name__}: {str(failed)[:200]}", flush=True)
    return graphs


def check_integers(y: Any, x: Any, w: Any) -> None:
    """Compare some rows exactly with float64."""
    cp = device.cupy()
    rows = [0, len(x) - 1]
    want = x.codes[rows].astype(cp.float64) @ w.codes.astype(cp.float64).T
    assert bool((cp.from_dlpack(y)[rows].astype(cp.float64) == want).all()), "wrong integers"


def measured(case: str, m: int, n: int, k: int, sustained: bool) -> list[dict[str, Any]]:
    """The figures of a shape, a line for each contender."""
    shape = f"{m}x{n}x{k}"
    count = max(1, -(-ROTATED // (n * k))) if m <= 64 else 1
    sets = [operands(case, m, n, k, seed) for seed in range(count)]
    y = empty(m, n, OUTSIDE)
    graphs = contenders(case, sets, y)
    rested = in_turns(graphs, TURNS, 0.03, 0.3, 12)
    figures = []
    for name, graph in graphs.items():
        us, best = statistics.median(rested[name]) * 1e6, min(rested[name]) * 1e6
        figure: dict[str, Any] = {
            "case": case,
            "shape": shape,
            "of": name,
            "us": us,
            "best us": best,
            "T/s": 2e-6 * m * n * k / us,
        }
        text = f"{case} {shape:16} {name:10} {us:9.2f} us (best {best:.2f})  {figure['T/s']:6.0f} T/s"
        if name != "ggmlq" and "ggmlq" in rested:
            figure["ours is faster by"] = us / (statistics.median(rested["ggmlq"]) * 1e6)
            text += f"   {figure['ours is faster by']:.3f}"
        if sustained:
            late = graph.times(2.0)
            figure["sustained us"] = statistics.median(late[-len(late) // 4 :]) * 1e6
            text += f"   sustained {2e-6 * m * n * k / figure['sustained us']:6.0f} T/s"
        print(text, flush=True)
        figures.append(figure)
    return figures


def summary(figures: list[dict[str, Any]]) -> Iterator[drawn.Share]:
    """The shares of cells where ours is ahead of each peer, rested and sustained."""
    ours = {(f["case"], f["shape"]): f for f in figures if f["of"] == "ggmlq"}
    return drawn.summary(
        (
            f"{f['case']} beside {f['of']}, {how}",
            cell_of(f["shape"]),
            f[name] / ours[f["case"], f["shape"]][name],
        )
        for f in figures
        for how, name in (("rested", "us"), ("sustained", "sustained us"))
        if f["of"] != "ggmlq" and name in f and (f["case"], f["shape"]) in ours
    )


def cell_of(text: str) -> drawn.Product:
    """The cell of words such as 64x7168x2048."""
    return drawn.Product(*map(int, text.split("x")))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cells", help="as 4096x4096x4096,64x7168x2048: M x N x K, instead of drawn ones")
    drawn.add_options(parser, 20)
    parser.add_argument("--codes", default=",".join(CODES), help="%(default)s")
    parser.add_argument("--sustained", action="store_true", help="also two seconds of replays each")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further shape after so many")
    parser.add_argument("--json")
    parts.add_options(parser)
    options = parser.parse_args()
    for facts in [parts.joined(options.join)] if options.join else run(options):
        if options.json and facts["figures"]:
            write_whole(options.json, json.dumps(facts, indent=1))
    print(*summary(facts["figures"]), sep="\n")
    return parts.status(facts)


def run(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The figures of this run's part and facts about the machine, again after each shape."""
    begun = time.perf_counter()
    shapes = [cell_of(text) for text in options.cells.split(",")] if options.cells else None
    shapes = shapes or drawn.products(options.seed, options.draw, STEP)
    print("" if options.cells else f"--seed {options.seed}", flush=True)
    cases = [(case, shape) for case in options.codes.split(",") for shape in shapes]
    facts: dict[str, Any] = {**machine(), "commit": commit(), "peers": versions()}
    facts |= {"seed": None if options.cells else options.seed, "part": options.part}
    facts |= {"figures": [], "failed": []}
    yield facts
    for case, shape in parts.of_part(cases, options.part):
        if time.perf_counter() - begun > options.seconds:
            return
        try:
            facts["figures"] += measured(case, *shape, options.sustained)
        except Exception as failed:  # what was timed stays
            print(f"  {case} {shape}: {type(failed).__name__}: {str(failed)[:200]}", flush=True)
            facts["failed"].append(f"{case} {shape}")
        yield facts


if __name__ == "__main__":
    hopper.np.seterr(all="ignore")
    sys.exit(main())
