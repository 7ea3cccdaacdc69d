"""Heads of attention on several devices: each has some heads of keys and values, and the queries over them.

Nothing is added over devices. Results are joined on the device of the queries. Or they stay where they are,
as Parts [T, H · DV], which the next product takes by columns.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

from ..arrays.protocols import Listed
from ..base import text
from ..base.devices import device_of, is_host, namespace
from ..base.text import Request
from ..dispatch.checks import as_array, as_floats, check_out, float_dtype, is_whole
from ..errors import DeviceError, DTypeError, ShapeError
from ..ops import KVCache as Cache
from ..ops import attention
from ..ops.attention import by_head, slopes_of
from .parts import Parts, Spans
from .team import Team, canonical, team_of


class Division(NamedTuple):
    """Heads of keys and values that each device has, their columns, and the sequences."""

    team: Team
    spans: Spans
    batch: int
    width: int
    width_v: int
    keep: list[Any]  # memory of calls in CUDA graphs

    @property
    def heads(self) -> int:
        """The number of heads of keys."""
        return self.spans[-1][1]

    def times(self, number: int) -> Spans:
        """The spans of what there is so often for each head of keys."""
        return tuple((first * number, end * number) for first, end in self.spans)

    def home_of(self, request: str, x: Any, name: str) -> str:
        """The device of a caller's array."""
        if isinstance(x, Parts):
            if x.devices != self.team.devices:
                raise DeviceError(
                    f"{request}: {name} is {x!r}, heads lie on {', '.join(self.team.devices)}; parts lie on "
                    f"the same devices in the same order; shard both alike, or pass {name}.gather()"
                )
            return x.devices[0]
        if is_host(x) != (self.team.devices[0] == "cpu"):
            raise DeviceError(
                f"{request}: {name} is on {device_of(x)}, heads lie on {', '.join(self.team.devices)}; both "
                f"are on the host or both on GPUs; move {name} with cupy.asarray({name}) or {name}.get()"
            )
        return device_of(x)

    def heads_of(self, request: str, x: Any, name: str, width: int) -> int:
        """The number of heads in rows [B, heads, T, width], or in Parts, checked."""
        if not isinstance(x, Parts):
            if x.ndim != 4 or not x.shape[1] or x.shape[1] % self.heads:
                raise ShapeError(
                    f"{request}: {name} has shape {x.shape}; it is [B, heads, T, columns], with a multiple "
                    f"of {self.heads} heads; reshape it"
                )
            return int(x.shape[1])
        heads = x.shape[-1] // width
        fits = heads and heads % self.heads == 0 and x.spans == self.times(heads // self.heads * width)
        if not fits or x.shape[:-2] != (self.batch,) * (self.batch > 1) or x.ndim < 2:
            raise ShapeError(
                f"{request}: {name} is {x!r}; parts are [T, heads · {width}], with B before it if there are "
                f"several sequences, cut between heads as keys are at {self.cuts}; shard the matrix with "
                "cuts=c.cuts(rows), or pass an array [B, heads, T, columns]"
            )
        return heads

    def dealt(self, request: str, run: Any, x: Any, name: str, width: int) -> list[Any]:
        """Rows [B, heads, T, width] of each device, of all heads [B, heads, T, width] or Parts."""
        heads = self.heads_of(request, x, name, width)
        if not isinstance(x, Parts):
            with run.at_home():
                pieces = [x[:, first:end] for first, end in self.times(heads // self.heads)]
            pieces_there: list[Any] = run.give(pieces)
            return pieces_there
        rows = []
        for position, part in enumerate(x.parts):
            with run.on(position):
                split = part.reshape(self.batch, x.shape[-2], -1, width)
                rows.append(split.transpose(0, 2, 1, 3))
        return rows

    @property
    def cuts(self) -> list[int]:
        """Heads of keys at which devices begin, without the first."""
        return [first for first, _ in self.spans[1:]]


def division(request: str, heads: int, devices: Any, *facts: Any) -> Division:
    """Heads of keys in even parts on devices."""
    names = canonical(request, devices)
    if not is_whole(heads, len(names)):
        raise ShapeError(
            f"{request}: {text.short(heads)} heads of keys are not enough for {len(names)} devices; each has "
            "one at least; name fewer devices"
        )
    spans = tuple(pairwise(heads * i // len(names) for i in range(len(names) + 1)))
    return Division(team_of(names, None), spans, *facts)


def attended(
    request: str, d: Division, q: Any, attend: Callable[..., Any], options: dict[str, Any]
) -> Any:  # fmt: skip
    """Results of queries: ``attend(position, queries, **options)`` is called on each device for its heads."""
    out, dtype = options.pop("out", None), options.pop("dtype", None)
    q = q if isinstance(q, Parts) else as_floats(request, q, "q", bfloat16=True)
    home, kind = d.home_of(request, q, "q"), float_dtype(request, dtype)
    stay, heads = isinstance(q, Parts), d.heads_of(request, q, "q", d.width)
    spans = d.times(heads // d.heads)
    options = _checked(request, options, heads, home)
    shape = (d.batch, heads, q.shape[-2], d.width_v)
    if out is not None:
        if stay:
            raise ShapeError(f"{request}: out takes the whole; results of Parts stay in parts; leave it out")
        check_out(request, out, shape, home)
        kind = out.dtype
    with d.team.run(home, d.keep) as run:
        sizes = [(shape[0], end - first, *shape[2:]) for first, end in spans]
        rooms = [None if stay else run.room(p, size, kind) for p, size in enumerate(sizes)]
        run.fork()
        queries = d.dealt(request, run, q, "q", d.width)
        shares, results = _shares(run, options, spans), []
        for position, (rows, share) in enumerate(zip(queries, shares, strict=True)):
            with run.on(position):
                y = attend(position, rows, dtype=kind, **share)
                if stay:
                    y = y.transpose(0, 2, 1, 3).reshape(*q.shape[:-1], -1)
                results.append(y)
        if stay:
            return Parts(results, d.times(heads // d.heads * d.width_v), d.team)
        here = [run.take(p, *pair) for p, pair in enumerate(zip(results, rooms, strict=True))]
        with run.at_home():
            y = namespace(here[0]).empty(shape, kind) if out is None else out
            for (first, end), part in zip(spans, here, strict=True):
                y[:, first:end] = part
        return y


def _checked(request: str, options: dict[str, Any], heads: int, home: str) -> dict[str, Any]:
    """Options with what belongs to heads as arrays of all heads, or left out where there is none of it."""
    arrays = {
        "sinks": by_head(request, options.get("sinks"), heads, "sinks", "logit", home),
        "alibi": slopes_of(request, options.get("alibi", 0.0), heads, home),
        "mask": options.get("mask"),
    }
    if arrays["mask"] is not None and not hasattr(arrays["mask"], "dtype"):
        arrays["mask"] = as_array(request, arrays["mask"], "mask", "an array of floats or bools")
    left = {name: option for name, option in options.items() if name not in arrays}
    return left | {name: array for name, array in arrays.items() if array is not None}


def _shares(run: Any, options: dict[str, Any], spans: Spans) -> list[dict[str, Any]]:
    """The options of each device: what belongs to heads is cut, arrays on GPUs are copied."""
    shares: list[dict[str, Any]] = [{} for _ in spans]
    for name, option in options.items():
        pieces = [option] * len(spans)
        if name in ("sinks", "alibi"):
            pieces = [option[first:end] for first, end in spans]
        elif name == "mask" and option.ndim > 2 and option.shape[-3] > 1:
            pieces = [option[..., first:end, :, :] for first, end in spans]
        if not is_host(option):
            pieces = run.give(pieces)
        for share, piece in zip(shares, pieces, strict=True):
            share[name] = piece
    return shares


def over_parts(k: Any, q: Any, v: Any, **options: Any) -> Any:
    """:func:`ggmlq.attention` over keys and values that ``shard(…, axis="heads")`` divides."""
    request = "attention(q, k, v)"
    if k.axis != "heads" or getattr(v, "axis", None) != "heads":
        raise DTypeError(
            f"{request}: k is {k!r}, v {v!r}; both are divided by heads; make them with "
            'gq.parallel.shard(k, devices, axis="heads")'
        )
    if v.devices != k.devices or v.spans != k.spans:
        raise DeviceError(f"{request}: k is {k!r}, v {v!r}; heads of both lie alike; shard both alike")
    d = Division(k.team, k.spans, k.shape[0], k.shape[3], v.shape[3], k.recorded)

    def attend(position: int, rows: Any, **more: Any) -> Any:
        return attention(rows, k.parts[position], v.parts[position], **more)

    return attended(request, d, q, attend, options)


class KVCache(Listed):
    """A :class:`ggmlq.KVCache` whose heads lie on several devices, a cache of some heads on each.

    Parameters
    ----------
    heads, width, positions
        As of :class:`ggmlq.KVCache`; of the heads of keys each device has one at least.
    devices : list
        Names, numbers of GPUs or CuPy's devices, as of :func:`ggmlq.parallel.shard`.
    **options
        k, v, batch, width_v, shared and rotate, as of :class:`ggmlq.KVCache`.

    >>> import numpy as np, ggmlq as gq
    >>> rng = np.random.default_rng(0)
    >>> c = gq.parallel.KVCache(4, 64, 1000, ["cpu", "cpu"], k="q8_0", v="q4_0")
    >>> c.append(rng.standard_normal((1, 4, 10, 64)), rng.standard_normal((1, 4, 10, 64)))
    >>> c, len(c)
    (<parallel.KVCache k q8_0, v q4_0, 10 of 1000 positions, heads 2 + 2 of 64, batch 1, on cpu, cpu>, 10)
    >>> c.attend(rng.standard_normal((1, 8, 3, 64)), causal=True).shape
    (1, 8, 3, 64)
    """

    def __init__(self, heads: int, width: int, positions: int, devices: Any, **options: Any) -> None:
        request = f"parallel.KVCache({', '.join(map(text.short, (heads, width, positions, devices)))})"
        width_v = options.get("width_v")
        self._division = division(
            request, heads, devices, options.get("batch", 1), width, width if width_v is None else width_v, []
        )
        team, spans = self._division[:2]
        self.parts: tuple[Cache, ...] = tuple(
            Cache(end - first, width, positions, device=name, **options)
            for name, (first, end) in zip(team.devices, spans, strict=True)
        )

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of the parts, in order."""
        return self._division.team.devices

    @property
    def lengths(self) -> Any:
        """The number of positions of each sequence, as of the first part."""
        return self.parts[0].lengths

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values of all parts."""
        return sum(part.nbytes for part in self.parts)

    def __len__(self) -> int:
        """The positions of the longest sequence."""
        return len(self.parts[0])

    def __repr__(self) -> str:
        d = self._division
        cut = " + ".join(str(end - first) for first, end in d.spans)
        facts, where = self.parts[0].summary, ", ".join(self.devices)
        return f"<parallel.KVCache {facts}, heads {cut} of {d.width}, batch {d.batch}, on {where}>"

    def cuts(self, rows: int) -> list[int]:
        """The cuts of a matrix with so many rows for all heads, as of queries, for :func:`shard`."""
        return [rows * first // self._division.heads for first in self._division.cuts]

    def append(self, k: Any, v: Any = None, lengths: Any = None) -> None:
        """:meth:`ggmlq.KVCache.append` of keys and values of all heads.

        They are arrays [B, HK, T, D] on one device, or Parts [T, HK · D] of products that were cut between
        heads, with B before T if there are several sequences.
        """
        request: Any = Request("append to", self)
        d = self._division
        arrays = [x if x is None or isinstance(x, Parts) else as_floats(request, x, name, bfloat16=True)
                  for name, x in (("k", k), ("v", v))]  # fmt: skip
        home = d.home_of(request, arrays[0], "k")
        before = self.lengths if home == "cpu" else None
        with d.team.run(home, d.keep) as run:
            run.fork()
            pieces = [
                [None] * len(self.parts) if x is None else d.dealt(request, run, x, name, width)
                for x, name, width in zip(arrays, "kv", (d.width, d.width_v), strict=True)
            ]
            shares = _shares(run, {"lengths": lengths}, d.spans)
            try:
                for position, (keys, values, share) in enumerate(zip(*pieces, shares, strict=True)):
                    with run.on(position):
                        self.parts[position].append(keys, values, **share)
            except BaseException:
                if before is not None:
                    self.truncate(before)
                raise

    def attend(self, q: Any, **options: Any) -> Any:
        """:meth:`ggmlq.KVCache.attend` of queries [B, H, T, D], joined on their device.

        Of Parts [T, H · D], with B before T if there are several sequences, it gives Parts [T, H · DV], which
        stay on their devices.
        """

        def attend(position: int, rows: Any, **more: Any) -> Any:
            return self.parts[position].attend(rows, **more)

        request: Any = Request("attend of", self)
        return attended(request, self._division, q, attend, options)

    def truncate(self, n: Any) -> None:
        """Keep the first ``n`` positions of each sequence, or of each its number [B]; shorter ones stay."""
        d = self._division
        with d.team.run(self.devices[0] if is_host(n) else device_of(n), d.keep) as run:
            run.fork()
            for position, share in enumerate(_shares(run, {"n": n}, d.spans)):
                with run.on(position):
                    self.parts[position].truncate(**share)
