"""The report of the command ``ggmlq doctor`` on this machine: packages, CPU, GPU and libggml.

It has nothing to do with the doctor of wrong kernels, ``ggmlq/faults``.
"""

from __future__ import annotations

import importlib
import platform
from importlib import metadata
from typing import TYPE_CHECKING, Any

from . import __version__
from .base import missing
from .base.text import size, table
from .dispatch.listing import in_words, summary
from .dispatch.problems import ORDINARY
from .errors import GGMLQError

if TYPE_CHECKING:
    from .llama import Bridge

REQUIRED = ("numpy", "numba", "tqdm")
USUAL = ("q4_0", "q8_0", "q4_K", "q6_K")  # formats of the report
OPTIONAL = ("cupy-cuda13x", "cupy-cuda12x", "numba-cuda", "llama-cpp-python", "gguf", *missing.EXTRAS)


def examine() -> dict[str, Any]:
    """All facts on this machine, ready for JSON; ``problems`` lists what keeps ggmlq from working."""
    packages = {name: _version(name) for name in (*REQUIRED, *OPTIONAL)}
    problems = [f"{name} is not installed; pip install {name}" for name in REQUIRED if packages[name] is None]
    cpu, gpu, ggml = _cpu(), _gpu(), _libggml()
    if "failed" in cpu:
        problems.append(
            f"Numba cannot be imported ({cpu.pop('failed')}); what is not compiled yet needs it; it reads "
            ".numba_config.yaml of the current folder and NUMBA_* of the environment; mend these, or move to "
            "another folder"
        )
    return {
        "ggmlq": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": packages,
        "cpu": cpu,
        "gpu": gpu,
        "auto": _auto(),
        "auto_cpu": _auto_cpu(),
        "libggml": ggml,
        "problems": problems,
        "advice": missing.advice(packages, missing.driver(), _cublas(gpu), "error" not in ggml),
    }


def describe(report: dict[str, Any]) -> str:
    """The report as text."""
    packages = [[name, version or "not installed"] for name, version in report["packages"].items()]
    cpu, gpu, ggml = report["cpu"], report["gpu"], report["libggml"]
    if "error" in cpu:
        cpu_lines = [f"  {cpu['error']}"]
    else:
        features = [f"{name} {'yes' if has else 'no'}" for name, has in cpu["features"].items()]
        compiled_for = "" if cpu["name"] == cpu["compiled_for"] else f", compiled for {cpu['compiled_for']}"
        cpu_lines = [f"  {cpu['name']}, {cpu['threads']} threads{compiled_for}", f"  {', '.join(features)}"]
        unit = [] if cpu["matrix_unit"] is None else [f"matrix unit: {cpu['matrix_unit']}"]
        cpu_lines.append("  " + "; ".join([f"integer dot products: {cpu['dot']}", *unit]))
        cpu_lines += _pack_lines(cpu["prebuilt"])
        cpu_lines += [f"  {line}" for line in _auto_lines({"card": "this CPU", **report["auto_cpu"]})]
        compiled = cpu["compiled"]
        cpu_lines.append(
            f"  compiled code: not kept, {compiled['problem']}"
            if compiled["path"] is None
            else f"  compiled code: {compiled['kernels']} kernels, {size(compiled['bytes'])}, "
            f"{compiled['path']}" + (f" ({compiled['problem']})" if compiled["problem"] else "")
        )
    if "error" in gpu:
        gpu_lines = [f"  none: {gpu['error']}"]
    else:
        gpu_lines = [
            f"  {g['device']}: {g['name']}, compute capability {g['compute_capability']}, "
            f"{size(g['memory_bytes'])}"
            for g in gpu["devices"]
        ]
        if len(gpu["devices"]) > 1:
            reason = f"NCCL {gpu['nccl']}" if gpu["nccl"] else "copies between them: NCCL is not installed"
            gpu_lines.append(f"  sums over several: {reason}")
        gpu_lines += [f"  {line}" for line in _kernel_lines(gpu["kernels"], report["packages"])]
        gpu_lines += [f"  {line}" for line in _auto_lines(report["auto"])]
    if "error" in ggml:
        ggml_lines = [f"  none: {ggml['error']}"]
    else:
        ggml_lines = [f"  {ggml['version']}, {ggml['path']}"]
        for d in ggml["devices"]:
            ggml_lines.append(f"  {d['name']}: {d['description']}, {d['backend']}")
            ggml_lines += [f"    built with {d['features']}"] if d["features"] else []
            ggml_lines += [f"    layouts of weights: {', '.join(d['layouts'])}"] if d["layouts"] else []
        ggml_lines += [f"  no devices: {ggml['no_devices']}"] if "no_devices" in ggml else []
    return "\n".join(
        [
            f"ggmlq {report['ggmlq']}, Python {report['python']}, {report['platform']}",
            "",
            table(["package", "version"], packages),
            "",
            "CPU",
            *cpu_lines,
            "GPU",
            *gpu_lines,
            "libggml",
            *ggml_lines,
            "",
            *([f"problem: {text}" for text in report["problems"]] or ["no problems found"]),
            *_advice_lines(report["advice"]),
        ]
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> dict[str, Any]:
    try:
        facts: dict[str, Any] = importlib.import_module("ggmlq.cpu.report").examine()
    except ImportError as error:
        return {"error": f"unknown: {error}"}
    except Exception as error:  # importing Numba reads a file of the current folder, with errors of its own
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return {"error": f"unknown: Numba cannot be imported, {reason}", "failed": reason}
    return facts


def _gpu() -> dict[str, Any]:
    try:
        devices = importlib.import_module("ggmlq.cuda.driver.device").describe()
    except Exception as error:  # as in _cpu
        return {"error": str(error)}
    kernels = _kernels(devices[0]["compute_capability"])
    return {"devices": devices, "nccl": _nccl(), "kernels": kernels}


def _kernels(capability: str) -> dict[str, Any]:
    """Kernels that come with the package for a GPU, and how many there are."""
    try:
        coverage = importlib.import_module("ggmlq.cuda.driver.coverage").coverage
        facts: dict[str, Any] = coverage(tuple(map(int, capability.split("."))))
    except (GGMLQError, ImportError, AttributeError) as error:  # numba-cuda may not fit its neighbours
        return {"error": str(error)}
    return {"compute_capability": capability, "prebuilt": _gpu_packs(), **facts}


def _gpu_packs() -> list[dict[str, Any]]:
    served = importlib.import_module("ggmlq.cuda.driver.served")
    packs = importlib.import_module("ggmlq.store.store")
    machines = sorted(path.name for path in served.STORE.prebuilt.iterdir() if path.is_dir())
    return [packs.examine(served.STORE.prebuilt, machine) for machine in machines]


def _kernel_lines(kernels: dict[str, Any], packages: dict[str, str | None]) -> list[str]:
    """Kernels that can run, and those that cannot."""
    if "error" in kernels:
        return [f"no kernel can run: {kernels['error']}"]
    packs = [line.strip() for facts in kernels["prebuilt"] for line in _pack_lines(facts)]
    counts = f"{kernels['served']} of {kernels['all']} kernels come with the package for "
    counts += f"compute capability {kernels['compute_capability']}"
    if (compiler := packages["numba-cuda"]) is not None:
        return [f"{counts}; numba-cuda {compiler} compiles others when they are first used", *packs]
    lacking = ", ".join(kernels["lacking"]) or "all rooms have some"
    return [
        f"{counts}, among them what products of blocks take by themselves;",
        f"others cannot run, for numba-cuda is not installed; none come with it in ggmlq/cuda of: {lacking}",
        *packs,
    ]


def _pack_lines(facts: dict[str, Any] | None) -> list[str]:
    """The package's code for a machine: how much, of which compilers, and packs that cannot be used."""
    if facts is None:
        return ["  prebuilt code: none, kernels are compiled when first used"]
    lines = [
        f"  prebuilt code for {facts['machine']}: {facts['kernels']} kernels in {facts['packs']} packs, "
        f"{size(facts['bytes'])}, digest {facts['digest']}",
        *(f"    compiled by {compilers}" for compilers in facts["compilers"]),
    ]
    return lines + [f"    refused, so compiled when first used: {path}" for path in facts["refused"]]


def _nccl() -> str | None:
    """The version of NCCL; None if it does not load."""
    try:
        version: str | None = importlib.import_module("ggmlq.cuda.driver.parallel.nccl").version()
    except (GGMLQError, RuntimeError):
        return None
    return version


def _cublas(gpu: dict[str, Any]) -> bool:
    """True where cuBLAS loads; False without a GPU."""
    try:
        return "error" in gpu or bool(importlib.import_module("ggmlq.cuda.driver.device").cublas())
    except GGMLQError:
        return False


def _auto() -> dict[str, Any]:
    """The kernels that ``auto`` takes on CuPy's current device for usual formats."""
    try:
        choice = importlib.import_module("ggmlq.cuda.kernels.cost.choice")
        card = choice.card()
        if card is None:
            return {"error": "there is no GPU"}
        ranges = summary(USUAL, "cuda")
    except Exception as error:  # numba-cuda may not fit its neighbours; Numba's configuration may be damaged
        return {"error": str(error)}
    return {"card": card.name, "N": ORDINARY, "K": ORDINARY, "taken": ranges}


def _auto_cpu() -> dict[str, Any]:
    """The kernels that ``auto`` takes on this CPU for usual formats, by rows."""
    try:
        attention = importlib.import_module("ggmlq.ops.attention").on_this_cpu()
        return {"taken": summary(USUAL, "cpu"), "attention": attention}
    except Exception as error:  # as in _cpu; a file of times may be damaged
        return {"error": str(error)}


def _auto_lines(auto: dict[str, Any]) -> list[str]:
    """The kernels that ``auto`` takes on a CPU or card."""
    if "error" in auto:
        return [f"which kernels are chosen is unknown: {auto['error']}"]
    return [*_taken_lines(auto["taken"], auto["card"]), *([auto["attention"]] if "attention" in auto else [])]


def _taken_lines(taken: list[dict[str, Any]], place: str) -> list[str]:
    """A table of kernels by format and rows of activations, and the reasons."""
    if not taken:
        return []
    by_format: dict[str, list[str]] = {}
    for row in taken:
        rows = in_words(tuple(range(first, last + 1) for first, last in row["rows"]))
        compiled = "" if row["packed"] in (True, None) else ", compiled when first used"
        by_format.setdefault(row["format"], []).append(f"{row['kernel']} for {rows}{compiled}")
    cells = [[name, "; ".join(kernels)] for name, kernels in by_format.items()]
    return [
        f"kernels that auto takes on {place}, by rows of activations:",
        *table([f"N=K={ORDINARY}", "takes"], cells).splitlines(),
        f"({'; '.join(dict.fromkeys(row['why'] for row in taken))}; others: gq.kernels(format=…))",
    ]


def _advice_lines(advice: list[dict[str, str]]) -> list[str]:
    """Lines about missing packages and the commands that install them."""
    if not advice:
        return ["nothing is missing"]
    width = max(len(item["for"]) for item in advice)
    lines = [f"  {item['for']:{width}}  {item['install']}" for item in advice]
    return ["", "missing here, for those who want it:", *lines]


def _libggml() -> dict[str, Any]:
    from .llama import Bridge

    try:
        with Bridge(timeout=60) as bridge:
            missing = sorted(set(importlib.import_module("ggmlq.formats").FORMATS) - bridge.types)
            facts = {"path": str(bridge.path), "version": bridge.version, "lacks_types": missing}
            return {**facts, **_devices(bridge)}
    except GGMLQError as error:
        return {"error": str(error)}


def _devices(bridge: Bridge) -> dict[str, Any]:
    """The devices on which the build multiplies; a build without backends still encodes."""
    try:
        return {"devices": [device.facts() for device in bridge.devices()]}
    except GGMLQError as error:
        return {"devices": [], "no_devices": str(error)}
