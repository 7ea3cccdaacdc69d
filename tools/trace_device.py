"""llama.cpp built for a device: its kernels judged on cases, and all products of small models that run there.

    python tools/trace_device.py SOURCE WORK [--backend cuda|vulkan|cpu …] [--define NAME=VALUE] [--jobs N]
        [--steps build,check,trace] [--buffer AMX] [--models DIR] [--seconds S] [--into DIR]

SOURCE is a source folder of llama.cpp (llama-cpp-python's sdist has one in vendor/llama.cpp); the build
lies in WORK/build. `ggmlq check` gets all types, alone and with experts, or those that a layout of weights
has (``--buffer``); `ggmlq trace` three small models written here (once, where DIR is named), whose weights
are of all types that are encoded without an importance matrix. What is wrong is kept in DIR as npz files
for `ggmlq diagnose` and `ggmlq check --replay`. A step that does not end within S seconds of the start is
cut off and told. Exit 0 where all is right.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ggmlq as gq
from ggmlq.llama import Bridge
from ggmlq.llama.library import is_weight_type
from ggmlq.testing.models import Shape, tiny_model

START = time.monotonic()
TARGETS = ("llama", "llama-completion")
OFF = ("TESTS", "EXAMPLES", "SERVER", "APP")
ATTENTION, NETWORK = ("q", "k", "v", "out"), ("gate", "up", "down")  # roles of a layer's weights
NODE = "60"  # seconds for a node
TAIL = 3000  # characters of a log that failed
SHOWN, TOLD = 6, 300  # nodes of a run that are not right, and characters of what is said of each
PROMPTS = ({"tokens": 13, "generate": 2}, {"tokens": 1}, {"tokens": 512})
CACHES: tuple[Sequence[str], ...] = (
    ("--flash", "off"), ("--flash", "on"), ("--flash", "on", "--cache", "q8_0"),
    ("--flash", "on", "--cache", "q4_0"),
)  # fmt: skip


def say(text: str) -> None:
    """With the time since the start."""
    print(f"[{time.monotonic() - START:6.1f} s] {text}", flush=True)


class Runner:
    """Commands that end within what is left of the time, and the folder for what they write."""

    def __init__(self, seconds: float, into: Path) -> None:
        self.seconds, self.into = seconds, into

    @property
    def left(self) -> float:
        """Seconds until all has to be done."""
        return max(0.1, self.seconds - (time.monotonic() - START))

    def run(self, words: Sequence[str | Path]) -> tuple[int | None, str, str]:
        """Its status (None: cut off), and what it printed on stdout and stderr."""
        try:
            done = subprocess.run(words, capture_output=True, timeout=self.left, check=False)
        except subprocess.TimeoutExpired as error:
            return None, (error.stdout or b"").decode(errors="replace"), "cut off: the time is over"
        return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def build(runner: Runner, source: Path, made: Path, backend: str, defines: Sequence[str], jobs: int) -> None:
    """Shared libraries, and one command of llama.cpp."""
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON", "-DLLAMA_OPENSSL=OFF"]
    options += [f"-DLLAMA_BUILD_{part}=OFF" for part in OFF]
    options += [] if backend == "cpu" else [f"-DGGML_{backend.upper()}=ON"]
    options += [f"-D{define}" for define in defines]
    steps: dict[str, Sequence[str | Path]] = {
        "configure": ["cmake", "-G", "Ninja", "-S", source, "-B", made, *options],
        "build": ["cmake", "--build", made, "-j", str(jobs), "--target", *TARGETS],
    }
    for name, words in steps.items():
        status, out, err = runner.run(words)
        (runner.into / f"{name}.log").write_text(out + err)
        say(f"{name}: status {status}")
        if status:
            raise SystemExit(f"{' '.join(map(str, words))}\n{out[-TAIL:]}{err[-TAIL:]}")
        if status is None:
            raise SystemExit("the build took too long; give it more --seconds")


# --- kernels on cases -----------------------------------------------------------------------


def check(runner: Runner, made: Path, device: str, buffer: str | None, jobs: int) -> bool:
    """All types, each in a process of its own, alone and with experts; in a layout alone, on all data."""
    types = [fmt.name for fmt in gq.formats.values() if is_weight_type(fmt)]
    ways = [["--buffer", buffer, "--data", "all"]] if buffer else [[], ["--experts", "edges"]]
    asked = [(name, way) for way in ways for name in types]

    def one(case: tuple[str, list[str]]) -> dict[str, Any]:
        name, way = case
        experts = "--experts" in way
        kind = "experts" if experts else "plain"
        words = [
            sys.executable, "-m", "ggmlq", "check", "--lib", made, "--device", device, "--types", name,
            "--json", "--save", runner.into / "wrong" / f"{kind}-{name}", *way,
        ]  # fmt: skip
        status, out, err = runner.run(words)
        try:
            cases = json.loads(out)["cases"]
        except ValueError:
            cases = []
        return {"type": name, "experts": experts, "status": status, "said": err[-TAIL:], "cases": cases}

    with ThreadPoolExecutor(jobs) as pool:
        found = list(pool.map(one, asked))
    (runner.into / "check.json").write_text(json.dumps(found))
    fine = True
    for row in found:
        fine &= row["status"] == 0 or all(case["verdict"] == "not run" for case in row["cases"])
        print(_told(row), flush=True)
    return fine


def _told(row: dict[str, Any]) -> str:
    """A type in a line: verdicts, arithmetics by the number of rows, the worst distance."""
    cases = row["cases"]
    verdicts = Counter(case["verdict"] for case in cases)
    used = Counter(f"{_rows(case['m'])}: {case['arithmetic']}" for case in cases if case["arithmetic"])
    worst = max((c["nmse"] for c in cases if isinstance(c["nmse"], float)), default=float("nan"))
    faults = Counter(case["fault"] for case in cases if case["fault"])
    said = "" if cases else row["said"].strip().splitlines()[-1:]
    kind = "MUL_MAT_ID" if row["experts"] else "MUL_MAT"
    return (
        f"{kind:10} {row['type']:8} status {row['status']} {dict(verdicts)} {dict(used)} worst {worst:.1e} "
        f"{dict(faults) or ''} {said}"
    )


def _rows(m: int) -> str:
    return "1" if m == 1 else "2-8" if m <= 8 else "9-"


# --- real runs ------------------------------------------------------------------------------


def models(folder: Path, types: Collection[str]) -> Iterator[Path]:
    """Dense, with experts, and with a shared expert: each type that the library has in each operation.

    One type comes after the other, among the weights of attention and again among those of the network, which
    are the ones that have experts.
    """
    kinds = [fmt for fmt in gq.formats.values() if is_weight_type(fmt) and fmt.name in types]
    able = [fmt.name for fmt in kinds if fmt.can_quantize and not fmt.needs_imatrix]
    n = -(-len(able) // len(NETWORK))
    layers = [
        {
            role: able[(i * len(roles) + j) % len(able)]
            for roles in (ATTENTION, NETWORK)
            for j, role in enumerate(roles)
        }
        for i in range(n)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    shapes = {
        "dense": Shape(width=512, hidden=1024, layers=n, heads=8),
        "experts": Shape(width=512, hidden=256, layers=n, heads=8, experts=8),
        "shared": Shape(width=256, hidden=256, layers=n, experts=8, shared=True),
    }
    for seed, (name, shape) in enumerate(shapes.items(), 1):
        path = folder / f"{name}.gguf"
        yield path if path.is_file() else tiny_model(path, layers, shape, seed=seed)


def trace(runner: Runner, made: Path, folder: Path, jobs: int, threads: int) -> bool:
    """Each model with prompts of several lengths and caches of several types; and a command of llama.cpp."""
    runs: list[tuple[str, list[str | Path]]] = []
    with Bridge(made) as bridge:
        types = bridge.types
    for path in models(folder, types):
        begin = [path, "--lib", made, "--threads", str(threads), "--timeout", NODE, "--json"]
        for i, prompt in enumerate(PROMPTS):
            for cache in CACHES if i == 0 else CACHES[:2]:
                words = [str(word) for key, value in prompt.items() for word in (f"--{key}", value)]
                name = "-".join([path.stem, str(prompt["tokens"]), *(w for w in cache if w[0] != "-")])
                saved = ["--save", runner.into / "wrong" / name, "--html", runner.into / f"{name}.html"]
                runs.append((name, [*begin, *words, *cache, *saved]))
        if any(made.glob("**/libllama-completion-impl*")):
            tool = ["--", "llama-completion", "-p", "Hello", "-n", "4", "-no-cnv", "--no-warmup"]
            runs.append((f"{path.stem}-completion", [*begin, *tool]))

    def one(run: tuple[str, list[str | Path]]) -> tuple[str, int | None, str, str]:
        return (run[0], *runner.run([sys.executable, "-m", "ggmlq", "trace", *run[1]]))

    fine = True
    with ThreadPoolExecutor(jobs) as pool:
        for name, status, out, err in pool.map(one, runs):
            (runner.into / f"{name}.jsonl").write_text(out)
            products = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
            verdicts = Counter(p["verdict"] for p in products)
            where = Counter(p.get("buffer") for p in products)
            print(
                f"{name}: status {status}, {dict(verdicts)} in {dict(where)}; {err.strip()[-400:]}",
                flush=True,
            )
            for p in [p for p in products if p["verdict"] != "ok"][:SHOWN]:
                print(f"    {p['node']} {p['type']} m={p.get('m')}: {p['verdict']}, {p['text'][:TOLD]}")
            fine &= status == 0
    return fine


def main() -> int:
    """Build, check, trace."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--backend", default="cuda", help="of ggml, as in GGML_CUDA (default: cuda)")
    parser.add_argument("--device", help="as ggml names it (default: CUDA0 and the like)")
    parser.add_argument("--define", action="append", default=[], metavar="NAME=VALUE", help="for CMake")
    parser.add_argument("--steps", default="build,check,trace")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--into", type=Path, help="for what was found (default: WORK/found)")
    parser.add_argument("--buffer", help="check: weights in this layout, as AMX")
    parser.add_argument("--models", type=Path, help="trace: where the models lie (default: WORK/models)")
    args = parser.parse_args()
    device = args.device or ("CPU" if args.backend == "cpu" else f"{args.backend.upper()}0")
    runner = Runner(args.seconds, args.into or args.work / "found")
    runner.into.mkdir(parents=True, exist_ok=True)
    made, steps, fine = args.work / "build", args.steps.split(","), True
    if "build" in steps:
        build(runner, args.source, made, args.backend, args.define, args.jobs)
    if "check" in steps:
        fine &= check(runner, made, device, args.buffer, args.jobs)
        say("checked")
    if "trace" in steps:
        fine &= trace(runner, made, args.models or args.work / "models", max(1, args.jobs // 2), 2)
        say("traced")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
