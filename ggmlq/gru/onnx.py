"""The weights of a GRU node of an ONNX file. ONNX orders gates z, r, h, as ``ggmlq`` does.

ModelProto.graph = 7 · GraphProto.node = 1, .initializer = 5
NodeProto: input 1, output 2, name 3, op_type 4, attribute 5
AttributeProto: name 1, i 3, s 4, t 5, strings 9
TensorProto: dims 1, data_type 2, float_data 4, name 8, raw_data 9, double_data 10, data_location 14
"""

from __future__ import annotations

import os
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..base.protobuf import Value, fields, varint
from ..base.text import short
from ..errors import GRUFileError, UnsupportedError

MOST_BYTES = 4 << 30
TYPES = {1: "<f4", 11: "<f8", 10: "<f2"}  # data_type of a tensor
BFLOAT16, EXTERNAL = 16, 1
USUAL = ("Sigmoid", "Tanh")


class Node(NamedTuple):
    """A GRU node of an ONNX graph."""

    name: str
    inputs: list[str]
    attributes: dict[str, Any]


def read_onnx(path: Any, node: str | None) -> dict[str, Any]:
    """The arguments of ``GRU`` (W, R, bx, br) from a GRU node of an ONNX file."""
    request = f"GRU.from_onnx({short(path, 4096)})"
    try:
        data = _bytes(path)
        nodes, tensors = _graph(data)
        return _arguments(_picked(nodes, node), tensors)
    except UnsupportedError as error:
        raise UnsupportedError(f"{request}: {error}") from None
    except GRUFileError as error:
        raise GRUFileError(f"{request}: {error}") from None
    except ValueError as error:
        raise GRUFileError(f"{request}: {error}: cut short or damaged, or no ONNX file") from None
    except OSError as error:
        raise GRUFileError(f"{request}: cannot be read: {error.strerror or error}; check the path") from error


def _bytes(path: Any) -> memoryview:
    try:
        size = os.stat(path).st_size
    except TypeError:
        raise GRUFileError("that is no path; pass a str or an os.PathLike") from None
    if not os.path.isfile(path) or size > MOST_BYTES:
        raise GRUFileError("it is no regular file, or larger than 4 GiB; pass an .onnx file")
    with open(path, "rb") as file:
        return memoryview(file.read())


def _graph(data: memoryview) -> tuple[list[Node], dict[str, memoryview]]:
    """GRU nodes, and the tensors that are in the file, not yet read."""
    nodes: list[Node] = []
    tensors: dict[str, memoryview] = {}
    for number, value in fields(data):
        if number != 7:
            continue
        for part, inner in fields(message(value)):
            if part == 1:
                _node(message(inner), nodes, tensors)
            elif part == 5:
                tensors[_name(message(inner))] = message(inner)
    return nodes, tensors


def _name(tensor: memoryview) -> str:
    return next((text(value) for number, value in fields(tensor) if number == 8), "")


def _node(data: memoryview, nodes: list[Node], tensors: dict[str, memoryview]) -> None:
    inputs: list[str] = []
    outputs: list[str] = []
    texts, attributes = {3: "", 4: ""}, {}
    for number, value in fields(data):
        if number in (1, 2):
            (inputs if number == 1 else outputs).append(text(value))
        elif number in texts:
            texts[number] = text(value)
        elif number == 5:
            name, attribute = _attribute(message(value))
            attributes[name] = attribute
    if texts[4] == "GRU":
        nodes.append(Node(texts[3], inputs, attributes))
    elif texts[4] == "Constant" and outputs and isinstance(attributes.get("value"), memoryview):
        tensors[outputs[0]] = attributes["value"]


def _attribute(data: memoryview) -> tuple[str, Any]:
    name, listed = "", []
    single: Any = None
    for number, value in fields(data):
        if number == 1:
            name = text(value)
        elif number == 3:
            single = integers(value)[0]
        elif number == 4:
            single = text(value)
        elif number == 5:
            single = message(value)
        elif number == 9:
            listed.append(text(value))
    return name, listed or single


def _picked(nodes: list[Node], name: str | None) -> Node:
    if not nodes:
        raise GRUFileError(
            "it has no GRU node; export a torch.nn.GRU, or pass the arrays to GRU(W, R, bx, br)"
        )
    if name is None and len(nodes) == 1:
        return nodes[0]
    matches = [node for node in nodes if name in (node.name, *node.inputs[1:2])]
    if len(matches) != 1:
        listed = ", ".join(short(node.name or node.inputs[1]) for node in nodes[:20])
        raise GRUFileError(f"it has {len(nodes)} GRU nodes: {listed}; pass node= with one of these names")
    return matches[0]


def _arguments(node: Node, tensors: dict[str, memoryview]) -> dict[str, Any]:
    attributes = node.attributes
    direction = attributes.get("direction", "forward")
    both = direction == "bidirectional"
    if not attributes.get("linear_before_reset", 0):
        raise UnsupportedError(
            "linear_before_reset is 0: the reset gate multiplies h before the product; here it multiplies "
            "R_g h + b_rg, as in PyTorch and cuDNN; export with linear_before_reset = 1"
        )
    if direction not in ("forward", "bidirectional"):
        raise UnsupportedError(
            f"direction is {short(direction)}; forward and bidirectional are read; reverse x and y"
        )
    if attributes.get("activations") not in (None, list(USUAL) * (2 if both else 1)) or "clip" in attributes:
        raise UnsupportedError(
            "it has other activations than Sigmoid and Tanh, or a clip; tables are of these"
        )
    names = [*node.inputs, *[""] * 4][1:4]
    if len(node.inputs) < 3 or not all(names[:2]):
        raise GRUFileError("its GRU node has no W and R; the file is damaged; export it again")
    W, R = (_tensor(tensors, name) for name in names[:2])
    count, units = (2 if both else 1), R.shape[-1] if R.ndim else 0
    shapes = [(count, 3 * units, W.shape[-1] if W.ndim else 0), (count, 3 * units, units)]
    if [W.shape, R.shape] != shapes or not units:
        raise GRUFileError(
            f"W has shape {W.shape}, R {R.shape}; they are [{count}, 3H, C] and [{count}, 3H, H]"
        )
    bias = _tensor(tensors, names[2]) if names[2] else np.zeros((count, 6 * units), W.dtype)
    if bias.shape != (count, 6 * units):
        raise GRUFileError(f"B has shape {bias.shape}; it is [{count}, 6H], H = {units}")
    parts = {"W": W, "R": R, "bx": bias[:, : 3 * units], "br": bias[:, 3 * units :]}
    return {name: tuple(part) if both else part[0] for name, part in parts.items()}


def _tensor(tensors: dict[str, memoryview], name: str) -> Any:
    if name not in tensors:
        raise UnsupportedError(
            f"the weights {short(name)} are computed by the graph, not stored in the file; export it "
            "with constants folded"
        )
    shape: list[int] = []
    kind, raw, packed = 0, None, {4: b"", 10: b""}
    for number, value in fields(tensors[name]):
        if number == 1:
            shape += integers(value)
        elif number == 2:
            kind = integers(value)[0]
        elif number == 9:
            raw = message(value)
        elif number in packed:
            packed[number] += bytes(message(value))
        elif number == 14 and value == EXTERNAL:
            raise UnsupportedError(f"the tensor {short(name)} lies in another file; export it into one file")
    if kind not in (*TYPES, BFLOAT16):
        raise UnsupportedError(
            f"the tensor {short(name)} is of ONNX's type {kind}; floats are read; export it as float32"
        )
    stored = raw if raw is not None else packed[10 if kind == 11 else 4]
    dtype = np.dtype("<u2" if kind == BFLOAT16 else TYPES[kind])
    if any(n < 0 for n in shape) or prod(shape) * dtype.itemsize != len(stored):
        raise GRUFileError(
            f"the tensor {short(name)} claims {short(shape)} of type {kind} and has {len(stored)} "
            "bytes; the file is damaged; export it again"
        )
    values = np.frombuffer(stored, dtype).reshape(shape)
    if kind == BFLOAT16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32) if kind == 10 else values


# --- values of fields -----------------------------------------------------------------------------


def integers(value: Value) -> list[int]:
    """The signed integers of a repeated field: one of them, or all packed in one value."""
    if isinstance(value, int):
        return [_signed(value)]
    listed, at = [], 0
    while at < len(value):
        one, at = varint(value, at)
        listed.append(_signed(one))
    return listed


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def text(value: Value) -> str:
    """The text that a value holds."""
    return bytes(message(value)).decode("utf-8", "replace")


def message(value: Value) -> memoryview:
    """The bytes of a message or a text that lies within another one."""
    if isinstance(value, int):
        raise ValueError("it has a number where a message or a name belongs")
    return value
