"""Words for the name of a kernel that there is not: of another device, an old name, or a slip."""

from __future__ import annotations

import difflib
from typing import Any

RENAMED = {  # names of kernels before 0.3, to be dropped in 0.4
    "cuda:roles": "cuda:warp_specialized",
    "cuda:strips": "cuda:packed",
    "cuda:few_rows": "cuda:small_m",
    "cuda:divided": "cuda:split_k",
    "cuda:few_codes": "cuda:small_m_codes",
}


def unknown(problem: Any, kernel: str, names: list[str], devices: tuple[str, ...]) -> str:
    """The words for a kernel of this name, which none of ``names`` is."""
    request, device = f"{problem} with kernel={kernel!r}", str(kernel).partition(":")[0]
    if device in devices and device != problem.device:
        return (
            f"{request}: that is a kernel for {device} arrays, {problem.operands} are {problem.device} "
            "arrays; "
            f"pass {problem.moved[device]}"
        )
    if name := RENAMED.get(str(kernel)):
        return f"{request}: this kernel is called {name!r} since ggmlq 0.3; pass that name"
    stems = {name.partition(":")[2]: name for name in names}
    near = difflib.get_close_matches(str(kernel).rpartition(":")[2], stems, 1)
    meant = f"did you mean {stems[near[0]]!r}?" if near else "gq.kernels() lists what there is"
    return f"{request}: there is no such kernel; those for {problem.device} are {', '.join(names)}; {meant}"
