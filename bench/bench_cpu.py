"""Products on the CPU beside llama.cpp's CPU backend: same weights, same threads, turn by turn.

    python bench/bench_cpu.py [--quick] [--json PATH] [--threads 1 2] [--formats q4_0 q4_K] [--lib PATH]

Weights are 4096 × 4096. llama.cpp is measured with its plain and its repacked layouts; the best time counts.
Two roofs are measured in the same run: the rate of integer dot products in registers, and the rate at which
all threads read 512 MiB. ``in memory`` takes copies of the weights in turn, 300 MB together, so that no cache
holds them; it alternates with that reading. A run of some types or numbers of threads leaves the results of
others in the file.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ggmlq as gq
from ggmlq.base.system import cpu_model
from ggmlq.base.writing import write_whole
from ggmlq.cpu.machine.jit import jit
from ggmlq.cpu.machine.memory import reader
from ggmlq.cpu.machine.numba_names import cgutils, intrinsic
from ggmlq.cpu.machine.simd import BYTES, I64, INTS, Simd
from ggmlq.cpu.machine.target import target
from ggmlq.cpu.machine.workers import share_kernel
from ggmlq.formats import BlockFormat, Format
from ggmlq.llama import Bridge
from ggmlq.testing.machine import commit, machine

SIZE = 4096  # N and K
ROTATED = 300_000_000  # bytes of weights beyond any cache
ROOT = Path(__file__).parents[1]
HOT = ("q4_0", "q8_0", "mxfp4", "iq4_nl", "q4_K", "q5_K", "q6_K", "q2_K", "q3_K")
LEADING = ("q4_0", "q8_0", "iq4_nl", "mxfp4", "q4_K", "q5_K", "q6_K")
Record = dict[str, Any]


def main() -> None:
    """Measure, print a line a figure, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few formats, few repetitions")
    parser.add_argument(
        "--json", default=str(ROOT / "bench" / "results" / f"cpu_{maker()}.json"), metavar="PATH"
    )
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--formats", nargs="*", help="names; all that llama.cpp multiplies if not given")
    parser.add_argument("--lib", help="a libggml or a build folder; found as by ggmlq check if not given")
    args = parser.parse_args()
    formats = [gq.formats[name] for name in args.formats or (LEADING[:5:2] if args.quick else gq.formats)]
    now = commit()
    results: list[Record] = []
    with Bridge(args.lib) as bridge:
        for threads in args.threads:
            gq.set_num_threads(threads)
            roofs = {"peak_gops": peak(threads), "read_gbs": read_bandwidth()}
            print(
                f"{threads} threads: {roofs['peak_gops']:.0f} GOP/s, {roofs['read_gbs']:.1f} GB/s", flush=True
            )
            for fmt in formats:
                for record in format_records(fmt, bridge, threads, 2 if args.quick else 3):
                    if "in_memory" in record:  # other machines of a host take their share: the best counts
                        roofs["read_gbs"] = max(roofs["read_gbs"], read_bandwidth())
                        roofs["peak_gops"] = max(roofs["peak_gops"], peak(threads))
                    results.append({**record, **roofs, "commit": now})
                    show(results[-1])
            for record in results:
                if record["threads"] == threads:
                    record.update(roofs)
        peer = f"ggml {bridge.version}"
    path = Path(args.json)
    report = {"machine": machine(), "peer": peer, "size": SIZE, "results": merged(path, results)}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(report, indent=1) + "\n")


def maker() -> str:
    """The vendor of this CPU; each vendor has a file of results."""
    name = (cpu_model() or "other").lower()
    return next((vendor for vendor in ("intel", "amd") if vendor in name), "other")


def merged(path: Path, fresh: list[Record]) -> list[Record]:
    """Fresh results, and what the file holds of other types and numbers of threads."""
    earlier: list[Record] = json.loads(path.read_text())["results"] if path.exists() else []
    measured = {(r["threads"], r["format"]) for r in fresh}
    order = list(gq.formats)
    return sorted(
        [r for r in earlier if (r["threads"], r["format"]) not in measured] + fresh,
        key=lambda r: (r["threads"], order.index(r["format"])),
    )


def format_records(fmt: Format, bridge: Bridge, threads: int, rounds: int) -> Iterator[Record]:
    """The figures of one format."""
    if not isinstance(fmt, BlockFormat) or fmt.name in ("q8_1", "q8_K"):  # not weights in llama.cpp
        return
    # Quantized numbers, for the scales of random bytes can be denormal, which takes longer.
    some = np.random.default_rng(1).standard_normal((64, SIZE), np.float32)
    blocks = np.asarray(gq.quantize(some, fmt, np.ones(SIZE, np.float32)).raw)
    q = gq.QuantArray.from_bytes(np.tile(blocks, (SIZE // 64, 1)).tobytes(), fmt, (SIZE, SIZE))
    for m in (1, 512 if fmt.name in LEADING else 64):
        x = np.random.default_rng(0).standard_normal((m, SIZE), np.float32)
        yield {"format": fmt.name, "threads": threads, "m": m, **beside(x, q, bridge, threads, rounds)}
    if fmt.name in HOT:
        copies = [bytes(bytearray(q.raw)) for _ in range(-(-ROTATED // q.nbytes))]
        lasting = [gq.QuantArray.from_bytes(c, fmt, q.shape) for c in copies]
        x = np.random.default_rng(0).standard_normal((1, SIZE), np.float32)
        turns = [(in_memory(x, lasting), read_bandwidth()) for _ in range(6)]
        seconds = min(product for product, _ in turns)
        yield {
            "format": fmt.name, "threads": threads, "m": 1, "in_memory": True, "seconds": seconds,
            "gops": gops(x, seconds), "gbs": q.nbytes / seconds / 1e9,
            "beside_gbs": max(read for _, read in turns),  # what neighbours take changes within a run
        }  # fmt: skip


def beside(x: Any, q: gq.QuantArray, bridge: Bridge, threads: int, rounds: int) -> Record:
    """Times of ggmlq and of llama.cpp, measured in turns; the fastest of each counts."""
    out = np.empty((len(x), SIZE), np.float32)
    gq.linear(x, q, out=out)
    # Long enough that what a core sleeps off before the first does not count.
    repeats = max(2, min(100, 600 // len(x)))
    layouts, ours = {False: np.inf, True: np.inf}, np.inf
    for _ in range(rounds if len(x) < 512 else 2):
        for repack in list(layouts):
            try:
                measured = bridge.measure(x, q, threads=threads, repack=repack, time_runs=repeats)
            except gq.GGMLQError:
                del layouts[repack]
                continue
            layouts[repack] = min(layouts[repack], measured.fastest)
        time.sleep(0.1)  # llama.cpp's threads look for more work for a while, on the cores we need
        gq.linear(x, q, out=out)
        ours = min(ours, *(seconds(lambda: gq.linear(x, q, out=out)) for _ in range(repeats)))
    repacked = min(layouts, key=lambda layout: layouts[layout])
    return {
        "seconds": ours, "gops": gops(x, ours), "gbs": q.nbytes / ours / 1e9,
        "llama_seconds": layouts[repacked], "llama_repacked": repacked, "ratio": layouts[repacked] / ours,
    }  # fmt: skip


def in_memory(x: Any, copies: list[gq.QuantArray]) -> float:
    """Seconds of a product whose weights are in no cache: one round over all copies."""
    out = np.empty((1, SIZE), np.float32)
    for q in copies:
        gq.linear(x, q, out=out)
    return seconds(lambda: [gq.linear(x, q, out=out) for q in copies]) / len(copies)


def seconds(work: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def gops(x: Any, seconds: float) -> float:
    """Operations a second, in billions; a multiplication and an addition count as two."""
    return 2 * len(x) * SIZE * SIZE / seconds / 1e9


def show(r: Record) -> None:
    """Print one figure as a line."""
    theirs = f"{r['ratio']:6.2f} × llama.cpp" if "ratio" in r else "in memory"
    print(
        f"{r['format']:8} threads {r['threads']} M {r['m']:4} {r['gops']:7.1f} GOP/s "
        f"({r['gops'] / r['peak_gops']:4.0%})  {r['gbs']:6.1f} GB/s "
        f"({r['gbs'] / r.get('beside_gbs', r['read_gbs']):4.0%})  {theirs}",
        flush=True,
    )


# --- roofs ----------------------------------------------------------------------------------

CHAINS, STEPS = 16, 2_000_000


@intrinsic
def _dots(typing: Any, steps: Any) -> Any:
    """Independent chains of dot products in registers."""
    from numba import types

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        simd = Simd(builder, target())
        start = simd.splat(builder.trunc(args[0], INTS.element))
        chains = [cgutils.alloca_once_value(builder, start) for _ in range(CHAINS)]
        weights = simd.operand(builder.bitcast(start, BYTES))
        with cgutils.for_range(builder, args[0], intp=I64):
            for chain in chains:
                four = builder.trunc(args[0], INTS.element)
                builder.store(simd.dot(builder.load(chain), weights, four), chain)
        total = builder.load(chains[0])
        for chain in chains[1:]:
            total = builder.add(total, builder.load(chain))
        return simd.call("llvm.vector.reduce.add.v16i32", INTS.element, total)

    return types.int32(types.int64), emit


class SpinJob(NamedTuple):
    """The arguments of the kernel ``_spin``."""

    steps: int
    unlikely: int  # a sum that is not expected


class ReadJob(NamedTuple):
    """The arguments of the kernel ``_read_parts``."""

    memory: int  # its address
    unlikely: int  # a sum that is not expected


spin_job, read_job = reader(SpinJob), reader(ReadJob)


@jit
def _spin(arguments: int, first: int, stop: int) -> None:
    """Run chains of dot products, once for each part of the work."""
    sums, job = np.zeros(1, np.int32), spin_job(arguments)
    for _ in range(first, stop):
        sums[0] += _dots(job.steps)
    if job.unlikely == sums[0]:  # keeps the sums alive
        sums[0] = 0


def peak(threads: int) -> float:
    """GOP/s of dot products in registers, all threads."""
    lots = 8 * threads
    best = min(seconds(lambda: share_kernel(_spin, SpinJob(STEPS // 20, 0), lots)) for _ in range(6))
    return 2 * 64 * CHAINS * (STEPS // 20) * lots / best / 1e9


@intrinsic
def _read(typing: Any, address: Any, nbytes: Any) -> Any:
    """Read all bytes of a range, 256 at a time."""
    from numba import types

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        simd = Simd(builder, target())
        sums = [cgutils.alloca_once_value(builder, INTS([0] * 16)) for _ in range(4)]
        with cgutils.for_range(builder, builder.udiv(args[1], I64(256)), intp=I64) as loop:
            at = builder.add(args[0], builder.mul(loop.index, I64(256)))
            for i, total in enumerate(sums):
                part = simd.load(builder.add(at, I64(64 * i)), INTS)
                builder.store(builder.xor(builder.load(total), part), total)
        whole = builder.load(sums[0])
        for total in sums[1:]:
            whole = builder.xor(whole, builder.load(total))
        return simd.call("llvm.vector.reduce.add.v16i32", INTS.element, whole)

    return types.int32(types.int64, types.int64), emit


@jit
def _read_parts(arguments: int, first: int, stop: int) -> None:
    """Read pages of a megabyte."""
    sums, job = np.zeros(1, np.int32), read_job(arguments)
    sums[0] = _read(job.memory + (first << 20), (stop - first) << 20)
    if job.unlikely == sums[0]:
        sums[0] = 0


def read_bandwidth() -> float:
    """GB/s of reading memory, all threads."""
    memory = np.ones(512 << 20, np.uint8)
    job = ReadJob(memory.ctypes.data, -1)
    best = min(seconds(lambda: share_kernel(_read_parts, job, 512)) for _ in range(4))
    return memory.nbytes / best / 1e9


if __name__ == "__main__":
    main()
