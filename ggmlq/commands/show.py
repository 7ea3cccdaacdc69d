"""``ggmlq show``: one tensor, as statistics or as a block taken apart."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from math import prod
from typing import TYPE_CHECKING, Any

from ..base.progress import Progress
from ..base.terminal import table
from ..base.text import short, size
from ..errors import BlockIndexError, PageError
from . import _plain
from ._options import Commands, declare, shared

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..arrays.array import QuantArray
    from ..pages import Bars
    from ..report.blocks import Blocks
    from ..report.values import Spread

SUMMARY = "show statistics of a tensor, or one block field by field"
ABOUT = """\
Show range, scales and codes of a tensor; with --block the fields, bits and values of one block.
"""
EXAMPLES = """\
  ggmlq show model.gguf blk.0.ffn_up.weight
  ggmlq show model.gguf blk.0.ffn_up.weight --block 0
  ggmlq show model.gguf blk.0.ffn_up.weight --rows 0:16 --plot
"""
BAR = 40  # characters of the longest bar of the histogram
PER_LINE = 8  # bytes in bits a line


def add(commands: Commands) -> None:
    parser = declare(commands, "show", "files", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("file", help="a .gguf file, or safetensors")
    parser.add_argument("tensor", help="name of the tensor, see `ggmlq info --tensors`")
    parser.add_argument("--block", type=int, metavar="I", help="block number I, counted over all rows")
    parser.add_argument("--rows", type=_rows, metavar="A:B", help="only rows A to B - 1, as in Python")
    parser.add_argument(
        "--plot", nargs="?", const="", metavar="FILE",
        help="draw histograms of values, scales and codes to FILE.svg or FILE.png; without FILE, print them",
    )  # fmt: skip
    shared(parser, "--json")


def _rows(text: str) -> slice:
    ends = re.fullmatch(r"(\d*):(\d*)", text)
    if ends is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of rows; write 0:16, 100: or :8")
    return slice(*(int(end) if end else None for end in ends.groups()))


def run(args: argparse.Namespace) -> int:
    from ..gguf.metadata import missing
    from ..safetensors import either as files
    from . import _safetensors

    _check_plot(args)
    with files.open(args.file) as file:
        if args.tensor not in file:
            way = f"`ggmlq info --tensors {args.file}` lists them"
            missing(f"tensor {short(args.tensor)} of {args.file}", args.tensor, file, way)
        q = _safetensors.floats(file[args.tensor])
    facts: dict[str, Any] = {
        "tensor": args.tensor,
        "type": q.format.name,
        "shape": list(q.shape),
        "bytes": q.nbytes,
    }
    if args.rows is not None:
        q = _selected(q, args.rows)
        facts["rows"] = [args.rows.start, args.rows.stop]
    if args.block is None:
        spread, parts = _counted(q)
        facts["statistics"] = spread.facts() | parts.facts()
        plot = None if args.plot is None else _drawn(_charts(args.tensor, q, spread, parts), args.plot)
    else:
        facts["block"], plot = _block(q, args.block), None
    if args.json:
        _plain.print_json(facts)
        return 0
    shape = " x ".join(map(str, facts["shape"])) or "scalar"
    print(f"{_plain.name(args.tensor)}: {q.format.name}, {shape}, {size(facts['bytes'])}")
    print("\n".join(_describe_block(facts["block"]) if "block" in facts else _describe(facts["statistics"])))
    if plot is not None:
        print(f"\n{plot}")
    return 0


def _check_plot(args: argparse.Namespace) -> None:
    """Refuse a plot that cannot be drawn, before the file is read."""
    from ..pages import check_picture

    if args.plot is None:
        return
    if args.block is not None:
        raise PageError(
            f"--plot with --block {args.block}: histograms are of a tensor or of rows, a block is a list of "
            "numbers; leave one of them out, or take --rows"
        )
    if args.json and not args.plot:
        raise PageError("--plot with --json: standard output is JSON then; name a file: --plot picture.svg")
    if args.plot:
        check_picture(args.plot)


def _selected(q: QuantArray, rows: slice) -> QuantArray:
    """Rows of a tensor of any number of axes, counted through."""
    from ..gguf.header import piece

    if q.ndim < 2:
        raise BlockIndexError(f"--rows on {q!r}: it is a single row; leave the option out")
    flat = piece(q, 0, (prod(q.shape[:-1]), q.shape[-1]))
    if not range(*rows.indices(len(flat))):
        ends = ":".join("" if end is None else str(end) for end in (rows.start, rows.stop))
        raise BlockIndexError(f"--rows {ends} of {q!r}: there is no such row; take some of 0:{len(flat)}")
    return flat[rows]


def _block(q: QuantArray, index: int) -> dict[str, Any]:
    import numpy as np

    from ..formats import BlockFormat

    blocks = q.blocks.reshape(-1)
    if not -len(blocks) <= index < len(blocks):
        way = f"take 0 to {len(blocks) - 1}" if len(blocks) else "leave the option out"
        raise BlockIndexError(f"--block {index} of {q!r}: it has {len(blocks)} blocks; {way}")
    index %= len(blocks)
    one = blocks[index : index + 1]
    per_row = max(1, q.blocks.shape[-1] if q.ndim else 1)
    facts: dict[str, Any] = {
        "index": index,
        "row": index // per_row,
        "column": index % per_row * q.format.block_size,
    }
    facts["fields"] = (
        [_field(name, one[0]) for name in one.dtype.names] if one.dtype.names else [_scalar(one)]
    )
    if isinstance(q.format, BlockFormat):
        with np.errstate(all="ignore"):
            parts = q.format.unpack(one)
        facts["group"] = q.format.group
        facts["scale"] = parts.scale[0].tolist()
        facts["offset"] = None if parts.offset is None else parts.offset[0].tolist()
        facts["codes"] = parts.codes[0].tolist()
    facts["values"] = q.format.decode(one).tolist()
    return facts


def _field(name: str, block: Any) -> dict[str, Any]:
    import numpy as np

    kind, at = block.dtype.fields[name][:2]
    return {"name": name, "type": _c_type(kind.base), "count": int(np.prod(kind.shape)), "at": at} | _bits(
        block[name]
    )


def _scalar(one: NDArray[Any]) -> dict[str, Any]:
    return {"name": "value", "type": _c_type(one.dtype), "count": 1, "at": 0} | _bits(one[0])


def _bits(stored: Any) -> dict[str, Any]:
    """Numbers of a field, and the bits of each with the highest first."""
    import numpy as np

    numbers = np.atleast_1d(np.asarray(stored))
    words = numbers.astype(numbers.dtype.newbyteorder(">")).reshape(-1)
    width = 8 * words.dtype.itemsize
    rows = np.unpackbits(words.view(np.uint8)).reshape(-1, width)
    return {"value": numbers.tolist(), "bits": ["".join(map(str, row)) for row in rows.tolist()]}


def _c_type(dtype: np.dtype[Any]) -> str:
    if dtype.kind == "f":
        return {2: "half", 4: "float", 8: "double"}[dtype.itemsize]
    return f"{dtype.name}_t"


def _describe_block(block: dict[str, Any]) -> list[str]:
    lines = [f"block {block['index']}: row {block['row']}, columns from {block['column']}", ""]
    for field in block["fields"]:
        many = f"[{field['count']}]" if field["count"] > 1 else ""
        lines.append(f"byte {field['at']:3}  {field['type']} {field['name']}{many}")
        step = PER_LINE if len(field["bits"][0]) == 8 else PER_LINE // 2
        for i in range(0, field["count"], step):
            bits = " ".join(field["bits"][i : i + step])
            numbers = " ".join(str(number) for number in field["value"][i : i + step])
            lines.append(f"    {i:3}  {bits}  = {numbers}")
    lines.append("")
    if "codes" in block:
        lines += _describe_groups(block)
    lines += ["values", *_rows_of(block["values"], "{:13.6g}", 8)]
    return lines


def _describe_groups(block: dict[str, Any]) -> list[str]:
    offsets = block["offset"] or [""] * len(block["scale"])
    rows = [
        [g, f"{scale:.9g}", offset]
        for g, (scale, offset) in enumerate(zip(block["scale"], offsets, strict=True))
    ]
    groups = table([f"group of {block['group']}", "scale", "offset"], rows)
    return [groups, "", "codes", *_rows_of(block["codes"], "{:5d}", 16), ""]


def _rows_of(items: list[Any], form: str, many: int) -> list[str]:
    return [
        f"{i:7}" + "".join(form.format(item) for item in items[i : i + many])
        for i in range(0, len(items), many)
    ]


def _describe(facts: dict[str, Any]) -> list[str]:
    rows = [
        [key, facts[key]] for key in ("elements", "min", "max", "mean", "rms", "zeros", "nan", "infinite")
    ]
    lines = [table(["values", ""], rows)]
    if "codes" in facts:
        codes = facts["codes"]
        lines += [
            "",
            f"codes {codes['min']} to {codes['max']}: {codes['saturated']} at an end "
            f"({100 * codes['saturated_share']:.2f} %)",
            "",
            *_histogram(facts["scales"]),
        ]
    return lines


def _histogram(scales: dict[str, Any]) -> list[str]:
    head = (
        f"scales of {scales['groups']} groups: {scales['zero']} zero, {scales['negative']} negative, "
        f"{scales['not_finite']} NaN or infinite"
    )
    most = max((bin["count"] for bin in scales["histogram"]), default=1)
    return [head] + [
        f"  {bin['from']:11.4g} to {bin['to']:11.4g}  {bin['count']:10}  "
        + "#" * -(-BAR * bin["count"] // most)
        for bin in scales["histogram"]
    ]


def _counted(q: QuantArray) -> tuple[Spread, Blocks]:
    """The facts about all values and all blocks."""
    from ..report import blocks, values

    with Progress(q.nbytes, "counting") as progress:
        return values.examine(q, progress.advance), blocks.examine(q, prod(q.shape))


def _charts(name: str, q: QuantArray, spread: Spread, parts: Blocks) -> list[Bars]:
    """Charts of the values, and for blocks of scales and codes."""
    from ..pages.charts import LEAST, MOST
    from ..report import page

    unit = spread.rms if spread.rms and LEAST < spread.rms < MOST else None
    bars = [page.values_of(f"{name}: values", spread.histogram, unit)] if spread.histogram.any() else []
    bars += page.scales_of(f"{name}: scales", parts.scales, parts.zero_scales, parts.negative_scales)
    if parts.codes is not None and parts.seen:
        bars.append(page.codes_of(f"{name}: codes", q.format.name, parts.codes))
    return bars


def _drawn(bars: list[Bars], path: str) -> str:
    """Draw charts into a file, or for the terminal; the text to print."""
    from ..pages import draw, text

    if not bars:
        return "there is nothing to draw: no value is finite"
    if path:
        return f"wrote {draw(bars, path)}"
    columns = shutil.get_terminal_size().columns
    encoding = sys.stdout.encoding if sys.stdout is not None else None
    return "\n\n".join(f"{text(chart, columns, encoding)}\n  {chart.note}" for chart in bars)
