"""``ggmlq trace``: which operation of a real run goes wrong?"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import GGMLQError, LibraryFailedError
from ..llama.loaded import listed
from ..pages import check_target, write
from ..trace import Product, Trace, report, trace
from ..trace.page import page
from . import _plain


def run(args: argparse.Namespace) -> int:
    """Run ``ggmlq trace``; the result is the exit status."""
    if args.html:
        check_target(args.html, "--html")
    asked = trace(
        args.model, lib=args.lib, prompt=_prompt(args), tokens=args.tokens, generate=args.generate,
        select=args.select, judge=args.judge, without=args.without, cache=args.cache,
        flash={"on": True, "off": False, "auto": None}[args.flash], threads=args.threads, seed=args.seed,
        timeout=args.timeout, verify=not args.no_verify, tool=args.program, bar=False if args.json else None,
    )  # fmt: skip
    return follow(asked, save=args.save, verbose=args.verbose, as_json=args.json, html=args.html)


def follow(asked: Trace, *, save: Path | None, verbose: bool, as_json: bool, html: str | None = None) -> int:
    """Print what a trace yields, and the summary."""
    products: list[Product] = []
    try:
        for found in asked:
            p = found
            if not as_json and not products:
                _say(report.HEADER)
            if save and p.verdict == "wrong":
                p = report.save(save, p)
            p = p.without_arrays()
            if as_json:
                print(json.dumps(_plain.jsonable(p.facts()), allow_nan=False), flush=True)
            elif verbose or p.verdict == "wrong":
                _say(report.line(p))
            products.append(p)
    except LibraryFailedError as error:
        if as_json and asked.died:
            print(json.dumps(_plain.jsonable(_death(asked, str(error))), allow_nan=False), flush=True)
        if products and not as_json:
            print(f"\n{report.summary(products)}\n")
        _write(asked, products, html, str(error))
        raise
    _write(asked, products, html)
    bad = [p for p in products if p.verdict == "wrong"]
    if not as_json:
        _say_all(asked, products, bad)
    else:
        print(json.dumps(_plain.jsonable(_end(asked, products)), allow_nan=False), flush=True)
        for note in asked.notes:
            print(_plain.name(note), file=sys.stderr)
    if not products:
        raise GGMLQError(f"not run: no product of {asked.nodes} nodes was selected; give another --select")
    return 1 if bad else 0


def _write(asked: Trace, products: list[Product], html: str | None, died: str = "") -> None:
    """The page, also of a run that did not end well."""
    if html and (products or died):
        library = f"ggml {asked.version}, {asked.library}"
        model = str(asked.settings.model)
        write(page(products, model, library, asked.notes, died, asked.others, asked.nodes), html)


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


def _say_all(asked: Trace, products: list[Product], bad: list[Product]) -> None:
    print(f"\n{report.summary(products)}\n" if products else "")
    others = report.unjudged(asked.others, asked.nodes)
    for text in (*report.reasons(products), *([others] if others else []), *asked.notes):
        print(_plain.name(text))
    tokens = f"{len(asked.tokens)} tokens; " if asked.tokens else ""  # a command keeps its own to itself
    if asked.loaded:
        print(f"loaded: {_plain.name(listed(asked.loaded))}")
    print(
        f"{len(products)} products of {asked.nodes} nodes, {len(bad)} wrong; {tokens}"
        f"ggml {asked.version}, {_plain.name(asked.library)}"
    )


def _end(asked: Trace, products: list[Product]) -> dict[str, Any]:
    """The last record: how the run ended, and which nodes nobody judges."""
    return {
        "node": "", "verdict": "end", "nodes": asked.nodes, "products": len(products),
        "wrong": sum(p.verdict == "wrong" for p in products), "not_judged": asked.others,
        "notes": asked.notes, "library": asked.library, "version": asked.version,
        "loaded": [str(path) for path in asked.loaded],
    }  # fmt: skip


def _death(asked: Trace, text: str) -> dict[str, Any]:
    """The node at which a library died, as a record."""
    died = asked.died or {}
    nodes = died.get("nodes", [])
    node = nodes[-1] if nodes else {"name": "", "op": "", "type": "", "ne": [], "of": []}
    return {
        "node": node["name"], "op": node["op"], "step": died.get("step"), "verdict": "died",
        "how": died.get("how"), "type": node["type"], "ne": node["ne"], "of": node["of"],
        "among": len(nodes), "said": died.get("said"), "text": text,
    }  # fmt: skip
