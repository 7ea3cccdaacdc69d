"""Words of the tree: docstrings name the thing first, identifiers are nouns, and one word has one meaning."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from sources import ROOT, Place, check, docstrings, first_sentence, tree

# Words that leave the reader waiting for the thing.
RIDDLES = {"what", "which", "whether", "where", "how", "of", "who", "whose", "that", "those", "such"}
SHORTEST, LONGEST = 4, 30  # words of a docstring, and of its first sentence
ROWS = 40  # of the glossary
# Participles that do not say what they hold: no whole name may be one.
BANNED = ("asked", "found", "given", "kept", "made", "mine", "own", "told")


def test_docstrings_name_the_thing_first():
    def is_riddle(text):
        words = re.findall(r"[a-z]+", " ".join(text.split()[:2]).lower())
        return words[:1] and (words[0] in RIDDLES or words == ["the", "same"])

    places = [Place(d.file, d.line, text) for d in docstrings() if is_riddle(text := first_sentence(d.text))]
    check(places, "a docstring names the thing first, and does not begin with What, Whether, Of, The same …")


def test_docstrings_are_no_single_words():
    places = [Place(d.file, d.line, d.text) for d in docstrings() if len(d.text.split()) < SHORTEST]
    check(places, f"a docstring has {SHORTEST} words or more, or the name says it all and there is none")


def test_first_sentences_are_short():
    places = [
        Place(d.file, d.line, f"{count} words: {text}")
        for d in docstrings()
        if (count := len((text := first_sentence(d.text)).split())) > LONGEST
    ]
    check(places, f"the first sentence of a docstring has {LONGEST} words at most")


# --- identifiers ------------------------------------------------------------------------------


@cache
def bindings():
    """Every name that the tree itself binds: variables, arguments, attributes, functions and classes."""
    names = []
    for file, syntax in tree().syntax.items():
        for node in ast.walk(syntax):
            if isinstance(node, ast.Name | ast.Attribute) and not isinstance(node.ctx, ast.Store):
                continue
            name = getattr(node, NAMED[type(node)], None) if type(node) in NAMED else None
            if name:
                names.append((name, Place(file, getattr(node, "lineno", 0), name)))
    return names


NAMED = {
    ast.Name: "id", ast.Attribute: "attr", ast.arg: "arg", ast.alias: "asname", ast.FunctionDef: "name",
    ast.AsyncFunctionDef: "name", ast.ClassDef: "name", ast.ExceptHandler: "name", ast.MatchAs: "name",
    ast.MatchStar: "name",
}  # fmt: skip


def files():
    """Stems of files and names of folders, as names of the first file that shows them."""
    shown = {}
    for file in tree().syntax:
        path = Path(file)
        for part in (*path.parts[:-1], path.stem):
            shown.setdefault((path.parent if part == path.stem else None, part), Place(file, 0, part))
    return [(part, place) for (_, part), place in shown.items()]


@pytest.mark.parametrize("word", BANNED)
def test_names_are_nouns(word):
    places = [place for name, place in bindings() if name.lstrip("_") == word]
    check(places, f"{word!r} does not say what it holds: take the noun")


# --- the glossary -----------------------------------------------------------------------------


@cache
def glossary():
    """Rows of the table | word | meaning | not | of docs/house.md, or none."""
    lines = (ROOT / "docs" / "house.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines if line.startswith("|")]
    start = next((i for i, row in enumerate(rows) if row == ["word", "meaning", "not"]), len(rows))
    table = []
    for row in rows[start + 2 :]:
        if len(row) not in (2, 3) or row[0] == "word":  # the next table
            break
        table.append([*row, ""][:3])
    return table


def words_of(cell):
    """Words of a cell, each with the folder of ggmlq that it is meant for: ``record (cpu), slab, words/``."""
    words = []
    for item in re.split(r"[,·]", cell.replace("`", "")):
        word, _, place = item.strip().partition("(")
        if word.strip():
            words.append((word.strip().lower(), place.rstrip(") ")))
    return words


def test_the_glossary_has_a_meaning_for_each_word_once():
    table = glossary()
    assert table, "docs/house.md has no table | word | meaning | not |"
    assert len(table) <= ROWS
    assert all(meaning for _, meaning, _ in table)
    words = Counter(word for cell, _, _ in table for word, _ in words_of(cell))
    assert [word for word, times in words.items() if times > 1] == []
    banned = Counter(entry for _, _, cell in table for entry in words_of(cell))
    assert [entry for entry, times in banned.items() if times > 1] == []
    both = sorted(word for word, place in banned if not place and word in words)
    assert both == [], "a word of the glossary is forbidden in some folder only: write record (cpu)"


def parts_of(name):
    """Parts of an identifier, of snake_case and of CamelCase."""
    return [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", name)]


def test_nobody_uses_another_word_for_one_of_the_glossary():
    """Names of files and folders are held to all words that are forbidden, those with a slash among them."""
    banned = {}
    for cell, _, others in glossary():
        for other, folder in words_of(others):
            parts = tuple(parts_of(other))
            banned.setdefault(parts, []).append((f"ggmlq/{folder}/" if folder else "", "/" in other, cell))
    names = [(*binding, False) for binding in bindings()] + [(*file, True) for file in files()]
    places = []
    for name, place, is_file in names:
        for run in runs_of(name, max(map(len, banned), default=0)) & banned.keys():
            for folder, files_only, cell in banned[run]:
                if place.file.startswith(folder) and (is_file or not files_only):
                    places.append(place._replace(text=f"{name}: say {cell}, not {' '.join(run)}"))
    check(places, "one word for one thing: the glossary of docs/house.md says which")


@cache
def runs_of(name, longest):
    """All runs of an identifier's parts, as they are and without their s."""
    parts = parts_of(name)
    kinds = parts, [part.removesuffix("s") for part in parts]
    spans = [(i, i + n) for n in range(1, longest + 1) for i in range(len(parts))]
    return {tuple(kind[first:last]) for kind in kinds for first, last in spans}
