"""The main job on the CPU: quantize a layer, write it to a GGUF file and open that, multiply, check."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time

import numpy as np

import ggmlq as gq
from ggmlq.text import size, table

FORMATS = ("f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "nvfp4", "mxfp4")
BOUND = 1e-10  # of a product in float32, against float64 on the same weights


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1024, help="N, rows of the layer (default 1024)")
    parser.add_argument("--columns", type=int, default=2048, help="K, a multiple of 64 (default 2048)")
    parser.add_argument("--tokens", type=int, default=32, help="M, rows of activations (default 32)")
    args = parser.parse_args()
    rng = np.random.default_rng(7)
    w = rng.normal(0, 0.02, (args.rows, args.columns)).astype(np.float32)
    x = rng.standard_normal((args.tokens, args.columns), np.float32)

    print(f"ggmlq {gq.__version__}: a layer [{args.rows}, {args.columns}] times {args.tokens} tokens\n")
    report, good = [], True
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = os.path.join(folder, "layer.gguf")
        gq.save(path, {name: gq.quantize(w, name) for name in FORMATS}, {"general.name": "a layer"})
        written = os.path.getsize(path)
        start = time.perf_counter()
        file = gq.open(path)
        opened = time.perf_counter() - start
    for name, q in file.items():
        start = time.perf_counter()
        y = x @ q.T
        elapsed = time.perf_counter() - start
        exact = gq.reference.linear(x, q)
        off = float(np.max(gq.nmse(y, exact, axis=0)))
        good &= off <= BOUND
        report.append(
            [name, f"{q.format.bits_per_weight:g}", size(q.nbytes), f"{gq.nmse(y, x @ w.T):.1e}",
             f"{off:.1e}", "right" if off <= BOUND else "WRONG", f"{elapsed * 1e3:.1f}"]
        )  # fmt: skip
    header = ["format", "bits", "size", "format error", "kernel error", "verdict", "ms"]
    print(table(header, report))
    print(
        "\nformat error: NMSE of x @ q.T against the unquantized weights, the price of the format\n"
        "kernel error: worst NMSE of a column against float64 on the same quantized weights\n"
    )
    print(
        f"the layers lay in a GGUF file of {size(written)}, opened in {opened * 1e3:.1f} ms; "
        "its first block of q4_0:"
    )
    block = file["q4_0"].blocks[0, 0]
    print(f"  d  {block['d']}\n  qs {' '.join(f'{byte:02x}' for byte in block['qs'])}")
    print(f"\n{'all products are right' if good else 'A PRODUCT IS WRONG'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
