"""Judge llama.cpp on a device: build it, check its kernels on cases, trace all products of small models.

    python tools/trace_device.py SOURCE WORK [--backend cuda|vulkan|cpu …] [--define NAME=VALUE] [--jobs N]
        [--steps build,check,trace] [--buffer AMX] [--models DIR] [--seconds S] [--into DIR]

SOURCE is a source folder of llama.cpp (llama-cpp-python's sdist has one in vendor/llama.cpp); the build
lies in WORK/build. `ggmlq check` gets all types, alone and with experts, or those that a layout of weights
has (``--buffer``). `ggmlq trace` gets three small models, written here (once, where DIR is named), whose
weights are of all types that are encoded without an importance matrix. Wrong products are saved in DIR as npz
files for `ggmlq diagnose` and `ggmlq check --replay`. A step that does not end within S seconds of the start
is cut off, with a message. The exit status is 0 where all is right.
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
WRONG, TEXT = 6, 300  # printed: nodes of a run that are not right, and characters of each explanation
PROMPTS = ({"tokens": 13, "generate": 2}, {"tokens": 1}, {"tokens": 512})
CACHES: tuple[Sequence[str], ...] = (
    ("--flash", "off"), ("--flash", "on"), ("--flash", "on", "--cache", "q8_0"),
    ("--flash", "on", "--cache", "q4_0"),
)  # fmt: skip
Command = Sequence[str | Path]


def log(text: str) -> None:
    """Print a line with the time since the start."""
    print(f"[{time.monotonic() - START:6.1f} s] {text}", flush=True)


class Runner:
    """Commands that end within the time that is left, and the folder for their files."""

    def __init__(self, seconds: float, into: Path) -> None:
        self.seconds, self.into = seconds, into

    def run(self, command: Command) -> tuple[int | None, str, str]:
        """Run a command; its status (None: cut off), stdout and stderr."""
        seconds = max(0.1, self.seconds - (time.monotonic() - START))
        try:
            done = subprocess.run(command, capture_output=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired as error:
            return None, (error.stdout or b"").decode(errors="replace"), "cut off: the time is over"
        return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")

    def ggmlq(self, *words: str | Path) -> tuple[int | None, str, str]:
        """Run a command of ggmlq."""
        return self.run([sys.executable, "-m", "ggmlq", *words])


def build(
    runner: Runner, source: Path, folder: Path, backend: str, defines: Sequence[str], jobs: int
) -> None:
    """Build shared libraries, and one command of llama.cpp."""
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON", "-DLLAMA_OPENSSL=OFF"]
    options += [f"-DLLAMA_BUILD_{part}=OFF" for part in OFF]
    options += [] if backend == "cpu" else [f"-DGGML_{backend.upper()}=ON"]
    options += [f"-D{define}" for define in defines]
    steps: dict[str, Command] = {
        "configure": ["cmake", "-G", "Ninja", "-S", source, "-B", folder, *options],
        "build": ["cmake", "--build", folder, "-j", str(jobs), "--target", *TARGETS],
    }
    for name, command in steps.items():
        status, out, err = runner.run(command)
        (runner.into / f"{name}.log").write_text(out + err)
        log(f"{name}: status {status}")
        if status:
            raise SystemExit(f"{' '.join(map(str, command))}\n{out[-TAIL:]}{err[-TAIL:]}")
        if status is None:
            raise SystemExit("the build took too long; give it more --seconds")


# --- kernels on cases -----------------------------------------------------------------------


def check(runner: Runner, lib: Path, device: str, buffer: str | None, jobs: int) -> bool:
    """Check each type in a process of its own, alone and with experts; in a layout alone, on all data."""
    types = [fmt.name for fmt in gq.formats.values() if is_weight_type(fmt)]
    options = [["--buffer", buffer, "--data", "all"]] if buffer else [[], ["--experts", "edges"]]

    def check_type(case: tuple[list[str], str]) -> dict[str, Any]:
        """The results of a type."""
        more, name = case
        experts = "--experts" in more
        saved = runner.into / "wrong" / f"{'experts' if experts else 'plain'}-{name}"
        status, out, err = runner.ggmlq(
            "check", "--lib", lib, "--device", device, "--types", name, "--json", "--save", saved, *more
        )
        try:
            cases = json.loads(out)["cases"]
        except ValueError:
            cases = []
        return {"type": name, "experts": experts, "status": status, "said": err[-TAIL:], "cases": cases}

    with ThreadPoolExecutor(jobs) as pool:
        rows = list(pool.map(check_type, [(more, name) for more in options for name in types]))
    (runner.into / "check.json").write_text(json.dumps(rows))
    for row in rows:
        print(summary(row), flush=True)
    return all(row["status"] == 0 or skipped(row) for row in rows)


def skipped(row: dict[str, Any]) -> bool:
    """True for a type of which no case could be run."""
    return bool(row["cases"]) and all(case["verdict"] == "not run" for case in row["cases"])


def summary(row: dict[str, Any]) -> str:
    """A type in a line: verdicts, arithmetics by the number of rows, the worst distance."""
    cases = row["cases"]
    verdicts = Counter(case["verdict"] for case in cases)
    used = Counter(f"{_rows(case['m'])}: {case['arithmetic']}" for case in cases if case["arithmetic"])
    worst = max((c["nmse"] for c in cases if isinstance(c["nmse"], float)), default=float("nan"))
    faults = Counter(case["fault"] for case in cases if case["fault"])
    error = "" if cases else row["said"].strip().splitlines()[-1:]
    kind = "MUL_MAT_ID" if row["experts"] else "MUL_MAT"
    return (
        f"{kind:10} {row['type']:8} status {row['status']} {dict(verdicts)} {dict(used)} worst {worst:.1e} "
        f"{dict(faults) or ''} {error}"
    )


def _rows(m: int) -> str:
    return "1" if m == 1 else "2-8" if m <= 8 else "9-"


# --- real runs ------------------------------------------------------------------------------


def models(folder: Path, types: Collection[str]) -> Iterator[Path]:
    """Models that are dense, with experts, and with a shared expert, with each type in each operation.

    One type comes after the other, among the weights of attention and again among those of the network, which
    are the ones that have experts.
    """
    formats = [fmt for fmt in gq.formats.values() if is_weight_type(fmt) and fmt.name in types]
    able = [fmt.name for fmt in formats if fmt.can_quantize and not fmt.needs_imatrix]
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


def commands(lib: Path, folder: Path, into: Path, threads: int) -> Iterator[tuple[str, Command]]:
    """Traces by name: models with several prompts and types of caches, and llama.cpp's own command."""
    with Bridge(lib) as bridge:
        types = bridge.types
    for path in models(folder, types):
        first = [path, "--lib", lib, "--threads", str(threads), "--timeout", NODE, "--json"]
        for i, prompt in enumerate(PROMPTS):
            for cache in CACHES if i == 0 else CACHES[:2]:
                words = [str(word) for key, value in prompt.items() for word in (f"--{key}", value)]
                name = "-".join([path.stem, str(prompt["tokens"]), *(w for w in cache if w[0] != "-")])
                save = ["--save", into / "wrong" / name, "--html", into / f"{name}.html"]
                yield name, [*first, *words, *cache, *save]
        if any(lib.glob("**/libllama-completion-impl*")):
            tool = ["--", "llama-completion", "-p", "Hello", "-n", "4", "-no-cnv", "--no-warmup"]
            yield f"{path.stem}-completion", [*first, *tool]


def trace(runner: Runner, lib: Path, folder: Path, jobs: int, threads: int) -> bool:
    """Trace all models, print a line a run and its wrong products; True where all are right."""
    runs = dict(commands(lib, folder, runner.into, threads))
    right = True
    with ThreadPoolExecutor(jobs) as pool:
        results = pool.map(lambda command: runner.ggmlq("trace", *command), runs.values())
        for name, (status, out, err) in zip(runs, results, strict=True):
            (runner.into / f"{name}.jsonl").write_text(out)
            products = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
            verdicts = Counter(p["verdict"] for p in products)
            buffers = Counter(p.get("buffer") for p in products)
            error = err.strip()[-400:]
            print(f"{name}: status {status}, {dict(verdicts)} in {dict(buffers)}; {error}", flush=True)
            for p in [p for p in products if p["verdict"] != "ok"][:WRONG]:
                print(f"    {p['node']} {p['type']} m={p.get('m')}: {p['verdict']}, {p['text'][:TEXT]}")
            right &= status == 0
    return right


def main() -> int:
    """Build, check and trace as the options ask; the exit status."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("source", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--backend", default="cuda", help="of ggml, as in GGML_CUDA (default: cuda)")
    parser.add_argument("--device", help="as ggml names it (default: CUDA0 and the like)")
    parser.add_argument("--define", action="append", default=[], metavar="NAME=VALUE", help="for CMake")
    parser.add_argument("--steps", default="build,check,trace")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--into", type=Path, help="for results (default: WORK/found)")
    parser.add_argument("--buffer", help="check: weights in this layout, as AMX")
    parser.add_argument("--models", type=Path, help="trace: folder of the models (default: WORK/models)")
    args = parser.parse_args()
    device = args.device or ("CPU" if args.backend == "cpu" else f"{args.backend.upper()}0")
    runner = Runner(args.seconds, args.into or args.work / "found")
    runner.into.mkdir(parents=True, exist_ok=True)
    folder, steps, right = args.work / "build", args.steps.split(","), True
    if "build" in steps:
        build(runner, args.source, folder, args.backend, args.define, args.jobs)
    if "check" in steps:
        right &= check(runner, folder, device, args.buffer, args.jobs)
        log("checked")
    if "trace" in steps:
        right &= trace(runner, folder, args.models or args.work / "models", max(1, args.jobs // 2), 2)
        log("traced")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
