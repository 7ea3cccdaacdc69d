"""The pages that the site is built from: those of the tree, and those that are made from its sources.

The pages of docs/ lie flat in one folder, README.md is the first of them, and each link goes where its
target went; the groups of docs/README.md are the site's menu. Made are a page for every command, from its
parser; for each group of functions and public module, from docstrings; and for each file of the sources
that a page links to.
Scripts of the gallery are shown with what they print, or with the packages that they lack.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

import ggmlq
from ggmlq.arrays.protocols import public as public_members
from ggmlq.base.missing import has
from ggmlq.cli import command_line, main

ROOT = Path(__file__).resolve().parents[1]
RENAMED = {"README.md": "index.md", "docs/README.md": "pages.md"}
FIRST = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
)  # others: linked, or in docs/
BESIDE = ("codes", "formats", "pages")  # packages that pages import from; others ggmlq itself names
GROUPS = {  # a page each for the names of ggmlq itself
    "Arrays of blocks": "quantize dequantize fake_quantize QuantArray Format empty put take"
    " concatenate stack equal",
    "Products": "linear gated_linear expert_linear kernels set_num_threads nmse",
    "Files": "open save survey GGUFError",
    "Eight bits and scales": "quantize_scaled scaled_linear ScaledArray error_table",
    "Attention": "attention KVCache cache_error",
    "A GRU in integers": "GRU FixedGRU diagnose_gru",
    "Right and wrong": "check diagnose Diagnosis GGMLQError",
}
ORPHAN = "---\norphan: true\n---\n\n"  # a page that is linked to, and not in the menu
LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])")


def lay_out(folder: Path, run: bool = True) -> None:
    """Write all pages below a folder, where nothing else may lie; ``run`` the gallery for its output."""
    if folder.exists() and {*os.listdir(folder)} and not (folder / "pages.md").exists():
        sys.exit(f"{folder}: that holds something else than pages of an earlier run; name another folder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "pages.md").touch()  # so that the next run knows its folder, however this one ends
    written: set[str] = set()
    waiting = [*FIRST, *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").glob("*.md")))]
    listed = {*waiting}
    while waiting:
        source = waiting.pop()
        if source in written:
            continue
        written.add(source)
        target = folder / place_of(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.endswith(".md"):
            text, links = moved((ROOT / source).read_text(encoding="utf-8"), source)
            waiting += links
            head = "" if source in listed else ORPHAN
            target.write_text(head + text + (menu() if source == "README.md" else ""), encoding="utf-8")
        elif source.endswith(".py"):
            target.write_text(shown(source, run), encoding="utf-8")
        else:
            shutil.copy(ROOT / source, target)
    write_commands(folder / "commands")
    write_reference(folder / "reference")
    write_book(folder / "book")


# --- pages of the tree ------------------------------------------------------------------------


def place_of(source: str) -> str:
    """The place of a file of the tree in the site; both paths are relative."""
    if source in RENAMED:
        return RENAMED[source]
    flat = source.removeprefix("docs/")
    if flat.endswith(".py"):
        return (flat if flat != source else f"source/{source}").removesuffix(".py") + ".md"
    return flat.lower() if flat.endswith(".md") else flat


def moved(text: str, source: str) -> tuple[str, list[str]]:
    """A page with its links set to the places of their targets, and these targets."""
    here, links = os.path.dirname(source), []

    def target(match: re.Match[str]) -> str:
        """The link to a target in the site."""
        links.append(os.path.normpath(os.path.join(here, match[1])))
        return os.path.relpath(place_of(links[-1]), os.path.dirname(place_of(source)))

    return LINK.sub(target, text), links


def menu() -> str:
    """The hidden tables of contents of the first page, which are the site's menu."""
    groups: dict[str, list[str]] = {"": ["pages"]}
    for line in (ROOT / "docs" / "README.md").read_text(encoding="utf-8").splitlines():
        if match := re.match(r"(?:## |\| \*\*)([^|*]+)", line):
            groups[match[1]] = []
        elif match := re.match(r"\| \[(\w+)\.md\]", line):
            groups[[*groups][-1]].append(match[1])
    groups["Made from the sources"] = [
        "commands/index",
        "reference/index",
        "book/index",
        "changelog",
        "contributing",
        "security",
    ]
    text = ""
    for name, pages in [(name, pages) for name, pages in groups.items() if pages]:
        options = [":hidden:", *([f":caption: {name}"] if name else [])]
        text += "\n".join(["", "", "```{toctree}", *options, "", *pages, "```", ""])
    return text


def shown(source: str, run: bool) -> str:
    """A page that shows a file; for the gallery with its text and its output."""
    path = ROOT / source
    text = path.read_text(encoding="utf-8")
    if not source.startswith("docs/gallery/"):
        return f"{ORPHAN}# {path.name}\n\n{fenced(text, 'python')}"
    docstring, _, code = text.partition('"""\n\n')
    title, _, words = docstring.strip('"').partition("\n")
    page = f"{ORPHAN}# {title.rstrip('.')}\n{words}\n{fenced(code, 'python')}"
    if missing := missing_for(code):
        return page + f"\nIt was not run for this page; not installed: {', '.join(missing)}.\n"
    return page + f"\nIt prints:\n\n{fenced(output_of(path), 'text')}" if run else page


def missing_for(code: str) -> list[str]:
    """The packages that a script imports and that are not installed."""
    packages = re.findall(r"^(?:import|from) (\w+)", code, flags=re.MULTILINE)
    return sorted(name for name in {*packages} if not has(name))


def output_of(script: Path) -> str:
    """The output of a script of the gallery, run in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "110", "NO_COLOR": "1"}
        done = subprocess.run(
            [sys.executable, str(script)], cwd=folder, env=env, capture_output=True, text=True, check=False
        )
    if done.returncode:
        sys.exit(f"{script}: it ends with {done.returncode}\n{done.stderr}")
    return done.stdout


def fenced(text: str, language: str) -> str:
    """Text as a block of code."""
    return f"````{language}\n{text.rstrip()}\n````\n"


# --- commands ---------------------------------------------------------------------------------


def write_commands(folder: Path) -> None:
    """A page for each command, and their list."""
    folder.mkdir()
    os.environ |= {"COLUMNS": "100", "NO_COLOR": "1"}  # argparse breaks lines for them
    whole: Any = command_line()
    helps = {action.dest: action.help for action in whole.commands._choices_actions}
    for name, parser in whole.commands.choices.items():
        (folder / f"{name}.md").write_text(command_page(parser), encoding="utf-8")
    rows = [f"| [{name}]({name}.md) | {plain(helps.get(name, ''))} |" for name in whole.commands.choices]
    names = "\n".join(whole.commands.choices)
    about = " ".join(whole.description.split())
    text = f"# Commands\n\n{plain(about)} `python -m ggmlq` is the same command.\n\n"
    text += "\n".join(["| command | |", "|---|---|", *rows])
    text += f"\n\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"
    (folder / "index.md").write_text(text, encoding="utf-8")


def command_page(parser: argparse.ArgumentParser, level: str = "#") -> str:
    """The text of ``--help``, with headings and anchors; then that of each command within it."""
    formatter: Any = parser._get_formatter()
    text = [f"{level} {parser.prog}", plain(" ".join((parser.description or "").split()))]
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups, prefix="")
    text.append(fenced(formatter.format_help(), "text"))
    within = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    hidden = [action for action in parser._actions if action.help is argparse.SUPPRESS] + within
    for group in parser._action_groups:
        visible = [action for action in group._group_actions if action not in hidden]
        text += [f"{level}# {(group.title or '').capitalize()}"] * bool(visible)
        for action in visible:
            words = " ".join(formatter._expand_help(action).split()) if action.help else "…"
            text.append(f"`{formatter._format_action_invocation(action)}`\n: {plain(words)}")
    if parser.epilog:
        text.append(fenced(inspect.cleandoc(parser.epilog), "text"))
    text += [command_page(inner, level + "#") for action in within for inner in action.choices.values()]
    return "\n\n".join(text) + "\n"


def plain(text: str) -> str:
    """A help text as Markdown: signs of markup are escaped, but in code."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"([\\*_<>\[\]|#~{}])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


# --- the ladder -------------------------------------------------------------------------------


def write_book(folder: Path) -> None:
    """A page for each rung of the ladder and for each chapter, as the command prints them, and their list."""
    folder.mkdir()
    titles = dict(re.findall(r"^(\S+) +(.+)$", said("ladder", "page"), flags=re.MULTILINE))
    files = {name: name.replace(":", "_") for name in titles}
    for name, file in files.items():
        (folder / f"{file}.md").write_text(said("ladder", "page", name), encoding="utf-8")
    rows = [f"| [{name}]({files[name]}.md) | {plain(title)} |" for name, title in titles.items()]
    head = "# The ladder, rung by rung\n\nAfter the rungs stand the summit's techniques, each alone.\n\n"
    text = head + "\n".join(["| rung, chapter | |", "|---|---|", *rows])
    tree = "\n".join(files.values())
    (folder / "index.md").write_text(f"{text}\n\n```{{toctree}}\n:hidden:\n\n{tree}\n```\n", encoding="utf-8")


def said(*words: str) -> str:
    """The output of a command of ggmlq."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        status = main(list(words))
    if status:
        sys.exit(f"ggmlq {' '.join(words)}: it ends with {status}")
    return output.getvalue()


# --- Python -----------------------------------------------------------------------------------


def write_reference(folder: Path) -> None:
    """A page for each group of functions and each public module, and the list of mistakes."""
    from sphinx.ext.autodoc.mock import mock

    folder.mkdir()
    homes: dict[int, str] = {}  # names that ggmlq has from its modules are described with them
    rows = {"ggmlq": words_of("ggmlq")[0]}
    with mock(["torch"]):  # which the site does without: it has gigabytes
        within = [name for name in dir(ggmlq) if inspect.ismodule(getattr(ggmlq, name))]
        modules = [f"ggmlq.{name}" for name in sorted({*within, *BESIDE})]
        for name in modules:
            things = {key: getattr(import_module(name), key) for key in public(import_module(name))}
            things = {key: thing for key, thing in things.items() if f"{name}.{key}" not in modules}
            text = f"{head(name)}.. module:: {name}\n\n{prose(name)}{described(name, things, homes)}"
            (folder / f"{name}.rst").write_text(text, encoding="utf-8")
        grouped = {name for names in GROUPS.values() for name in names.split()}
        if left := {*ggmlq.__all__} - grouped - {name.removeprefix("ggmlq.") for name in modules}:
            sys.exit(f"{', '.join(sorted(left))}: names of ggmlq in none of GROUPS (site_pages.py); add them")
        for title, names in GROUPS.items():
            file = title.lower().replace(" ", "_")
            things = {key: getattr(ggmlq, key) for key in names.split()}
            text = f"{head(title)}.. currentmodule:: ggmlq\n\n{described('ggmlq', things, homes)}"
            (folder / f"{file}.rst").write_text(text, encoding="utf-8")
            rows[file] = title
    text = f"{head('ggmlq')}.. module:: ggmlq\n\n{prose('ggmlq')}"
    (folder / "ggmlq.rst").write_text(text, encoding="utf-8")
    (folder / "mistakes.md").write_text(mistakes(), encoding="utf-8")
    rows |= {name: words_of(name)[0] for name in modules}
    rows["mistakes"] = "what `gq.diagnose`, `check`, `trace` and `gq.diagnose_gru` name"
    table = "\n".join(f"| [{name}]({name}.rst) | {plain(words)} |" for name, words in rows.items())
    tree = "\n".join(rows)
    text = f"# Python\n\n| page | |\n|---|---|\n{table}\n\n```{{toctree}}\n:hidden:\n\n{tree}\n```\n"
    (folder / "index.md").write_text(text.replace("(mistakes.rst)", "(mistakes.md)"), encoding="utf-8")


def head(title: str) -> str:
    """A title in RST."""
    return f"{title}\n{'=' * len(title)}\n\n"


def prose(name: str) -> str:
    """The docstring of a module; its maps and examples stay as they are."""
    first, *rest = words_of(name)
    code = textwrap.indent("\n".join(rest).strip("\n"), "   ")
    language = "python" if ">>>" in code[:8] else "text"
    return f"{first}\n\n.. code-block:: {language}\n\n{code}\n\n" if code else f"{first}\n\n"


def described(module: str, things: dict[str, Any], homes: dict[int, str]) -> str:
    """A table of names, and what autodoc writes of each that has no home yet."""
    names = [homes.get(id(thing), key) for key, thing in things.items() if callable(thing)]
    text = f".. autosummary::\n   :nosignatures:\n\n{textwrap.indent(chr(10).join(names), '   ')}\n\n"
    for key, thing in things.items():
        if not callable(thing):
            text += data(key, thing)
        elif id(thing) not in homes:
            text += f".. {directive(thing)}:: {key}\n{members(thing)}\n"
            homes[id(thing)] = f"{module}.{key}".removeprefix("ggmlq.")
    return text


def mistakes() -> str:
    """The list of all mistakes that the doctor names, as Markdown."""
    from ggmlq.faults.catalogue import CATALOGUE, EXPERTS, GRU_FAULTS, NODES, SCALED

    kinds = {
        "Products": CATALOGUE, "Codes with scales": SCALED, "Experts": EXPERTS, "Operations": NODES,
        "GRUs in integers": GRU_FAULTS,
    }  # fmt: skip
    text, listed = "# Mistakes of kernels", set[str]()
    for title, kind in kinds.items():
        rows = [fault for name, fault in kind.items() if name not in listed]
        listed |= kind.keys()
        text += f"\n\n## {title}\n\n| mistake | the kernel | look at |\n|---|---|---|\n"
        text += "\n".join(f"| `{f.id}` | {plain(f.says)} | {plain(f.look)} |" for f in rows)
    return text + "\n"


def public(module: Any) -> list[str]:
    """The public names of a module; a file of classes has no list of them."""
    defined = (
        name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
    )
    return list(getattr(module, "__all__", defined))


def directive(thing: Any) -> str:
    """The directive of autodoc for a class or function."""
    if inspect.isclass(thing):
        return "autoexception" if issubclass(thing, Exception) else "autoclass"
    return "autofunction"


def members(thing: Any) -> str:
    """The option that names the members of a class that ``dir()`` shows, inherited ones too."""
    if not inspect.isclass(thing):
        return ""
    names = [] if issubclass(thing, Exception | Enum) else public_members(thing)
    return f"   :members: {', '.join(names)}\n"


def data(name: str, thing: Any) -> str:
    """A mapping with its entries, or a value, or another object with its first line or that of its class."""
    if isinstance(thing, dict):
        rows = {key: value if isinstance(value, str) else ": ".join(value) for key, value in thing.items()}
        lines = [f"- ``{key}``: {plain(text)}" for key, text in rows.items()]
    else:
        owner = thing if inspect.ismodule(thing) else type(thing)
        plain_value = isinstance(thing, int | float | str)
        lines = [f"``{thing!r}``" if plain_value else (inspect.getdoc(owner) or "").partition("\n")[0]]
    head = [f".. data:: {name}", f"   :type: {type(thing).__name__}", ""]
    return "\n".join([*head, *(f"   {line}" for line in lines)]) + "\n\n"


def words_of(name: str) -> list[str]:
    """The lines of a module's docstring."""
    return inspect.cleandoc(import_module(name).__doc__ or "").splitlines()


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]), run="--quick" not in sys.argv[2:])
