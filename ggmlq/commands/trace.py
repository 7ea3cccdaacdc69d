"""``ggmlq trace``: which operation of a real run goes wrong?"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import GGMLQError, LibraryFailedError
from . import _plain
from ._options import FLASH, JSON_LINES, Commands, declare, flag, shared

if TYPE_CHECKING:
    from ..trace import Product, Trace

SUMMARY = "judge every node of a real run of llama.cpp"
ABOUT = """\
Run a model in your libllama and judge every node of its graphs on its own inputs: products in the arithmetic
of their kernel, all elements by random sums and the suspicious ones one by one; other operations by oracles
with a bound for each element. The first wrong node is named; if the library crashes, its node is. Exit 0:
all is right, 1: something is wrong, 2: the run did not reach its end.
"""
EXAMPLES = """\
  ggmlq trace model.gguf --prompt 'Once upon a time' --generate 4
  ggmlq trace model.gguf --lib ~/llama.cpp/build --select 'blk.0.*' --save wrong
  ggmlq trace model.gguf --fused --bisect --repeats 3
  ggmlq trace model.gguf -- llama-completion -p Hello -n 8     a command of llama.cpp in place of a prompt
"""


def add(commands: Commands) -> None:
    parser = declare(
        commands,
        "trace",
        "kernels",
        SUMMARY,
        ABOUT,
        EXAMPLES,
        usage="ggmlq trace MODEL [options] [-- COMMAND …]",
    )
    shared(parser, "model")
    parser.add_argument(
        "--lib", type=Path, help="libllama, libggml or a build folder (default: as doctor finds it)"
    )
    what = parser.add_mutually_exclusive_group()
    shared(what, "--prompt")
    what.add_argument("--file", type=Path, metavar="F", help="a file with that text")
    shared(what, "--tokens")
    parser.add_argument(
        "--generate",
        type=int,
        default=0,
        metavar="N",
        help="tokens to generate after it, one by one (default: 0)",
    )
    parser.add_argument("--select", action="append", default=[], metavar="GLOB",
                        help="only nodes or weights whose names fit: 'blk.0.*', 'Qcur-*'")  # fmt: skip
    parser.add_argument("--nodes", choices=("all", "products"), default="all",
                        help="all operations, or products and attention alone (default: all)")  # fmt: skip
    flag(parser, "--fused", "judge nodes that one kernel may compute as one, so that they fuse")
    flag(parser, "--bisect", "name the first nodes by which logits differ without the trace")
    parser.add_argument("--repeats", type=int, default=1, metavar="N",
                        help="trace N runs, and compare their nodes: races (default: 1)")  # fmt: skip
    parser.add_argument("--judge", choices=("all", "sample", "full"), default="all",
                        help="all elements by random sums; a few; all one by one (default: all)")  # fmt: skip
    shared(parser, "--without", "--cache", "--flash")
    parser.add_argument(
        "--threads", type=int, default=0, help="threads of the library (default: all cores, up to 16)"
    )
    shared(parser, "--seed", "--timeout")
    parser.add_argument(
        "--save", type=Path, metavar="DIR", help="write wrong nodes to DIR as npz, for ggmlq check --replay"
    )
    parser.add_argument(
        "--test-file", type=Path, metavar="OUT", help="write wrong nodes for test-backend-ops --test-file"
    )
    flag(parser, "--no-verify", "skip the second run without the trace")
    flag(parser, "-v", "--verbose", "print one line for each node, not only for wrong ones")
    parser.add_argument("--html", metavar="FILE", help="also write the report as an HTML page")
    flag(parser, "--json", JSON_LINES)
    _take_words_behind(parser)


def _take_words_behind(parser: argparse.ArgumentParser) -> None:
    """``MODEL --json -- llama-completion -p Hello``: argparse would take no positionals after an option."""
    parse = parser.parse_known_args

    def split(args: Any = None, namespace: Any = None) -> Any:
        words = list(args or [])
        at = words.index("--") if "--" in words else len(words)
        options, unknown = parse(words[:at], namespace)
        options.program = words[at + 1 :]
        return options, unknown

    parser.parse_known_args = split  # type: ignore[method-assign]


def run(args: argparse.Namespace) -> int:
    from ..pages import check_target
    from ..trace import trace

    if args.html:
        check_target(args.html, "--html")
    session = trace(
        args.model, lib=args.lib, prompt=_prompt(args), tokens=args.tokens, generate=args.generate,
        select=args.select, judge=args.judge, without=args.without, cache=args.cache,
        flash=FLASH[args.flash], threads=args.threads, seed=args.seed,
        timeout=args.timeout, verify=not args.no_verify, nodes=args.nodes, tool=args.program,
        fused=args.fused, bisect=args.bisect, repeats=args.repeats, captures=bool(args.save),
        bar=False if args.json else None,
    )  # fmt: skip
    return follow(
        session, save=args.save, verbose=args.verbose, as_json=args.json, html=args.html,
        test_file=args.test_file,
    )  # fmt: skip


def follow(
    session: Trace, *, save: Path | None, verbose: bool, as_json: bool, html: str | None = None,
    test_file: Path | None = None,
) -> int:  # fmt: skip
    """Print what a trace yields, and the summary."""
    from ..check.nodes import write_lines
    from ..trace import report
    from ..trace.saved import save as save_product
    from ..trace.saved import save_node
    from ..trace.verdicts import OVERWRITTEN

    products: list[Product] = []
    lines = report.Lines(_say, every=verbose)
    try:
        for record in session:
            p = record
            if not as_json and not products:
                _say(report.HEADER)
            if save and p.verdict == "wrong" and p.fault != OVERWRITTEN:  # its kernel would be right alone
                p = save_node(save, p) if p.captured is not None else save_product(save, p)
            p = p.without_arrays()
            if as_json:
                _plain.print_line(p.facts())
            else:
                lines.add(p)
            products.append(p)
    except LibraryFailedError as error:
        if as_json and session.died:
            _plain.print_line(_death(session, str(error)))
        lines.close()
        if products and not as_json:
            print(f"\n{report.summary(products, verbose)}\n")
        _write(session, products, html, str(error))
        raise
    lines.close()
    _write(session, products, html)
    bad = [p for p in products if p.verdict == "wrong"]
    if test_file:
        write_lines(test_file, (p.line for p in bad))
    if not as_json:
        _say_all(session, products, verbose)
    else:
        _plain.print_line(_end(session, products))
        for note in session.notes:
            print(_plain.name(note), file=sys.stderr)
    if not products:
        raise GGMLQError(f"not run: no node of {session.nodes} nodes was selected; give another --select")
    return 1 if bad else 0


def _write(session: Trace, products: list[Product], html: str | None, died: str = "") -> None:
    """The page, also of a run that did not end well."""
    from ..pages import write
    from ..trace.page import page

    if html and (products or died):
        library = f"ggml {session.version}, {session.library}"
        model = str(session.settings.model)
        write(page(products, model, library, session.notes, died, session.others, session.nodes), html)


def _prompt(args: argparse.Namespace) -> str | None:
    if args.file is None:
        return None if args.prompt is None else str(args.prompt)
    return _plain.text_of("--file", args.file)


def _say(text: str) -> None:
    """Print a line beside a bar, where there is one."""
    with suppress(ImportError):
        from tqdm import tqdm

        tqdm.write(text, file=sys.stdout)
        return
    print(text)


def _say_all(session: Trace, products: list[Product], verbose: bool) -> None:
    from ..llama.library import listed
    from ..trace import report

    print(f"\n{report.summary(products, verbose)}\n" if products else "")
    for text in (*report.reasons(products), *session.notes):
        print(_plain.name(text))
    tokens = f"{len(session.tokens)} tokens; " if session.tokens else ""  # a command keeps its own to itself
    if session.loaded:
        print(f"loaded: {_plain.name(listed(session.loaded))}")
    print(
        f"{_plain.name(report.last_line(products, session.others, session.nodes))}; {tokens}"
        f"ggml {session.version}, {_plain.name(session.library)}"
    )


def _end(session: Trace, products: list[Product]) -> dict[str, Any]:
    """The last record: how the run ended, and which nodes nobody judges."""
    from ..trace import report
    from ..trace.tracer import PRODUCTS

    return {
        "node": "", "verdict": "end", "nodes": session.nodes,
        "judged": report.judged_nodes(products),
        "products": sum(p.op in PRODUCTS for p in products),
        "first_wrong": next((p.node for p in products if p.verdict == "wrong"), None),
        "wrong": sum(p.verdict == "wrong" for p in products), "not_judged": session.others,
        "notes": session.notes, "library": session.library, "version": session.version,
        "loaded": [str(path) for path in session.loaded],
    }  # fmt: skip


def _death(session: Trace, text: str) -> dict[str, Any]:
    """The node at which a library died, as a record."""
    died = session.died or {}
    nodes = died.get("nodes", [])
    node = nodes[-1] if nodes else {"name": "", "op": "", "type": "", "ne": [], "of": []}
    return {
        "node": node["name"], "op": node["op"], "step": died.get("step"), "verdict": "died",
        "how": died.get("how"), "type": node["type"], "ne": node["ne"], "of": node["of"],
        "among": len(nodes), "said": died.get("said"), "text": text,
    }  # fmt: skip
