"""The devices that a caller names, as names of one form: ``("cuda:0", "cuda:1")`` or ``("cpu", "cpu")``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..base.devices import cuda_device
from ..base.text import short
from ..errors import DeviceError

WAY = 'pass a list such as ["cuda:0", "cuda:1"], [0, 1] or ["cpu", "cpu"]'


def canonical(request: str, devices: Any) -> tuple[str, ...]:
    """The names of devices, each checked to be there; one device may stand alone or be named twice."""
    alone = isinstance(devices, str | int | np.integer) or hasattr(devices, "id")
    several = isinstance(devices, Iterable) and getattr(devices, "ndim", True)  # an array of no axis is none
    listed = [devices] if alone else list(devices) if several else None
    if not listed:
        raise DeviceError(
            f"{request}: devices={short(devices)} names no device; an array lies on one at least; {WAY}"
        )
    names = tuple(_name(request, device) for device in listed)
    if len({name == "cpu" for name in names}) > 1:
        raise DeviceError(
            f"{request}: devices={short(devices)} mixes the host with GPUs; parts of one array lie on "
            f"devices of one kind, which can add their results; {WAY}"
        )
    return names


def _name(request: str, device: Any) -> str:
    if isinstance(device, str):
        name = device
    elif isinstance(device, int | np.integer) and not isinstance(device, bool) and device >= 0:
        name = f"cuda:{int(device)}"
    elif type(device).__module__.partition(".")[0] == "cupy" and hasattr(device, "id"):
        name = f"cuda:{device.id}"
    else:
        raise DeviceError(
            f"{request}: {short(device)} is no device; devices are names, numbers of GPUs and "
            f"cupy.cuda.Device; {WAY}"
        )
    if name == "cpu":
        return name
    try:
        return f"cuda:{cuda_device().named(name).id}"
    except DeviceError as error:
        raise type(error)(f"{request}: {error}") from None
