#!/usr/bin/env python3
"""Write tests/golden/products.npz: products of llama.cpp, cut from a larger run.

    python tools/make_products.py FOLDER

FOLDER holds `ggml-cpu.npz` (x86 with AVX512-VNNI, one thread, weights as they are) and
`ggml-cuda-h200.npz` (NVIDIA H200), both of ggml commit d99724f2: arrays `<case>/w`, `<case>/x`,
`<case>/<TYPE>/blocks` and `<case>/<TYPE>/y<M>`, the product of those blocks with the first M rows
of x. Kept are the columns of y whose weights are rows of tests/golden/inputs.npz (`uniform` from
case 0, `normal` from case 1), so that the blocks need not be stored again, for every M.

The file: `<rows>/x`, `<backend>/<type>/<rows>/y<M>`, and `<type>/<rows>/blocks` where they are not
those of tests/golden/<type>.npz (iq1_m: encoded there with an importance matrix, here without).
Tests only read it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ggmlq.formats import FORMATS

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
CASES = {"uniform": "0", "normal": "1"}
BACKENDS = {"cpu": "ggml-cpu.npz", "cuda": "ggml-cuda-h200.npz"}


def columns(w: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The places of some rows of weights among all."""
    same = (w[:, None] == rows).all(axis=-1)
    assert same.any(axis=0).all(), "these are not the rows of tests/golden/inputs.npz"
    return same.argmax(axis=0)


def cut(folder: Path) -> dict[str, np.ndarray]:
    """All arrays of the file."""
    inputs = np.load(GOLDEN / "inputs.npz")
    runs: dict[str, Mapping[str, np.ndarray]] = {
        backend: np.load(folder / name) for backend, name in BACKENDS.items()
    }
    arrays = {}
    for rows, case in CASES.items():
        source = runs["cpu"]
        arrays[f"{rows}/x"] = source[f"{case}/x"]
        at = columns(source[f"{case}/w"], inputs[rows])
        for fmt in FORMATS.values():
            blocks = f"{case}/{fmt.name.upper()}/blocks"
            if f"{case}/{fmt.name.upper()}/y1" not in source:
                continue
            with np.load(GOLDEN / f"{fmt.name.lower()}.npz") as stored:
                if not np.array_equal(source[blocks][at], stored[f"{rows}/blocks"]):
                    arrays[f"{fmt.name}/{rows}/blocks"] = source[blocks][at]
            for backend, run in runs.items():
                for m in source[f"{case}/ms"]:
                    key = f"{case}/{fmt.name.upper()}/y{m}"
                    if key in run:
                        arrays[f"{backend}/{fmt.name}/{rows}/y{m}"] = run[key][:, at]
    return arrays


def main() -> int:
    """Cut the run and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="where the two files of the run lie")
    arrays = cut(parser.parse_args().folder)
    path = GOLDEN / "products.npz"
    np.savez_compressed(path, **arrays)
    print(f"wrote {path.name}: {len(arrays)} arrays, {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
