"""Attention on a GPU beside torch's scaled_dot_product_attention, in turns in one process.

    python bench/attention_peers.py [--types f16,q8_0,q4_0] [--draw 18] [--seed 5] [--json FILE]
                                    [--cells 32/8x128:24x12000,28/4x128:1x5000] [--copies put:q8_0:4096x1024]

Cells are drawn by a seed (drawn.py): heads, heads of keys, columns, and queries, the last ones of the
positions, causal. Queries and results are float16 on both sides. Calls are recorded in a CUDA graph, each on
a cache of its own, of 300 MB together, so that keys and values come from memory. torch has float16 keys and
values, and its mask is causal where there are as many queries as positions, or one query; otherwise it
computes without a mask, more.
Copies are rows that gq.put encodes, from float32, and rows that gq.take decodes, likewise: rows x columns.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # of a script as of a module of the folder

import ggmlq as gq
from bench import drawn
from ggmlq.base.text import meant
from ggmlq.base.writing import write_whole
from ggmlq.cuda.driver import device
from ggmlq.testing.machine import commit, machine

ROTATED = 300 << 20  # bytes of caches
MOST, LEAST = 1 << 27, 5  # scores that the oracle computes; replays
PADDED = 32  # positions of a cache are a multiple
BYTES_A_SECOND, RATE = 4.46e12, 0.8e15  # of an H200
COPY = re.compile(r"(?P<op>put|take):(?P<type>\w+):(?P<rows>\d+)x(?P<columns>\d+)")


def recorded(calls: list[Callable[[], Any]]) -> tuple[Any, Any, list[Any]]:
    """A graph of calls, its stream, and their results."""
    cp = device.cupy()
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        calls[0]()
        stream.synchronize()
        stream.begin_capture()
        results = [call() for call in calls]
        graph = stream.end_capture()
    return graph, stream, results


def torch_graph(q: Any, caches: list[Any], causal: bool) -> tuple[Any, Any, list[Any]]:
    """Torch's graph of the same calls."""
    import torch

    cp = device.cupy()
    q, kernel = torch.from_dlpack(q), torch.nn.functional.scaled_dot_product_attention
    tensors = [tuple(torch.from_dlpack(x.dequantize(np.float16)) for x in pair) for pair in caches]
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(3):
            kernel(q, *tensors[0], is_causal=causal, enable_gqa=True)
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            results = [kernel(q, *pair, is_causal=causal, enable_gqa=True) for pair in tensors]

    def replay() -> None:
        with torch.cuda.stream(stream):  # a graph is replayed on the current one
            graph.replay()

    return replay, cp.cuda.Stream.from_external(stream), [tensors, *results]


def microseconds(launch: Callable[[], Any], stream: Any, seconds: float) -> float:
    """The time of a graph on a stream, the median of several replays."""
    cp = device.cupy()
    first, last = cp.cuda.Event(), cp.cuda.Event()
    times: list[float] = []
    launch()
    while sum(times) < seconds * 1e6 or len(times) < LEAST:
        first.record(stream)
        launch()
        last.record(stream)
        last.synchronize()
        times.append(cp.cuda.get_elapsed_time(first, last) * 1e3)
    return float(np.median(times))


def figures(q: Any, pair: tuple[Any, Any], positions: int, options: argparse.Namespace) -> dict[str, Any]:
    """Times of a case, and how far its result is off."""
    _, heads, queries, width = q.shape
    nbytes = sum(x.nbytes for x in pair)
    count = max(2, min(64, ROTATED // nbytes))
    caches = [tuple(x.copy()[:, :, :positions] for x in pair) for _ in range(count)]
    graph, stream, results = recorded([partial(attend, q, *both) for both in caches])
    time = microseconds(partial(graph.launch, stream), stream, options.seconds) / len(caches)
    off = None
    if heads * queries * positions <= MOST:
        want = gq.reference.attention(q.get(), *(x.to("cpu")[:, :, :positions] for x in pair), causal=True)
        off = float(gq.nmse(results[0].get(), want))
    peer = None
    if options.torch and pair[0].format.name == "f16":
        replay, stream, results = torch_graph(q, caches, queries == positions)
        peer = round(microseconds(replay, stream, options.seconds) / len(caches), 2)
    operations = 4 * heads * (queries * positions - queries * (queries - 1) / 2) * width
    floor = max((nbytes + 4 * q.size) / BYTES_A_SECOND, operations / RATE) * 1e6
    return {
        "us": round(time, 2), "floor": round(floor, 2), "torch": peer, "off": off,
        "GB/s": round(nbytes / time / 1e3), "TFLOP/s": round(operations / time / 1e6, 1),
    }  # fmt: skip


def attend(q: Any, k: Any, v: Any) -> Any:
    """The call that is timed."""
    return gq.attention(q, k, v, causal=True, dtype=np.float16)


def cell_of(words: str) -> drawn.Attention:
    """The cell of words such as 32/8x128:24x12000."""
    heads, kv_heads, width, queries, positions = map(int, re.split("[/x:]", words))
    return drawn.Attention(queries, positions, heads, kv_heads, width)


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each cell and type."""
    cp = device.cupy()
    rng = np.random.default_rng(options.seed)
    cells = [cell_of(words) for words in options.cells.split(",")] if options.cells else None
    for cell in cells or drawn.attention(options.seed, options.draw):
        queries, positions, heads, kv_heads, width = cell
        q = cp.asarray(rng.standard_normal((1, heads, queries, width)), np.float16)
        shape = 1, kv_heads, -(-positions // PADDED) * PADDED, width
        floats = [cp.asarray(rng.standard_normal(shape, np.float32)) for _ in "kv"]
        for name in options.types.split(","):
            k, v = (gq.quantize(x, name) for x in floats)
            yield {"cell": str(cell), **cell._asdict(), "type": name} | figures(q, (k, v), positions, options)
            cp.get_default_memory_pool().free_all_blocks()


def copies(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each kind of copies; ids are in no order, and half of an array's rows have one."""
    cp = device.cupy()
    rng = np.random.default_rng(options.seed)
    for op, name, count, columns in options.copies:
        some = rng.standard_normal((64, columns), np.float32)
        q = gq.empty((2 * count, columns), name, "cuda")
        some_blocks = gq.quantize(some, name).raw.reshape(64, -1)
        q.raw.reshape(2 * count, -1)[...] = cp.asarray(repeated(some_blocks, 2 * count))
        ids, x = cp.asarray(rng.permutation(2 * count)[:count]), cp.asarray(repeated(some, count))
        nbytes = x.nbytes + q.nbytes // 2
        pairs = [(q.copy(), x.copy()) for _ in range(max(2, ROTATED // (nbytes + q.nbytes // 2)))]
        graph, stream, _ = recorded([partial(copied, op, ids, *pair) for pair in pairs])
        time = microseconds(partial(graph.launch, stream), stream, options.seconds) / len(pairs)
        yield {
            "op": op, "type": name, "rows": count, "columns": columns, "us": round(time, 2),
            "floor": round(nbytes / BYTES_A_SECOND * 1e6, 2),
        }  # fmt: skip
        cp.get_default_memory_pool().free_all_blocks()


def repeated(rows: Any, count: int) -> Any:
    """So many rows: some rows again and again."""
    return np.resize(rows, (count, *rows.shape[1:]))


def copied(op: str, ids: Any, q: Any, x: Any) -> Any:
    """The call of a copy that is timed."""
    return gq.put(q, ids, x, check=False) if op == "put" else gq.take(q, ids, check=False)


def copies_of(words: str) -> list[tuple[str, str, int, int]]:
    """Copies of a list with commas: op, type, rows and columns of each."""
    some = []
    for word in filter(None, words.split(",")):
        fields = COPY.fullmatch(word)
        if not fields or not (count := int(fields["rows"])):
            raise argparse.ArgumentTypeError(
                f"{word!r} is not put or take, a type, and rows x columns; write it as put:q8_0:4096x1024"
            )
        name, columns = fields["type"], int(fields["columns"])
        if name not in gq.formats:
            way = meant(name, gq.formats, "list(gq.formats) has all types")
            raise argparse.ArgumentTypeError(f"{word!r}: there is no type {name!r}; {way}")
        if not columns or columns % (block := gq.formats[name].block_size):
            raise argparse.ArgumentTypeError(
                f"{word!r}: {name} blocks hold {block}, rows have {columns}; take a multiple of {block}"
            )
        some.append((fields["op"], name, count, columns))
    return some


def main(arguments: list[str] | None = None) -> int:
    """Print a row for each case."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--types", default="f16,q8_0,q4_0")
    parser.add_argument("--cells", help="as 32/8x128:24x12000, instead of drawn ones")
    drawn.add_options(parser, 18)
    parser.add_argument(
        "--copies", type=copies_of, metavar="OP:TYPE:ROWSxCOLUMNS,…",
        default=[], help="copies to time, too",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--torch", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    results = []
    print(f"--seed {options.seed}", flush=True)
    for row in chain(rows(options), copies(options)):
        results.append(row)
        print(row, flush=True)
    print(*drawn.shares_of_attention(results), sep="\n")
    if options.json:
        facts = {**machine(), "commit": commit(), "seed": options.seed, "rows": results}
        write_whole(options.json, json.dumps(facts, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
