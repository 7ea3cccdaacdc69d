"""Tokenizers from a file's metadata: text to tokens and back, as llama.cpp does it.

tokenizer.py   Tokenizer: encode, decode, pieces, the tokens that begin and end a text
vocabulary.py  the tokens with their kinds and scores, and the special ones
special.py     the tokens that end a text, by their names; special tokens within a text
prefixes.py    tokens that a text goes on with at a place
sentence.py    SentencePiece: neighbours joined by score
pairs.py       byte pairs: words cut by a rule, their bytes joined by rank
unigram.py     unigram: the path of the best score through a text; its normalization
words.py       rules that cut a text into words: expressions with classes of Unicode
rules.py       these rules by the names that files use
chat.py        chat templates, by Jinja2 where it is installed
sandbox.py     its sandbox, where all that a template does is counted
costs.py       filters, tests, methods and operators, with the work that each takes
work.py        the limit of that work
"""

from .tokenizer import Tokenizer

__all__ = ["Tokenizer"]
