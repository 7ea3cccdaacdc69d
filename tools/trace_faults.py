"""Put faults into ggml's own kernels, and see that ``ggmlq trace`` finds and names them.

    python tools/trace_faults.py SOURCE WORK [--only N,N] [--json FILE]

SOURCE is a source folder of llama.cpp (llama-cpp-python's sdist has one in vendor/llama.cpp) of the same year
as the installed llama-cpp-python, whose other libraries are used as they are. It is copied into WORK and its
CPU backend built once, with all faults in it; the environment variable TRACE_FAULT chooses one. A source
without the text that a fault replaces is an error.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ggmlq.errors import GGMLQError
from ggmlq.testing.models import Shape, tiny_model
from ggmlq.trace import trace
from ggmlq.trace.libllama import locate_llama

QUANTS, CORE, HEADER = "arch/x86/quants.c", "ggml-cpu.c", "ggml-cpu-impl.h"
CHOICE = """
#include <stdlib.h>
static inline int trace_fault(int n) {
    static int chosen = -1;
    if (chosen < 0) { const char * e = getenv("TRACE_FAULT"); chosen = e ? atoi(e) : 0; }
    return chosen == n;
}
extern int trace_rows;
"""


@dataclass(frozen=True)
class Fault:
    """A mistake: its place in the source, the text that it replaces, and the products that it makes wrong."""

    number: int
    says: str
    file: str
    within: str  # the function
    old: str
    new: str
    type: str  # of the weights that it makes wrong; empty: any
    names: tuple[str, ...]  # of faults that are right answers
    only_one_row: bool = False
    op: str = "MUL_MAT"


ROLES = ("q", "k", "v", "out", "gate", "up", "down")
NB, ONE_CHUNK = "const int nb = n / QK_K;", "static void ggml_compute_forward_mul_mat_one_chunk("
FAULTS = [
    Fault(1, "the last block of K skipped", QUANTS, "void ggml_vec_dot_q6_K_q8_K(", NB,
          "const int nb = n / QK_K - trace_fault(1);", "q6_K", ("k-tail-dropped",)),
    Fault(2, "the sub-scale of one sub-block, at one row only", QUANTS, "void ggml_vec_dot_q5_K_q8_K(",
          "utmp[0] &= kmask1;\n", "utmp[0] &= kmask1;\n if (trace_fault(2) && trace_rows == 1) "
          "{ ((uint8_t *) utmp)[3] = ((uint8_t *) utmp)[2]; }\n", "q5_K",
          ("sub-scale-order", "sub-scale-unpack"), only_one_row=True),
    Fault(3, "two experts exchanged", CORE, "void ggml_compute_forward_mul_mat_id(",
          "(const char *) src0->data + cur_a * nb02;",
          "(const char *) src0->data + (trace_fault(3) && cur_a < 2 ? 1 - cur_a : cur_a) * nb02;", "",
          ("wrong-expert",), op="MUL_MAT_ID"),
    Fault(4, "eight accumulators in half", QUANTS, "void ggml_vec_dot_q8_0_q8_0(",
          "acc = _mm256_fmadd_ps( d, q, acc );", "acc = _mm256_fmadd_ps( d, q, acc );\n"
          "if (trace_fault(4)) { acc = _mm256_cvtph_ps(_mm256_cvtps_ph(acc, 0)); }", "q8_0",
          ("f16-accumulation",)),
    Fault(5, "the sum in half", QUANTS, "void ggml_vec_dot_q8_0_q8_0(", "sumf = hsum_float_8(acc);",
          "sumf = hsum_float_8(acc);\nif (trace_fault(5)) { sumf = _cvtsh_ss(_cvtss_sh(sumf, 0)); }", "q8_0",
          ("f16-accumulation",)),
    Fault(6, "minima never taken off", QUANTS, "void ggml_vec_dot_q5_K_q8_K(", "const float dmin = -y[i].d",
          "const float dmin = trace_fault(6) ? 0.0f : -y[i].d", "q5_K", ("min-ignored",)),
    Fault(7, "the scale of the neighbouring block", QUANTS, "void ggml_vec_dot_q8_0_q8_0(",
          "GGML_CPU_FP16_TO_FP32(x[ib].d) *",
          "GGML_CPU_FP16_TO_FP32(x[trace_fault(7) && ib ? ib - 1 : ib].d) *",
          "q8_0", ("scale-neighbour",)),
    Fault(8, "one element of a product, by a thousandth", CORE, ONE_CHUNK,
          "for (int cn = 0; cn < num_rows_per_vec_dot; ++cn) {",
          "if (trace_fault(8) && type == GGML_TYPE_Q5_K && iir0 <= 37 && iir0 + blck_0 > 37"
          " && i11 == ne11 - 1) { tmp[37 - iir0] *= 1.001f; }\n"
          "for (int cn = 0; cn < num_rows_per_vec_dot; ++cn) {", "q5_K", ()),
    Fault(10, "the high bits of codes lost", QUANTS, "void ggml_vec_dot_q5_K_q8_K(",
          "_mm256_loadu_si256((const __m256i*)x[i].qh);", "trace_fault(10) ? _mm256_setzero_si256() : "
          "_mm256_loadu_si256((const __m256i*)x[i].qh);", "q5_K", ("high-bits",)),
    Fault(11, "a crash", QUANTS, "void ggml_vec_dot_iq4_xs_q8_K(", NB,
          NB + " if (trace_fault(11)) { *(volatile int *) 8 = 1; }", "iq4_xs", ("died",)),
    Fault(12, "a hang", QUANTS, "void ggml_vec_dot_iq4_xs_q8_K(",
          "const block_iq4_xs * GGML_RESTRICT x = vx;",
          "const block_iq4_xs * GGML_RESTRICT x = vx; while (trace_fault(12)) { }", "iq4_xs", ("died",)),
]  # fmt: skip


def edited(text: str, fault: Fault) -> str:
    """A source with the fault in it, for TRACE_FAULT to choose."""
    start = text.index(fault.within)
    at = text.find(fault.old, start)
    if at < 0:
        raise SystemExit(f"fault {fault.number}: {fault.file} has no {fault.old!r} after {fault.within!r}")
    return text[:at] + fault.new + text[at + len(fault.old) :]


def build(source: Path, work: Path) -> Path:
    """Build the CPU backend with all faults; a folder with it and the other libraries."""
    tree, folder, libs = work / "source", work / "build", work / "libs"
    if not tree.exists():
        shutil.copytree(source, tree, ignore=shutil.ignore_patterns(".git", "*.gguf"))
    changed, original = tree / "ggml/src/ggml-cpu", source / "ggml/src/ggml-cpu"
    texts = {name: (original / name).read_text() for name in (QUANTS, CORE, HEADER)}
    for fault in FAULTS:
        texts[fault.file] = edited(texts[fault.file], fault)
    texts[HEADER] = texts[HEADER].replace("#pragma once", "#pragma once\n" + CHOICE, 1)
    within = texts[CORE].index("void ggml_compute_forward_mul_mat(\n")
    opened = texts[CORE].index("{", within) + 1
    texts[CORE] = texts[CORE][:opened] + "\n    trace_rows = (int) dst->src[1]->ne[1];" + texts[CORE][opened:]
    texts[CORE] += "\nint trace_rows = 0;\n"
    for name, text in texts.items():
        if (changed / name).read_text() != text:
            (changed / name).write_text(text)
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON", "-DGGML_NATIVE=ON"]
    options += [f"-DLLAMA_BUILD_{part}=OFF" for part in ("TESTS", "EXAMPLES", "SERVER", "TOOLS")]
    if not (folder / "CMakeCache.txt").exists():
        subprocess.run(["cmake", "-S", tree, "-B", folder, *options], check=True, stdout=subprocess.DEVNULL)
    command = ["nice", "cmake", "--build", folder, "--target", "ggml-cpu"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(libs, ignore_errors=True)
    shutil.copytree(locate_llama()[1].parent, libs, symlinks=True)
    for path in libs.glob("libggml-cpu*"):
        path.unlink()
    for path in (folder / "bin").glob("libggml-cpu*"):
        shutil.copy(path, libs / path.name, follow_symlinks=False)
    return libs


def verdict(fault: Fault, libs: Path, models: dict[str, Path]) -> dict[str, object]:
    """The answer of a trace to a fault, and whether it is right ("fine")."""
    os.environ["TRACE_FAULT"] = str(fault.number)
    model = models["moe" if fault.op == "MUL_MAT_ID" else "dense"]
    run = trace(model, lib=libs, tokens=13, generate=2, timeout=20, threads=2, verify=False, nodes="products")
    products, text = [], ""
    try:
        products += [product.without_arrays() for product in run]
    except GGMLQError as error:
        text = str(error)
    wrong = [p for p in products if p.verdict == "wrong"]
    alike = [p for p in products if p.type == (fault.type or p.type) and p.op == fault.op]
    due = [p for p in alike if not (fault.only_one_row and p.m > 1)]
    names = Counter(p.fault for p in wrong)
    if fault.names == ("died",):
        nodes = (run.died or {}).get("nodes", [])
        fine = len(nodes) == 1 and any(s["type"] == fault.type for s in nodes[0]["of"])
        return {"fault": fault.says, "type": fault.type, "named": text, "fine": fine}
    falsely = [p.node for p in wrong if p not in due]
    named = [p for p in wrong if p.fault in fault.names or not fault.names]
    return {
        "fault": fault.says, "type": fault.type, "due": len(due), "wrong": len(wrong), "falsely": falsely,
        "named": dict(names), "fine": bool(named) and not falsely, "notes": run.notes,
        "text": wrong[0].text if wrong else text,
    }  # fmt: skip


def main() -> int:
    """Print a line a fault; exit status 1 where one is not found and named."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("source", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", default="", help="numbers of faults")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    libs = build(args.source, args.work)
    types = [
        dict(zip(ROLES, ("q5_K", "q8_0", "q6_K", "iq4_xs", "q5_K", "q8_0", "q6_K"), strict=True)),
        dict(zip(ROLES, ("q8_0", "q5_K", "q5_K", "q6_K", "q6_K", "q5_K", "q8_0"), strict=True)),
    ]
    models = {
        "dense": tiny_model(args.work / "dense.gguf", types, Shape(width=512, hidden=1024)),
        "moe": tiny_model(args.work / "moe.gguf", types, Shape(width=512, hidden=512, experts=4)),
    }
    numbers = {int(n) for n in args.only.split(",") if n}
    verdicts = []
    for fault in FAULTS:
        if not numbers or fault.number in numbers:
            verdicts.append(verdict(fault, libs, models))
            print(json.dumps(verdicts[-1], ensure_ascii=False), flush=True)
    if args.json:
        args.json.write_text(json.dumps(verdicts, indent=1, ensure_ascii=False) + "\n")
    return 0 if all(answer["fine"] for answer in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
