"""Plans: what an operation decided for a kind of call, kept with the weights; most calls look theirs up.

The first call of a kind (product.py) checks its operands, chooses a rung and keeps it as the plan. On the
host the second one records the launches; on a GPU they are recorded as soon as the weights are prepared. A
call after that is **warm**: it looks the plan up and makes sure that operands are ordinary: floats of the
plan's kind, contiguous, on the device of the weights. For all other operands a function here gives None, and
the operation checks them and explains errors. Where launches cannot be recorded, the plan is the rung.

    linear on the host      key (shape of x, kernel, arithmetic)
    scaled_linear           key of the layout of x and of the options
    expert_linear           key (shapes of x and ids, kernel, arithmetic)
    linear on a GPU         rows, kernel, arithmetic, and the kinds of x, y and what is added

On a GPU a plan comes from a **template**, which serves all weights of a format and shape, and all rows of a
bucket: grids, bounds and addresses are filled in. So a number of rows that is new to some weights costs
little. Plans of an array are few, the least lately used go first, and they go with the array.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from ..arrays.array import QuantArray
from ..arrays.buffers import address_of
from ..arrays.companion import multiply, of_uses
from ..arrays.scaled import ScaledArray
from ..base.devices import cuda_device, cuda_driver, cuda_module, is_host, is_over_torch, lives_on_host
from ..base.forks import in_child
from ..dispatch.checks import FLOAT32
from ..dispatch.epilogue import Epilogue
from ..dispatch.ladder import Problem, Rung, choose
from .door import is_apart
from .epilogue import takes_sums

HOST = -1  # torch's number of it
MOST_HALVES = 1 << 16  # float16 on the host that are multiplied as float32
MOST_TEMPLATES = 1024  # some kilobytes each
MOST_USES = 256  # with more uses of experts, what a call costs beside its kernels does not matter
FLOAT16 = np.dtype(np.float16)


class Plan:
    """The rung that an operation chose, and its recorded launches.

    ``launches``: None before they are recorded, and False where they cannot be. ``operand``: what makes the
    first operand of ``rung.launch`` from the arrays of a call.
    """

    __slots__ = ("launches", "operand", "rung")

    def __init__(self, rung: Rung, launches: Any = None, operand: Callable[..., Any] | None = None) -> None:
        self.rung, self.launches, self.operand = rung, launches, operand or as_rows


class Key(NamedTuple):
    """The key of a call under which weights keep its plan, and the arrays that it reads."""

    key: Any
    arrays: tuple[Any, ...] = ()


def as_rows(x: Any) -> Any:
    """Activations [..., K] as rows [M, K]."""
    if x.ndim == 2:
        return x
    return x.as_rows() if isinstance(x, ScaledArray) else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def repeat(
    x: Any, q: Any, kernel: Any, how: Any, out: Any, bias: Any, dtype: Any, residual: Any
) -> Any | None:  # fmt: skip
    """The product of floats with blocks where its plan is all that it needs; else None."""
    return WARM[type(x)](x, q, kernel, how, out, bias, dtype, residual)


class Warm(dict[type, Callable[..., Any]]):
    """The warm products of classes of arrays, each found when its first array comes."""

    def __missing__(self, kind: Any) -> Callable[..., Any]:
        torch, product = sys.modules.get("torch"), _never
        if kind is np.ndarray:
            product = of_arrays
        elif torch is not None and kind is torch.Tensor:
            product = of_tensors
        elif not lives_on_host(kind):
            product = on_device
        return self.setdefault(kind, product)


WARM = Warm()


def _never(*call: Any) -> None:
    return None


# --- on the host ------------------------------------------------------------------------------


def of_arrays(
    x: Any, q: Any, kernel: Any, how: Any, out: Any, bias: Any, dtype: Any, residual: Any
) -> Any | None:  # fmt: skip
    """A warm product of NumPy's arrays."""
    if residual is not None or type(q) is not QuantArray or not x.flags.c_contiguous:
        return None
    if x.dtype is not FLOAT32:
        if x.dtype is not FLOAT16 or x.size > MOST_HALVES:
            return None
        x = x.astype(FLOAT32)
    return repeated(q, (x.shape, kernel, how), (x,), out, bias, dtype)


def linear_key(x: Any, m: int, kernel: Any, arithmetic: Any) -> Key | None:
    """The key of a product of m rows x, floats or bits of bfloat16, with blocks; None for other arrays."""
    if type(x) is np.ndarray:
        plain = x.dtype is FLOAT32 and x.flags.c_contiguous
        return Key((x.shape, kernel, arithmetic), (x,)) if plain else None
    return Key((m, kernel, arithmetic)) if x.dtype.char in "feH" else None


def kept(weights: Any, key: Hashable) -> Plan | None:
    """The plan that weights keep under a key, or None."""
    try:
        plan: Plan | None = weights.recording(key)
    except TypeError:  # a key that cannot be hashed names no kernel, which is said later
        return None
    return plan


def repeated(
    weights: Any, key: Hashable, arrays: tuple[Any, ...], out: Any, bias: Any, dtype: Any
) -> Any | None:  # fmt: skip
    """The product of these arrays by its plan; None if there is none, or out or bias is unusual."""
    if (plan := kept(weights, key)) is None:
        return None
    if dtype is not np.float32 and (dtype is not np.float16 or out is not None or plan.rung.narrow):
        return None  # a rung that is narrow rounds its sums itself
    n = weights.shape[0]
    if bias is not None and (
        type(bias) is not np.ndarray or bias.dtype is not FLOAT32 or bias.shape != (n,)
    ):  # fmt: skip
        return None
    shape = (*arrays[0].shape[:-1], n)
    if out is None:
        y = np.empty(shape, FLOAT32)
    elif _takes(out, shape, *arrays, bias):  # nobody can write to lasting weights
        y = out
    else:
        return None
    launch_on_host(plan, weights, arrays, y)
    if type(weights) is QuantArray and weights.scale is not None:
        multiply(y, weights.scale)
    if bias is not None:
        with np.errstate(over="ignore", invalid="ignore"):  # infinities are results, as on a GPU
            y += bias
    return y if dtype is np.float32 else narrowed(y, FLOAT16)


def launch_on_host(plan: Plan, weights: Any, arrays: tuple[Any, ...], y: Any) -> None:
    """Write the float32 sums of a product into y: by the plan's launches, which its second call records."""
    if plan.launches and weights.immutable:
        plan.launches(*map(address_of, arrays), address_of(y))
        return
    rung, operand = plan.rung, plan.operand
    with np.errstate(over="ignore", invalid="ignore"):
        if plan.launches is None and rung.repeats and weights.immutable:
            plan.launches = (
                _recorder().recorded_product(
                    lambda *a: rung.launch(operand(*a[:-1]), weights, as_rows(a[-1])), arrays, y,
                    lambda: (weights.parts(), weights.prepared_copies()), y.size * weights.shape[1],
                )
                or False
            )  # fmt: skip
        else:
            rung.launch(operand(*arrays), weights, as_rows(y))


@cache
def _recorder() -> Any:
    return import_module("ggmlq.cpu.machine.recorded")


def narrowed(y: Any, kind: np.dtype[Any]) -> Any:
    """Results on the host in another dtype; float32 to float16 by compiled code where it can."""
    if kind == np.float16 and y.dtype == np.float32 and y.size:
        halves = np.empty(y.shape, np.float16)
        if narrow_into(y, halves):
            return halves
    with np.errstate(over="ignore", invalid="ignore"):
        return y.astype(kind, copy=False)


def narrow_into(y: Any, out: Any) -> bool:
    """Write float32 results into a float16 ``out`` on the host; False, and nothing done, where it cannot."""
    if out.dtype != np.float16 or y.dtype != np.float32:
        return False
    if not (out.flags.c_contiguous and y.flags.c_contiguous and y.size):
        return False
    done: bool = import_module("ggmlq.cpu.encode.halves").narrow_into(y, out)
    return done


def _takes(out: Any, shape: tuple[int, ...], *operands: Any) -> bool:
    """True if a kernel can write its float32 sums straight into ``out``."""
    if type(out) is not np.ndarray or out.shape != shape or not out.flags.carray:
        return False
    return takes_sums(np.may_share_memory, out, *operands)


def scaled_key(x: Any, w: Any, activations: Any, kernel: Any, accumulate: Any) -> Key | None:
    """The key of a product with scaled weights; None where x or the way to quantize it is not ordinary.

    Its parts compare as they are meant: 1.0 and True, which are equal to 1, are no lengths of tiles.
    """
    if type(w) is not ScaledArray or type(kernel) is not str:
        return None
    if type(w.codes) is not np.ndarray or not (accumulate is None or type(accumulate) is str):
        return None
    if type(x) is np.ndarray:
        if x.dtype is not FLOAT32 or not x.flags.c_contiguous or not _is_plain(activations):
            return None
        return Key((x.shape, activations, kernel, accumulate), (x,))
    if type(x) is not ScaledArray or type(x.codes) is not np.ndarray or activations is not None:
        return None
    parts = x.parts()
    layout = tuple((type(part), part.dtype, part.shape, part.strides) for part in parts)
    return Key((layout, x.code.name, x.tile, kernel, accumulate), parts)


def _is_plain(activations: Any) -> bool:
    """True for None, and for (the name of a code, a pair of integers or None)."""
    if activations is None:
        return True
    if type(activations) is not tuple or len(activations) != 2:
        return False
    code, tile = activations
    return type(code) is str and type(tile) is tuple and all(n is None or type(n) is int for n in tile)


def experts_on_host(
    x: Any, q: Any, ids: Any, kernel: Any, arithmetic: Any, out: Any, dtype: Any, check: Any
) -> Any | None:
    """A warm product of NumPy's floats with experts, or None; ids differ in each call, so all are checked."""
    if type(x) is not np.ndarray or type(ids) is not np.ndarray or type(q) is not QuantArray:
        return None
    if dtype is not np.float32 or x.dtype is not FLOAT32 or ids.dtype.kind not in "iu":
        return None
    plan = kept(q, (x.shape, ids.shape, kernel, arithmetic))
    if plan is None or not (x.flags.c_contiguous and (_are_experts(ids, q) or check is False)):
        return None
    shape = (*ids.shape, q.shape[1])
    if out is None:
        out = np.empty(shape, FLOAT32)
    elif not _takes(out, shape, x, q.memory, ids):
        return None
    uses = ids.astype(np.int64, order="C", copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        plan.rung.launch(as_rows(x), q, uses, out)
    if q.scale is not None:
        multiply(out, of_uses(q.scale, uses))
    return out


def experts_key(x: Any, ids: Any, kernel: Any, arithmetic: Any) -> Key | None:
    """The key of a small product of NumPy's arrays with experts; None for others."""
    if type(x) is not np.ndarray or type(ids) is not np.ndarray or ids.size > MOST_USES:
        return None
    return Key((x.shape, ids.shape, kernel, arithmetic))


def _are_experts(ids: Any, q: Any) -> bool:
    """True if each id is the number of an expert."""
    numbers: list[int] = ids.reshape(-1).tolist()
    return min(numbers) >= 0 and max(numbers) < len(q)


# --- on a GPU -----------------------------------------------------------------------------------
# The kinds of x, of y, of the bias and of the residual are letters of a plan's key: those of NumPy's dtypes,
# and "H" for the bits of bfloat16. Rungs that round their sums write y as it is wanted and add the bias; of
# others y is float32 first, and kernels behind do the rest. A warm call with a residual repeats launches that
# add it.


class Cupy:
    """CuPy's arrays, and torch's memory under their names, as warm calls look at them."""

    runs_rungs = True

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def stream(self, x: Any, memory: Any) -> int | None:
        """The address of the current stream; None on another device, or where a graph is recorded."""
        if type(memory) is not self.kind or x.data.device_id != memory.data.device_id:
            return None
        gpu, index = cuda_driver(), x.data.device_id
        if gpu.device() != index:
            return None
        if _is_recorded(index) and not cuda_device().keeps_memory():
            return None  # CuPy's pool would give its memory to others
        return int(gpu.stream(index).ptr)

    def lies(self, array: Any, shape: Any = None, index: int = 0) -> tuple[str, int] | None:
        """Letter and address of contiguous floats, of this shape on this device; None for other arrays."""
        if type(array) is not self.kind or array.dtype.char not in "fe" or not array.flags.c_contiguous:
            return None
        data = array.data
        if shape is not None and (array.shape != shape or data.device_id != index):
            return None
        return array.dtype.char, data.ptr

    def wanted(self, dtype: Any, out: Any) -> str | None:
        """The letter of results; None for those that no warm call has."""
        if out is not None:
            return str(out.dtype.char) if type(out) is self.kind else None
        return "f" if dtype is np.float32 else "e" if dtype is np.float16 else None

    def empty(self, shape: tuple[int, ...], letter: str, x: Any) -> Any:
        """An array for results."""
        return cuda_driver().array(shape, np.dtype(letter))

    def between(self, size: int, x: Any) -> tuple[Any, int]:
        """Memory of ``size`` bytes between kernels, and its address; 0: the launches ask CuPy for it."""
        return None, 0

    def share(self, a: Any, b: Any) -> bool:
        """True if two arrays may share memory."""
        return bool(cuda_driver().share(a, b))

    def converted(self, q: Any, y: Any, letter: str, out: Any, stream: int) -> Any:
        """Sums of float32 in the dtype that is wanted."""
        if out is not None:
            out[...] = y
            return out
        if y.size % 8:
            return y.astype(np.float16)
        rounded = self.empty(y.shape, letter, y)
        key, make = ("halves", y.size), cuda_module("layouts.floats").halving
        _prepared_once(q, key, lambda: make(y.size))(y.data.ptr, rounded.data.ptr, stream)
        return rounded


class Tensors:
    """Tensors of torch as warm calls look at them; its members are looked up once."""

    runs_rungs = False

    def __init__(self, torch: Any) -> None:
        self.tensor, self.kinds = torch.Tensor, {torch.Tensor, torch.nn.Parameter}
        self.letters = {torch.float32: "f", torch.float16: "e", torch.bfloat16: "H"}
        self.results = dict(self.letters) | {torch.float64: "d"}
        self.dtypes = {letter: dtype for dtype, letter in self.results.items()}
        self.results |= {None: "f", np.float32: "f", np.float16: "e", np.float64: "d"}
        self.strided, self.bytes, self.allocate = torch.strided, torch.uint8, torch.empty
        self.with_gradients = torch.is_grad_enabled
        self.capturing = torch.cuda.is_current_stream_capturing
        self.device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
        self.current = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (
            lambda index: int(torch.cuda.current_stream(index).cuda_stream)
        )

    def stream(self, x: Any, memory: Any) -> int | None:
        """As for CuPy: the address of torch's current stream."""
        index = x.get_device()
        here = self.device() if is_over_torch(type(memory)) else cuda_driver().device()
        if is_host(memory) or not here == index == memory.data.device_id:
            return None
        stream: int = self.current(index)
        return None if stream and (self.device() != index or self.capturing()) else stream

    def lies(self, array: Any, shape: Any = None, index: int = 0) -> tuple[str, int] | None:
        """As for CuPy: of a tensor that is nothing but its memory, and of which nobody wants a gradient."""
        letter = self.letters.get(array.dtype) if array.__class__ in self.kinds else None
        if letter is None or (shape is not None and (array.shape != shape or array.get_device() != index)):
            return None
        if (array.requires_grad and self.with_gradients()) or array.layout is not self.strided:
            return None
        if array.is_neg() or not array.is_contiguous():
            return None
        try:
            at = array.data_ptr()
        except RuntimeError:  # a stand-in without memory, as under a mode of torch's
            return None
        return (letter, at) if at else None

    def wanted(self, dtype: Any, out: Any) -> str | None:
        """As for CuPy."""
        if out is None:
            return self.results.get(dtype)
        return None if out.__class__ not in self.kinds or out.is_inference() else self.letters.get(out.dtype)

    def empty(self, shape: tuple[int, ...], letter: str, x: Any) -> Any:
        """A tensor for results."""
        return self.allocate(shape, dtype=self.dtypes[letter], device=x.device)

    def between(self, size: int, x: Any) -> tuple[Any, int]:
        """As for CuPy: memory of torch, which gives it to this stream alone, so to nobody too early."""
        if not size:
            return None, 0
        memory = self.allocate(size, dtype=self.bytes, device=x.device)
        return memory, memory.data_ptr()

    def share(self, a: Any, b: Any) -> bool:
        """True if a tensor shares memory with another, or with the memory of weights."""
        return not (is_apart(a, b) if isinstance(b, self.tensor) else is_apart(a, None, b))

    def converted(self, q: Any, y: Any, letter: str, out: Any, stream: int) -> Any:
        """Sums of float32 in the dtype that is wanted."""
        return y.to(self.dtypes[letter]) if out is None else out.copy_(y)


class Faces(dict[type, Cupy | Tensors | None]):
    """The ways to look at arrays of a class in warm calls on a GPU; None for classes without."""

    def __missing__(self, kind: Any) -> Cupy | Tensors | None:
        torch = sys.modules.get("torch")
        face: Cupy | Tensors | None = None
        if torch is not None and issubclass(kind, torch.Tensor):
            face = _tensors(torch) if kind is torch.Tensor else None
        elif not lives_on_host(kind):
            face = Cupy(kind)
        return self.setdefault(kind, face)


FACES = Faces()


@cache
def _tensors(torch: Any) -> Tensors:
    return Tensors(torch)


def on_device(
    x: Any, q: Any, kernel: Any, arithmetic: Any, out: Any, bias: Any, dtype: Any, residual: Any = None,
    gate: str | None = None,
) -> Any | None:  # fmt: skip
    """A warm product on the current GPU of floats with blocks; None where the call is not warm.

    ``gate``: the function of the residual that multiplies the product, of dispatch/epilogue.py.
    """
    face, shape = FACES[type(x)], x.shape
    if type(q) is not QuantArray or face is None or not shape or len(size := q.shape) != 2:
        return None
    memory, (n, k) = q.memory, size
    if (stream := face.stream(x, memory)) is None:
        return None
    if (at := face.lies(x)) is None or shape[-1] != k or at[1] % 16:
        return None
    m, result, index = math.prod(shape[:-1]), (*shape[:-1], n), memory.data.device_id
    addends, letters = NOTHING_ADDED
    if bias is not None or residual is not None:
        addends, letters = _addends(face, bias, residual, gate, m, result, index)
    try:
        if addends is None or (wanted := face.wanted(dtype, out)) is None:
            return None
        written = "f" if wanted == "d" else wanted  # no kernel writes float64
        launches, whole = plan_on_device(q, m, kernel, arithmetic, at[0], written, letters)
    except TypeError:  # what cannot be hashed names no kernel and no dtype
        return None
    if launches is None or (residual is not None and not whole):
        return None
    written, y = written if whole else "f", out
    if out is not None:
        to = face.lies(out, result, index)
        if to is None or (residual is not None and residual is not out and face.share(out, residual)):
            return None
        apart = not any(part is not None and face.share(out, part) for part in (x, memory, bias))
        if to[0] != written or to[1] % 4 or not apart:
            y = None
    if y is None:
        y = face.empty(result, written, x)
        to = face.lies(y)
    if to is None:  # a mode of torch's under which tensors have no memory
        return None
    if type(launches) is Rung:
        if not face.runs_rungs or _is_recorded(index):
            return None
        launches.launch(x.reshape(m, k), q, y.reshape(m, n))
    else:
        between = face.between(launches.workspace, x)  # it is there until all are launched
        launches(at[1], to[1], stream, between[1], *(addends if whole else ()))
    if bias is not None and not whole:
        adder(q, m, letters)(addends[0], to[1], stream)
    return y if y is out or (written == wanted and out is None) else face.converted(q, y, wanted, out, stream)


def _is_recorded(index: int) -> bool:
    """True where the current stream of a device records a CUDA graph."""
    stream = cuda_driver().stream(index)
    return bool(stream.ptr and stream.is_capturing())


NOTHING_ADDED: tuple[tuple[int, int] | None, str] = (0, 0), ""


def _addends(
    face: Any, bias: Any, residual: Any, gate: str | None, m: int, shape: tuple[int, ...], index: int
) -> tuple[tuple[int, int] | None, str]:  # fmt: skip
    """The addresses of what launches add, first as a bias, then as a residual; and the letters of both.

    None where one of them is not ordinary. Kernels read two numbers of 16 bits at a time.
    """
    b = None if bias is None else face.lies(bias, shape[-1:], index)
    r = None if residual is None else face.lies(residual, shape, index)
    if (b is None) != (bias is None) or (r is None) != (residual is None):
        return None, ""
    if b is None and m == 1 and gate is None:
        b, r = r, None
    if r is not None and r[1] % 4:
        return None, ""
    letters = letters_of("" if b is None else b[0], "" if r is None else r[0], gate)
    return (b[1] if b else 0, r[1] if r else 0), letters


def letters_of(bias: str, residual: str, gate: str | None) -> str:
    """The letters of what launches add, first as a bias, then as a residual or a gate; "" for neither."""
    return f"{bias}{gate or '+'}{residual}" if residual else bias


def key_of(m: int, kernel: str, arithmetic: str | None, kinds: str) -> tuple[Any, ...]:
    """The key of a product of m rows on a GPU; ``kinds``: letters of x, of y and of what is added."""
    return (m, kernel, arithmetic) if kinds == "ff" else (m, kernel, arithmetic, kinds)


def plan_on_device(
    q: Any, m: int, kernel: Any, arithmetic: Any, x: str, y: str, addends: str
) -> tuple[Any, bool]:  # fmt: skip
    """The launches or the rung of a product of m rows, and whether it writes y as it is wanted, with all that
    is added to it; else y is float32. ``x``, ``y``, ``addends``: letters of their kinds.
    """
    kinds, sums = x + y + addends, x + "f"
    launches = q.recording(key_of(m, kernel, arithmetic, kinds))
    if launches is None:
        launches = TEMPLATES.of(q, m, kernel, arithmetic, kinds)
    if launches is not None or kinds == sums:
        return launches, type(launches) is not Rung or kinds == sums
    launches = q.recording(key_of(m, kernel, arithmetic, sums))
    return launches or TEMPLATES.of(q, m, kernel, arithmetic, sums), False


class Templates:
    """Recorded products that serve other rows of a bucket, and other weights of their format and shape.

    The oldest go first. They hold no memory of weights.
    """

    def __init__(self) -> None:
        self._forget()
        in_child(self._forget)

    def _forget(self) -> None:
        self._lock, self._kept = threading.Lock(), OrderedDict[Any, list[Any]]()

    def of(self, q: Any, m: int, kernel: Any, arithmetic: Any, kinds: str) -> Any | None:
        """The launches of a product of m rows, kept with its weights; None where no template serves it."""
        place = _shared_key(q, m, kernel, arithmetic, kinds)
        for template in self._kept.get(place, ()):
            if m in template.rows and (launches := template.launches(q, m)) is not None:
                q.keep_recording(key_of(m, kernel, arithmetic, kinds), launches)
                return launches
        return None

    def keep(self, q: Any, m: int, kernel: Any, arithmetic: Any, kinds: str, template: Any) -> None:
        """Keep a template for products of its bucket."""
        with self._lock:
            place = _shared_key(q, m, kernel, arithmetic, kinds)
            others = self._kept.pop(place, [])
            serves = any(m in other.rows for other in others)  # as where a call was not ordinary
            self._kept[place] = others if serves else [*others, template]
            while len(self._kept) > MOST_TEMPLATES:
                self._kept.popitem(last=False)

    def clear(self) -> None:
        """Drop all: kernels are chosen anew."""
        with self._lock:
            self._kept.clear()


TEMPLATES = Templates()


def _shared_key(q: Any, m: int, kernel: Any, arithmetic: Any, kinds: str) -> tuple[Any, ...]:
    """The key of templates: all that a product has in common with those that they serve."""
    memory = q.memory
    eight = None if q.scale is not None else (m + 7) // 8
    return q.format.name, q.shape, memory.data.device_id, type(memory), eight, kernel, arithmetic, kinds


def adder(q: Any, m: int, kind: str) -> Any:
    """The launch that adds a bias to m rows of results, bit for bit as CuPy's addition does."""
    serving, make = cuda_module("driver.serving"), cuda_module("kernels.epilogue.results").plan

    def plan() -> Any:
        with serving.served_by(is_over_torch(type(q.memory))):
            return make(m, q.shape[0], kind)

    return _prepared_once(q, ("bias", m, kind), plan)


def _prepared_once(q: Any, key: Hashable, make: Callable[[], Any]) -> Any:
    """The launches under ``key``; made by ``make()`` the first time, since they need no product."""
    launches = q.recording(key)
    if launches is None:
        q.keep_recording(key, launches := make())
    return launches


def is_aligned(x: Any) -> bool:
    """True if recorded launches can read x: contiguous, and vectors of 16 bytes from its start."""
    return not x.data.ptr % 16 and bool(x.flags.c_contiguous)


def launched(
    rung: Rung, problem: Problem, operands: tuple[Any, ...], y: Any, facts: Any, end: Epilogue
) -> bool:  # fmt: skip
    """Launch a rung and record its launches; False, and not launched, where they cannot repeat.

    ``facts``: rows, kernel and arithmetic of the call.
    """
    x, q = operands
    gpu = cuda_device()
    captured = _is_recorded(x.device.id)
    if captured and not gpu.keeps_memory():
        return False
    bias, residual = ("" if part is None else part.dtype.char for part in (end.bias, end.residual))
    letters = x.dtype.char + y.dtype.char + letters_of(bias, residual, end.gate)
    m, kernel, arithmetic = facts
    place = key_of(m, kernel, arithmetic, letters)
    if not rung.repeats:
        if not captured:
            q.keep_recording(place, rung)
        return False
    if not is_aligned(x):
        return False
    addresses = [0 if part is None else int(part.data.ptr) for part in (end.bias, end.residual)]
    launches = q.recording(place)
    if type(launches) is Rung:  # of calls that no graph records
        return False
    if launches is not None:  # something else of the call is not ordinary
        launches(x.data.ptr, y.data.ptr, cuda_driver().stream(x.device.id).ptr, 0, *addresses)
        return True
    # Sizes of recorded steps are few: a template for them serves no other rows, which takes less time.
    template = cuda_module("driver.recorded").record(rung.launch, x, q, y, end, captured)
    if template is not None and (launches := template.launches(q, m)) is not None:
        q.keep_recording(place, launches)
        ends = {template.rows[0], template.rows[-1]} - {m}
        how = (arithmetic[1], True) if type(arithmetic) is tuple else (arithmetic,)  # of invariant=True
        if all(choose(problem.with_rows(rows), kernel, *how) is rung for rows in ends):
            TEMPLATES.keep(q, m, kernel, arithmetic, letters, template)
    return True


# --- tensors on the host ------------------------------------------------------------------------


def of_tensors(
    x: Any, q: Any, kernel: Any, arithmetic: Any, out: Any, bias: Any, dtype: Any, residual: Any = None
) -> Any | None:  # fmt: skip
    """A warm product of tensors: by :func:`on_device`, or on the host by the plans of NumPy's arrays."""
    if x.is_cuda:
        return on_device(x, q, kernel, arithmetic, out, bias, dtype, residual)
    face, shape = FACES[type(x)], x.shape
    if face is None or type(q) is not QuantArray or residual is not None or not shape:
        return None
    try:
        plan, wanted = q.recording((shape, kernel, arithmetic)), face.wanted(dtype, out)
    except TypeError:  # a key that cannot be hashed names no kernel
        return None
    if not (plan and plan.launches and wanted and q.immutable) or not (at := face.lies(x)):
        return None
    result = (*shape[:-1], q.shape[0])
    for part, size in ((bias, result[-1:]), (out, result)):
        if part is not None and not face.lies(part, size, HOST):
            return None
    rows = x if at[0] == "f" else x.float()
    y = rows.new_empty(result)
    plan.launches(at[1] if rows is x else rows.data_ptr(), y.data_ptr())
    if q.scale is not None:
        y *= float(q.scale) if not np.ndim(q.scale) else sys.modules["torch"].from_numpy(q.scale.copy())
    if bias is not None:
        y += bias
    return y if wanted == "f" and out is None else face.converted(q, y, wanted, out, 0)
